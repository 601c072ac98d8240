"""Filling a batch: both ways to resample end with the batch that trying one task after another
would give.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintain.console.screen import Screen
from quintain.engine.embedded import EmbeddedEngine
from quintain.errors import InfrastructureError, NoTasksError, RunError
from quintain.interfaces.agent import Agent, Limits
from quintain.interfaces.algorithm import GroupStats
from quintain.interfaces.environment import Environment
from quintain.interfaces.reward import reward
from quintain.interfaces.sampling_plan import SamplingPlan
from quintain.learning import ALGORITHMS
from quintain.learning.pieces.group_filter import varied
from quintain.models.tokenizer import HFTokenizer
from quintain.rollouts.runner import RolloutContext, RolloutRequest
from quintain.run.collect import Collected, Collector
from quintain.tasks.mixture import Mixture
from quintain.types.rollout import Group, Rollout
from quintain.types.sampling import Sampling, derived_seed
from quintain.types.task import Task

from ...lanes import examples
from ..models.tiny import byte_tokenizer, tiny_model
from ..rollouts.engines import Speaker


def outcome(seed: int) -> float:
    return float(Random(seed).random() < 0.25)


@reward(range=(0, 1))
async def one_in_four(rollout: Rollout[Task, Any]) -> float:
    """By the seed of the rollout; some outcomes come late."""
    await asyncio.sleep(Random(rollout.seed + 1).random() / 1000)
    return outcome(rollout.seed)


@reward(range=(0, 1))
def always(rollout: Rollout[Task, Any]) -> float:
    return 1.0


class Dice(Environment[Task, Any]):
    """A group of two has both kinds of outcome about a third of the time."""

    reward = one_in_four

    def tasks(self, split: str) -> Iterator[Task]:
        return (Task(prompt=f"task {i}") for i in itertools.count())


def requests(group_size: int, tasks: int | None = None) -> Iterator[RolloutRequest]:
    """What a curriculum would give, task after task."""
    environment = Dice()
    for index, task in enumerate(itertools.islice(environment.tasks("train"), tasks)):
        yield RolloutRequest(environment=environment, task=task, group_size=group_size, index=index)
    raise NoTasksError("no task is left")


def rejection(group: Group[Any, Any]) -> str:
    outcomes = tuple(r.outcome.total if r.outcome else 0.0 for r in group.valid)
    if not outcomes:
        return "too few valid samples"
    return str(
        varied(GroupStats(outcomes=outcomes, totals=outcomes, requested=len(group.rollouts)))
    )


class Given(Collector):
    """Draws the requests that it is given, and rejects groups whose outcomes agree."""

    requests: Iterator[RolloutRequest]

    def next_request(self) -> RolloutRequest:
        return next(self.requests)

    def rejection(self, group: Group[Any, Any]) -> str:
        return rejection(group)


def collected(
    plan: SamplingPlan, groups: int, context: RolloutContext, given: Iterator[RolloutRequest]
) -> Collected:
    collector = Given(
        algorithm=ALGORITHMS["rloo"].replace(plan=plan),
        curriculum=Mixture([Dice()], seed=0),
        environments=(),
        names=(),
        rollout_context=context,
        groups=groups,
        group_size=1,
        screen=Screen(quiet=True),
    )
    collector.requests = given
    return asyncio.run(collector.collect(0))


def filled(
    plan: SamplingPlan,
    groups: int,
    group_size: int,
    engine: Any = None,
    *,
    tasks: int | None = None,
    **context: Any,
) -> Collected:
    told = RolloutContext(
        engine=engine or Speaker(lambda prompt, sampling: "yes", jitter=0), **context
    )
    return collected(plan, groups, told, requests(group_size, tasks))


def one_by_one(
    seed: int, groups: int, group_size: int, attempts: int
) -> tuple[list[int], list[int]]:
    """Indices of the groups tried and accepted by the sequential procedure, computed from the seeds
    alone.
    """
    tried: list[int] = []
    accepted: list[int] = []
    for index in range(groups * attempts):
        if len(accepted) == groups:
            break
        task = Task(prompt=f"task {index}")
        tried.append(index)
        if (
            len({outcome(derived_seed(seed, task.id, 0, sample)) for sample in range(group_size)})
            > 1
        ):
            accepted.append(index)
    return tried, accepted


def indices(groups: Sequence[Group[Any, Any]]) -> list[int]:
    return [group.index for group in groups]


@given(
    seed=st.integers(0, 10**6),
    groups=st.integers(1, 6),
    group_size=st.integers(2, 3),
    concurrency=st.integers(1, 20),
    attempts=st.integers(1, 6),
    jitter=st.integers(0, 100),
)
@examples(30)
def test_both_ways_to_resample_give_the_batch_of_trying_one_by_one(
    seed: int, groups: int, group_size: int, concurrency: int, attempts: int, jitter: int
) -> None:
    """Whatever is refused and whatever ends first: the same groups are tried, and the same ones
    accepted, in order.
    """
    tried, accepted = one_by_one(seed, groups, group_size, attempts)
    for resample in ("dynamic", "active"):
        plan = SamplingPlan(resample=resample, attempts=attempts)
        engine = Speaker(lambda prompt, sampling: "yes", jitter=jitter)
        found = filled(plan, groups, group_size, engine, run_seed=seed, concurrency=concurrency)

        assert tried == indices(found.tried), resample
        assert accepted == indices(found.accepted), resample
        assert len(tried) - len(accepted) == found.rejected.total()
        assert (len(accepted) < groups) == bool(found.cause)


def test_without_resampling_rejected_groups_are_missing() -> None:
    """One round, as many tasks as the batch has groups."""
    found = filled(SamplingPlan(), 8, 2)
    tried, _ = one_by_one(0, 8, 2, 1)

    assert tried == indices(found.tried)
    assert {
        "groups.accepted": len(found.accepted),
        "groups.missing": 8 - len(found.accepted),
        "groups.rounds": 1,
    } == (found.metrics())
    assert {"all outcomes equal"} == set(found.rejected)
    assert 0 < len(found.accepted) < 8


@pytest.mark.parametrize("resample", ["dynamic", "active"])
def test_a_step_stops_refilling_and_trains_on_what_it_has(resample: Any) -> None:
    """No more than attempts batches of groups are tried."""
    seed = next(s for s in itertools.count() if 0 < len(one_by_one(s, 4, 2, 2)[1]) < 4)
    found = filled(SamplingPlan(resample=resample, attempts=2), 4, 2, run_seed=seed)

    assert list(range(8)) == indices(found.tried)
    assert one_by_one(seed, 4, 2, 2)[1] == indices(found.accepted)
    assert found.cause == "8 groups were tried, the limit of plan.attempts"


@pytest.mark.parametrize("resample", ["dynamic", "active"])
def test_running_out_of_tasks_loses_nothing_that_was_accepted(resample: Any) -> None:
    """The step learns from what was accepted before; without any task at all there is an error."""

    def short(seed: int) -> bool:
        return (
            one_by_one(seed, 5, 2, 10)[0] != (first := one_by_one(seed, 7, 2, 1))[0]
            and 0 < len(first[1]) < 5
        )

    found = filled(
        SamplingPlan(resample=resample),
        5,
        2,
        tasks=7,
        run_seed=next(filter(short, itertools.count())),
    )

    assert list(range(7)) == indices(found.tried)
    assert 0 < len(found.accepted) < 5
    assert found.cause == "no task is left"
    with pytest.raises(NoTasksError):
        filled(SamplingPlan(resample=resample), 5, 2, tasks=0)


@pytest.mark.parametrize("resample", ["none", "dynamic", "active"])
def test_a_batch_of_failures_ends_the_step_at_once(resample: Any) -> None:
    """Where nothing but failures of ours comes, no further batch is tried."""
    calls = itertools.count()

    def fail(prompt: str, sampling: Sampling) -> Exception:
        next(calls)
        return InfrastructureError("down")

    with pytest.raises(
        RunError,
        match=r"all 6 episodes of the step failed, 6 of them with infrastructure_error: down",
    ):
        filled(SamplingPlan(resample=resample), 3, 2, Speaker(fail), retries=0, concurrency=2)
    assert next(calls) <= 6 + (2 if resample == "active" else 0)


def test_active_sampling_keeps_all_workers_busy() -> None:
    """The samples of a group that takes another's place are tried side by side, and never more than
    allowed.
    """
    live, seen = 0, Counter[int]()

    class Watched(Speaker):
        async def sample(self, ids: Sequence[int], sampling: Sampling) -> Any:
            nonlocal live
            live += 1
            seen[live] += 1
            try:
                return await super().sample(ids, sampling)
            finally:
                live -= 1

    seed = next(s for s in itertools.count() if len(one_by_one(s, 1, 4, 10)[0]) > 2)
    filled(
        SamplingPlan(resample="active"),
        1,
        4,
        Watched(lambda prompt, sampling: "yes", jitter=1),
        run_seed=seed,
        concurrency=3,
    )
    rounds = len(one_by_one(seed, 1, 4, 10)[0])

    assert max(seen) == 3
    assert rounds <= seen[3]


class Together(Speaker):
    """Steps as soon as all who attend have asked, and notes how many those are."""

    def __init__(self) -> None:
        super().__init__(lambda prompt, sampling: "yes")
        self.live = 0
        self.asked: list[asyncio.Event] = []
        self.steps: list[int] = []

    @contextmanager
    def register(self) -> Iterator[None]:
        self.live += 1
        try:
            yield
        finally:
            self.live -= 1
            self._step()

    async def sample(self, ids: Sequence[int], sampling: Sampling) -> Any:
        self.asked.append(done := asyncio.Event())
        asyncio.get_running_loop().call_soon(self._step)
        await done.wait()
        return await super().sample(ids, sampling)

    def _step(self) -> None:
        if len(self.asked) >= max(self.live, 1):
            self.steps.append(len(self.asked))
            for done in self.asked:
                done.set()
            self.asked = []


def test_all_samples_of_a_group_that_takes_anothers_place_are_there_from_the_start() -> None:
    """Where two groups end together and are rejected, no step is taken between the arrivals of
    those that follow.
    """
    engine = Together()
    begun = Counter[str]()

    class Always(Dice):
        reward = always
        limits = Limits(turns=2)

        async def rollout(self, task: Task, agent: Agent) -> None:
            begun[task.id] += 1  # the second sample of each group takes a turn more
            for _ in range(begun[task.id]):
                agent.user("go")
                await agent.turn()

    environment = Always()
    given = (
        RolloutRequest(environment=environment, task=t, group_size=2, index=i)
        for i, t in enumerate(environment.tasks("train"))
    )
    plan = SamplingPlan(resample="active", attempts=4)
    found = collected(plan, 2, RolloutContext(engine=engine), given)

    assert len(found.tried) == 8
    assert engine.steps == [4, 2] * 4


def test_what_a_reproducible_engine_samples_does_not_depend_on_how_long_rewards_take() -> None:
    """Also where a rejected group makes room for another: the same tokens and log-probs, bit for
    bit.
    """
    slow = Random(0)

    @reward(range=(0, 1))
    async def timed(rollout: Rollout[Task, Any]) -> float:
        await asyncio.sleep(slow.random() / 50 if delays else 0)
        return float(len(rollout.reply.encode()) % 2)

    class Timed(Dice):
        reward = timed

    def played() -> list[Any]:
        environment = Timed()
        given = (
            RolloutRequest(environment=environment, task=t, group_size=3, index=i)
            for i, t in enumerate(environment.tasks("train"))
        )
        engine = EmbeddedEngine.sharing(
            tiny_model(context=128), HFTokenizer(byte_tokenizer()), slots=16
        )
        told = RolloutContext(engine=engine, sampling=Sampling(max_tokens=12), concurrency=7)
        found = collected(SamplingPlan(resample="active"), 4, told, given)
        assert len(found.tried) > 4  # else nothing was refilled
        return [(g.index, r.transcripts[""].branches) for g in found.tried for r in g.rollouts]

    delays = False
    quick = played()
    delays = True
    assert quick == played()


def test_group_filter_may_look_at_totals_where_outcomes_agree() -> None:
    """Length rewards still act on solved groups when asked."""

    def ask(outcomes: tuple[float, ...], totals: tuple[float, ...], **options: Any) -> str:
        return str(
            varied.configure(**options)(GroupStats(outcomes=outcomes, totals=totals, requested=2))
        )

    assert ask((1.0, 1.0), (1.0, 0.7)) == "all outcomes equal"
    assert ask((1.0, 1.0), (1.0, 0.7), total=True) == ""
    assert ask((1.0, 1.0), (0.7, 0.7), total=True) == "all rewards equal"
    assert ask((1.0, 0.0), (0.7, 0.7), total=True) == ""
    assert ask((1.0,), (0.7,), total=True) == "1 of 2 samples valid, 2 needed"
