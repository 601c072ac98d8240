"""Who is compared with whom, and whose tokens train: both players of self-play, opponents and
customers.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, AsyncExitStack
from itertools import islice
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from quintain import Message, Sampled, Sampling, TokenEngine, Weights
from quintain.engine import EmbeddedEngine
from quintain.learning.batch import batch_of
from quintain.learning.pieces.advantages import Step, centre
from quintain.registry.pieces import find
from quintain.rollouts.runner import RolloutContext, RolloutRequest, run_groups
from quintain.types.rollout import TerminationKind, trained
from quintain_authoring import ScriptedEngine, run_episode
from quintain_env_games import Duel, Guess, Maze, Returns
from quintain_env_games.duel import legal, piles_of
from quintain_env_games.guess import Secret, bounds, guess_of
from quintain_env_games.maze import Labyrinth, after
from quintain_starter.source import untrained

SMALL = {"hidden": 32, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 16, "intermediate": 64}


class Recording(TokenEngine):
    """Another engine, and the ids of every reply that it sampled."""

    def __init__(self, engine: TokenEngine) -> None:
        self.engine = engine
        self.tokenizer, self.context, self.name = engine.tokenizer, engine.context, engine.name
        self.replies: list[tuple[int, ...]] = []

    def register(self) -> AbstractContextManager[None]:
        return self.engine.register()

    async def sample(self, ids: Sequence[int], sampling: Sampling) -> Sampled:
        sampled = await self.engine.sample(ids, sampling)
        self.replies.append(tuple(sampled.ids))
        return sampled

    async def score(
        self, ids: Sequence[int], start: int, temperature: float = 1.0
    ) -> Sequence[float]:
        return await self.engine.score(ids, start, temperature)

    async def update(self, weights: Weights) -> int:
        return await self.engine.update(weights)


def test_each_player_is_compared_with_its_own_games() -> None:
    """A player's baseline is the mean of that player over the group's games, so the advantages of a
    game cancel.

    A baseline over both players would be 1/2 in every group, and would credit the first player of
    an easy position with what the position, not the move, earned.
    """
    size = 6
    context = RolloutContext(engine=ScriptedEngine(replies=any_move))
    played = asyncio.run(run_groups(requests(Duel(opponent=None), 8, size), context))
    batch = batch_of(played, temperature=1.0, max_tokens=8)
    players = [(rollout.group, player) for rollout, player, _ in trained(played)]
    assert len(batch.samples) == 2 * 8 * size
    assert len(batch.groups) == 16
    shares = set()
    for indices in batch.groups:
        assert len(indices) == size
        assert len({players[i] for i in indices}) == 1
        shares.add(math.fsum(batch.samples[i].total for i in indices) / size)
    assert len(shares) > 2, (
        "players that win as often in every position would not tell the two baselines apart"
    )

    advantage: dict[tuple[int, int, str], float] = {}
    for indices in batch.groups:
        group, player = players[indices[0]]
        for n, value in enumerate(centre([batch.samples[i].total for i in indices], 1e-9)):
            advantage[group, n, player] = value
    for group, n, player in advantage:
        assert advantage[group, n, ""] == pytest.approx(-advantage[group, n, "second"]), player
    assert any(abs(value) > 0.1 for value in advantage.values())


@pytest.mark.parametrize("world", ["duel", "returns"])
def test_what_another_engine_says_does_not_train(world: str) -> None:
    """The trained ids are those that the policy sampled; the words of the opponent, or of a
    customer whom an embedded engine plays, are in the policy's prompts only.
    """

    async def check() -> None:
        async with AsyncExitStack() as stack:
            policy, partner = [Recording(ScriptedEngine(replies=any_move)) for _ in range(2)]
            if world == "returns":
                models = [untrained(seed, **SMALL) for seed in (0, 1)]
                engines = [
                    await stack.enter_async_context(
                        EmbeddedEngine.sharing(model.module, model.tokenizer, slots=16)
                    )
                    for model in models
                ]
                policy, partner = map(Recording, engines)
            environment: Any = (
                Returns(customer=partner)
                if world == "returns"
                else Duel(rival="engine", opponent=partner)
            )
            sampling = Sampling(max_tokens=6)
            played = await run_groups(
                requests(environment, 3, 4), RolloutContext(engine=policy, sampling=sampling)
            )
            rollouts = [rollout for group in played for rollout in group.rollouts]
            assert all(rollout.valid and set(rollout.transcripts) == {""} for rollout in rollouts)

            sequences = [
                s
                for sample in batch_of(played, temperature=1.0, max_tokens=6).samples
                for s in sample.sequences
            ]
            trained_ids = sorted(turn for s in sequences for turn in turns_of(s.ids, s.mask))
            assert partner.replies
            assert sorted(policy.replies) == trained_ids
            for s in sequences:
                pairs = zip(await policy.score(s.ids, 1), s.logps[1:], s.mask[1:], strict=True)
                assert all(not trains or a == pytest.approx(b, abs=1e-4) for a, b, trains in pairs)
            for rollout in rollouts:
                heard = "\n".join(m.content for m in rollout.messages if m.role == "user")
                partners = [turn for turn in rollout.turns if turn.player]
                assert all(turn.tokens == 0 for turn in partners)
                assert world == "duel" or (
                    partners and all(turn.reply in heard for turn in partners)
                )

    asyncio.run(check())


def test_a_partner_that_runs_out_of_context_is_no_failure_of_the_policy() -> None:
    """The policy's episode is not scored as truncated: it is an error, which is counted and does
    not train.
    """
    environment = Returns(customer=ScriptedEngine(replies="Hello.", context=300))
    played = run_episode(environment, next(iter(environment.tasks("dev"))), "Order? " * 20)
    assert played.termination.kind is TerminationKind.ENVIRONMENT_ERROR
    assert "context of scripted" in played.termination.reason


def halves_or_not(task: Secret, messages: Sequence[Message]) -> tuple[str, str]:
    """The good and the bad guess of the demonstrations."""
    low, high = bounds(task, [guess_of(m.content) for m in messages if m.role == "assistant"])
    return str((low + high) // 2), str(low)


def nearer_or_not(task: Labyrinth, messages: Sequence[Message]) -> tuple[str, str]:
    """The best move, and the first open way."""
    cell = task.start
    for m in messages:
        if m.role == "assistant":
            cell = after(cell, m.content)
    distances = task.distances()
    return min(task.ways(cell), key=lambda way: distances[after(cell, way)]), task.ways(cell)[0]


@pytest.mark.parametrize(
    ("environment", "choices"),
    [(Guess(), halves_or_not), pytest.param(Maze(), nearer_or_not, marks=pytest.mark.slow)],
)
def test_credit_per_turn_has_the_same_mean_and_less_noise(environment: Any, choices: Any) -> None:
    """A policy of one parameter makes the good reply of two with probability 1/2 at every turn.
    Over groups of the same tasks, `turn_level` and `leave_one_out` estimate the same gradient; the
    former varies less from group to group.
    """
    good = 0.5

    class Policy(ScriptedEngine):
        def for_task(self, task: Any) -> ScriptedEngine:
            return ScriptedEngine(
                replies=lambda messages, rng: choices(task, messages)[rng.random() >= good]
            )

    groups_per_task, size = 12, 8
    tasks = islice(environment.tasks("train"), 10)
    visits = [(task, visit) for task in tasks for visit in range(groups_per_task)]
    asked = [
        RolloutRequest(environment=environment, task=task, group_size=size, visit=visit, index=i)
        for i, (task, visit) in enumerate(visits)
    ]
    played = asyncio.run(run_groups(asked, RolloutContext(engine=Policy())))
    batch = batch_of(played, temperature=1.0, max_tokens=8)
    step = Step(batch=batch, rewards=tuple(sample.total for sample in batch.samples))
    slopes = []  # of the log-probability of each turn
    for rollout in (rollout for group in played for rollout in group.rollouts):
        said = [i for i, m in enumerate(rollout.messages) if m.role == "assistant"]
        pairs = [
            (choices(rollout.task, rollout.messages[:i]), rollout.messages[i].content) for i in said
        ]
        slopes.append(
            [0.0 if a == b else 1 - good if text == a else -good for (a, b), text in pairs]
        )

    gradients: dict[str, Tensor] = {}
    for name in ("turn_level", "leave_one_out"):
        advantage = torch.as_tensor(find("advantage", name)(step), dtype=torch.float64)
        if len(advantage) == len(batch.samples):
            advantage = advantage.repeat_interleave(
                torch.tensor([sum(sample.turns) for sample in batch.samples])
            )
        turns = iter(advantage.split([n for sample in batch.samples for n in sample.turns]))
        estimates = [
            sum(float(next(turns)[0]) * slope for slope in of_sample) for of_sample in slopes
        ]
        gradients[name] = (
            torch.tensor(estimates, dtype=torch.float64).view(-1, groups_per_task, size).mean(-1)
        )
    difference = gradients["turn_level"] - gradients["leave_one_out"]
    assert abs(difference.mean()) < 4 * difference.std() / difference.numel() ** 0.5
    noise = {name: float(of_group.var(1).mean()) for name, of_group in gradients.items()}
    assert gradients["turn_level"].mean() > 0.1
    assert noise["turn_level"] < 0.9 * noise["leave_one_out"], noise


def any_move(messages: Sequence[Message], rng: Random) -> str:
    """Any legal move of Nim."""
    return rng.choice(legal(piles_of(messages)))


def requests(environment: Any, groups: int, size: int) -> list[RolloutRequest]:
    """Groups of tasks of ``train``, without games that one move can end: there the second player
    may have no turn.
    """
    tasks = islice(
        (t for t in environment.tasks("train") if 0 not in getattr(t, "piles", ())), groups
    )
    return [
        RolloutRequest(environment=environment, task=t, group_size=size, index=i)
        for i, t in enumerate(tasks)
    ]


def turns_of(ids: Sequence[int], mask: Sequence[bool]) -> list[tuple[int, ...]]:
    """The stretches of *ids* under *mask*."""
    out: list[tuple[int, ...]] = []
    previous = False
    for token, trains in zip(ids, mask, strict=True):
        if trains and previous:
            out[-1] = (*out[-1], token)
        elif trains:
            out.append((token,))
        previous = bool(trains)
    return out
