"""Rollouts in which the policy sampled nothing: scored, but in no baseline, by enumeration.

An episode acts with a chance that the policy does not change, and then samples one of three tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from quintain import Score, Task
from quintain.learning.batch import batch_of
from quintain.learning.pieces.advantages import Step, leave_one_out
from quintain.learning.pieces.aggregation import constant
from quintain.testing import rollout
from quintain.types.rollout import AnyRollout, Group
from quintain.types.transcript import Branch, TokenSource, Transcript

Array = NDArray[np.float64]

ACTS = 0.6
POLICY = np.array([0.5, 0.3, 0.2])
VALUES = np.array([1.0, 0.9, 0.8])
SIZE = 3
TASK = Task(prompt="?")
NOTHING = -1
"""In place of a token."""


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A group: the token of each rollout, and the chance of these."""

    tokens: tuple[int, ...]
    chance: float


GROUPS = [
    Drawn(
        tokens=tokens,
        chance=float(np.prod([1 - ACTS if t == NOTHING else ACTS * POLICY[t] for t in tokens])),
    )
    for tokens in product((NOTHING, 0, 1, 2), repeat=SIZE)
]


def played(token: int, sample: int) -> AnyRollout:
    """An episode that ends before or after its one token, worth 0 or what the token is."""
    branch = Branch(
        ids=(0, token),
        sources=(TokenSource.PROMPT, TokenSource.MODEL),
        logps=(0.0, float(np.log(POLICY[token]))),
        versions=(-1, 0),
    )
    acted = token != NOTHING
    return rollout(TASK).replace(
        transcripts={"": Transcript(branches=(branch,))} if acted else {},
        outcome=Score(value=float(VALUES[token]) if acted else 0.0),
        sample=sample,
    )


def along(token: int) -> Array:
    """Gradient of the log-prob of *token* by the logits."""
    return np.asarray(np.eye(len(POLICY))[token] - POLICY)


def updates() -> list[tuple[Array, Array, float]]:
    """Of each group: the update of leave-one-out, what it would be with all rollouts in baseline and
    denominator, and the chance of the group.
    """
    found = []
    for drawn in GROUPS:
        rollouts = tuple(played(token, i) for i, token in enumerate(drawn.tokens))
        batch = batch_of([Group(task=TASK, rollouts=rollouts)], temperature=1.0, max_tokens=1)
        rewards = tuple(sample.total for sample in batch.samples)
        advantages = leave_one_out(Step(batch=batch, rewards=rewards))
        tokens = [token for token in drawn.tokens if token != NOTHING]
        weights = constant(batch) if tokens else []
        update = sum(
            (w * a * along(t) for w, a, t in zip(weights, advantages, tokens, strict=True)),
            np.zeros(len(POLICY)),
        )
        values = np.array([r.outcome.total for r in rollouts if r.outcome])
        others = (values.sum() - values) / (SIZE - 1)
        counted = sum(
            (
                (value - other) / SIZE * along(token)
                for value, other, token in zip(values, others, drawn.tokens, strict=True)
                if token != NOTHING
            ),
            np.zeros(len(POLICY)),
        )
        found.append((update, counted, drawn.chance))
    return found


def test_leaving_them_out_keeps_the_direction_of_the_true_gradient() -> None:
    """Its length is the chance that two or more of the group acted, over that of one. Counting them
    in the mean is right, too, with the length of the truth.
    """
    truth = ACTS * sum(POLICY[t] * VALUES[t] * along(t) for t in range(len(POLICY)))
    several = 3 * ACTS**2 * (1 - ACTS) + ACTS**3

    left_out = sum(chance * update for update, _, chance in updates())
    counted = sum(chance * update for _, update, chance in updates())

    assert np.abs(truth).max() > 0.01
    np.testing.assert_allclose(left_out, several / ACTS * truth, rtol=0, atol=1e-12)
    np.testing.assert_allclose(counted, truth, rtol=0, atol=1e-12)


def test_counting_them_would_add_noise() -> None:
    """The policy did nothing for the 0 of such a rollout, but all tokens of its group would gain."""
    noises = []
    for kind in (0, 1):
        values = np.array([found[kind] for found in updates()])
        chances = np.array([found[2] for found in updates()])
        mean = chances @ values
        noises.append(float(chances @ ((values - mean) ** 2).sum(1) / (mean**2).sum()))

    left_out, counted = noises
    assert counted > 5 * left_out


@pytest.mark.parametrize("groups", [2, pytest.param(3, marks=pytest.mark.more)])
def test_a_second_player_that_is_seldom_there_has_its_whole_gradient(groups: int) -> None:
    """Alone in its group it is compared with those of other groups that are alone. So only a batch
    in which a single one is alone lacks a share.
    """
    present = 0.2
    size = 2
    truth = np.zeros(2)
    found = np.zeros(2)
    lacking = 0.0
    policy = np.array([0.6, 0.4])
    chances = {NOTHING: 1 - present, 0: present * policy[0], 1: present * policy[1]}
    for tokens in product(chances, repeat=groups * size):
        chance = float(np.prod([chances[token] for token in tokens]))
        played_groups = [tokens[i : i + size] for i in range(0, len(tokens), size)]
        batch = batch_of(
            [
                Group(task=TASK, rollouts=tuple(seated(t, i, n) for i, t in enumerate(group)))
                for n, group in enumerate(played_groups)
            ],
            temperature=1.0,
            max_tokens=1,
        )
        advantages = leave_one_out(
            Step(batch=batch, rewards=tuple(sample.total for sample in batch.samples))
        )
        acted = [token for token in tokens if token != NOTHING]
        for token, advantage in zip(acted, advantages, strict=True):
            found += chance * advantage * (np.eye(2)[token] - policy)
            truth += chance * token * (np.eye(2)[token] - policy)
        alone = sum(size - group.count(NOTHING) == 1 for group in played_groups)
        lacking += chance * (alone == 1)

    assert np.linalg.norm(truth) > 0.1
    share = found @ truth / (truth @ truth)
    assert share == pytest.approx(1 - lacking / (groups * size * present))


def seated(token: int, sample: int, group: int) -> AnyRollout:
    """An episode in which the second player has one turn, worth its token, or none."""
    branch = Branch(
        ids=(0, max(token, 0)),
        sources=(TokenSource.PROMPT, TokenSource.MODEL),
        logps=(0.0, -1.0),
        versions=(-1, 0),
    )
    seats = {} if token == NOTHING else {"rival": Transcript(branches=(branch,), player="rival")}
    return rollout(TASK).replace(
        transcripts=seats,
        outcome=Score(value=0.0, players={"rival": float(token)} if seats else {}),
        sample=sample,
        group=group,
    )
