"""Tree advantages: the expected update over all trees is the policy gradient, and each number is
that of a second implementation.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
import pytest
import torch

from quintain.errors import UsageError
from quintain.learning import Batch, Sample, Step, TrainingSequence
from quintain_algorithms.tree_search import (
    StepRule,
    TreeEngine,
    tree_process,
    tree_steps,
    value_steps,
)

from ....core.learning.exact.policies import Array, Tree, log_softmax, multisets
from .toy import policy

Reply = tuple[int, ...]


def engine(branches: int, depth: int, size: int = 1) -> TreeEngine:
    """An engine whose steps are *size* tokens."""
    built = TreeEngine.__new__(TreeEngine)
    built._configure(branches, depth)
    built.open_policy(policy(), StepRule(by="tokens", size=size))
    return built


def step_of(*groups: Sequence[tuple[Reply, float]]) -> Step:
    """Groups of answers to the prompt (7, 7), with their rewards."""
    samples = tuple(
        Sample(
            sequences=(
                TrainingSequence(
                    ids=(7, 7, *reply),
                    mask=(False, False, *[True] * len(reply)),
                    logps=(0.0,) * (len(reply) + 2),
                    versions=(0,) * (len(reply) + 2),
                ),
            ),
            outcome=reward,
            group=number,
        )
        for number, group in enumerate(groups)
        for reply, reward in group
    )
    return Step(batch=Batch(samples=samples), rewards=tuple(s.total for s in samples))


def computed(piece: Any, step: Step, **services: Any) -> list[float]:
    values, _ = piece.with_services(services)(step)
    return cast(list[float], values.tolist())


# ------------------------------------------------------------------------------------- enumeration
def trees(
    replies: Tree, chances: dict[Reply, float], branches: int
) -> Iterator[tuple[list[Reply], float]]:
    """All trees of depth two with steps of one token, and their probabilities: draws up to order."""
    first = {y[:1]: 0.0 for y in chances}
    for y, chance in chances.items():
        first[y[:1]] += chance
    nodes: list[list[Reply]] = []
    node_chances: list[float] = []
    for begin, chance in first.items():
        ends = [y for y in chances if y[:1] == begin]
        if ends == [begin]:  # the answer has ended: it is all leaves
            nodes.append([begin] * branches)
            node_chances.append(chance)
            continue
        for places, own in multisets([chances[y] / chance for y in ends], branches):
            nodes.append([ends[i] for i in places])
            node_chances.append(chance * own)
    for places, chance in multisets(node_chances, branches):
        yield [leaf for i in places for leaf in nodes[i]], chance


@pytest.mark.more
@pytest.mark.parametrize(("longest", "branches"), [(3, 2), (2, 3)])
def test_expected_update_is_the_policy_gradient(longest: int, branches: int) -> None:
    """Over all trees, those with equal steps included, in float64."""
    replies = Tree(vocab=3, longest=longest)
    draw = np.random.default_rng(5)
    logp = log_softmax(draw.normal(size=(len(replies.contexts), 3)))
    rewards = {y: float(draw.choice([0.0, 0.2, 1.0])) for y in replies.replies}
    paths = {y: list(replies.path(y)) for y in replies.replies}
    chances = {y: math.exp(logp[paths[y], list(y)].sum()) for y in replies.replies}

    actual, total = np.zeros_like(logp), 0.0
    for leaves, chance in trees(replies, chances, branches):
        credit = iter(
            computed(
                tree_steps, step_of([(y, rewards[y]) for y in leaves]), policy=engine(branches, 2)
            )
        )
        for y in leaves:
            for at, token in zip(paths[y], y, strict=True):
                # gradient of the log-prob of a token with respect to the logits before it
                own = (np.arange(3) == token) - np.exp(logp[at])
                actual[at] += chance / len(leaves) * next(credit) * own
        total += chance
    assert total == pytest.approx(1, abs=1e-12)

    expected = np.zeros_like(logp)
    for y, chance in chances.items():
        for at, token in zip(paths[y], y, strict=True):
            expected[at] += chance * rewards[y] * ((np.arange(3) == token) - np.exp(logp[at]))
    assert np.abs(expected).max() > 1e-2
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-12)


def test_a_tree_has_less_variance_than_whole_answers_with_as_many_leaves() -> None:
    """The credit of the first token is a mean over leaves."""
    replies = Tree(vocab=3, longest=3)
    draw = np.random.default_rng(5)
    logp = log_softmax(draw.normal(size=(len(replies.contexts), 3)))
    rewards = {y: float(draw.choice([0.0, 0.2, 1.0])) for y in replies.replies}
    chances = {y: math.exp(logp[list(replies.path(y)), list(y)].sum()) for y in replies.replies}
    values = {
        begin: sum(c * rewards[y] for y, c in chances.items() if y[0] == begin)
        / sum(c for y, c in chances.items() if y[0] == begin)
        for begin in range(3)
    }
    of_answers = sum(c * (rewards[y] - values[y[0]]) ** 2 for y, c in chances.items())
    of_trees = sum(
        chance * (sum(rewards[y] for y in leaves[:2]) / 2 - values[leaves[0][0]]) ** 2
        for leaves, chance in trees(replies, chances, 2)
    )
    assert of_trees < 0.75 * of_answers


# ----------------------------------------------------------------------------------- by other code
LEAVES: list[tuple[Reply, float]] = [
    ((1, 2, 3, 4, 9), 1.0), ((1, 2, 3, 4, 8, 9), 0.0), ((1, 2, 6, 6, 9), 0.5),
    ((1, 2, 6, 6, 7), 1.0), ((1, 3, 3, 9), 0.0), ((1, 3, 3, 9), 0.0), ((1, 3, 4, 4, 4), 0.25),
    ((1, 3, 4, 4, 5, 9), 1.0),
]  # fmt: skip
"""A tree of two branches and depth three with steps of two tokens: after (1, 2) and (1, 3), then
after two more. (1, 3, 3, 9) was complete after two steps.
"""


def by_hand(credit: str) -> Array:
    """Advantages of `LEAVES`, from tables of rewards by prefix."""
    found = []
    for reply, _ in LEAVES:
        cuts = [c for c in (0, 2, 4) if c < len(reply)] + [len(reply)]
        for start, end in itertools.pairwise(cuts):

            def below(k: int, own: Reply = reply) -> list[float]:
                return [r for y, r in LEAVES if y[:k] == own[:k]]

            here, parent, root = (float(np.mean(below(k))) for k in (end, start, 0))
            if credit == "process":
                value = (here - root + here - parent) / math.sqrt(len(below(end)))
            else:
                value = 2 * (here - parent)
            found += [value] * (end - start)
    return np.array(found)


def test_tree_steps_by_other_code() -> None:
    actual = computed(tree_steps, step_of(LEAVES), policy=engine(2, 3, size=2))
    np.testing.assert_allclose(actual, by_hand("siblings"), rtol=0, atol=1e-12)


def test_tree_process_by_other_code() -> None:
    actual = computed(tree_process, step_of(LEAVES), policy=engine(2, 3, size=2))
    np.testing.assert_allclose(actual, by_hand("process"), rtol=0, atol=1e-12)


def test_groups_are_trees_of_their_own() -> None:
    """Also where their answers are the same."""
    apart = computed(tree_steps, step_of(LEAVES, LEAVES), policy=engine(2, 3, size=2))
    np.testing.assert_allclose(apart, np.tile(by_hand("siblings"), 2), rtol=0, atol=1e-12)


def test_a_leaf_without_siblings_gets_nothing() -> None:
    assert computed(tree_steps, step_of(LEAVES[:1]), policy=engine(2, 3, size=2)) == [0.0] * 5


class Table:
    """Values of places: the sum of the tokens so far, in hundredths."""

    def values_at(
        self, rows: Sequence[Sequence[int]], places: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        return [
            [sum(row[:place]) / 100 for place in own] for row, own in zip(rows, places, strict=True)
        ]


def test_value_steps_by_hand() -> None:
    actual = computed(
        value_steps.configure(by="tokens", size=2),
        step_of([((1, 2, 3, 4, 5), 1.0), ((6,), 0.5)]),
        policy=policy(),
        value=Table(),
    )
    expected = [0.03, 0.03, 0.07, 0.07, 1 - 0.24, 0.5 - 0.14]
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-12)


# ---------------------------------------------------------------------------------------- refusals
def test_an_engine_without_trees_is_refused() -> None:
    with pytest.raises(UsageError, match="'scripted' samples no trees; set engine.use = 'tree'"):
        computed(tree_steps, step_of(LEAVES), policy=policy())


def test_answers_of_several_turns_are_refused() -> None:
    (sample,) = step_of(LEAVES[:1]).batch.samples
    talk = Sample(sequences=sample.sequences, outcome=1.0, group=0, turns=(2, 3))
    with pytest.raises(UsageError, match="has several turns"):
        computed(
            tree_steps,
            Step(batch=Batch(samples=(talk,)), rewards=(1.0,)),
            policy=engine(2, 3, size=2),
        )


def test_a_kl_term_in_the_reward_is_refused() -> None:
    from quintain_algorithms.tree_search import TREE_CREDIT

    with pytest.raises(UsageError, match="belongs to single tokens"):
        TREE_CREDIT.replace(kl={"where": "reward", "coefficient": 0.1})


def test_metrics_count_each_step_once() -> None:
    values, metrics = tree_steps.with_services({"policy": engine(2, 3, size=2)})(step_of(LEAVES))
    assert values.dtype == torch.float64
    assert metrics == {"tree.steps": 12.0, "tree.tokens": 20.0}
