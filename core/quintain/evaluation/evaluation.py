"""Measures a policy on the tasks of one split: pass@1, pass@k, cons@k with intervals, and the
failures.

A rollout that failed through our fault (a dead server, a crashed reward) is no wrong answer: it is
left out of every estimate and counted apart.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from statistics import fmean
from typing import Any

from ..errors import EnvironmentFault, NoTasksError, UsageError, did_you_mean
from ..interfaces.engine import Engine
from ..interfaces.environment import SPLITS, Environment, yielded
from ..interfaces.reward import RewardContext
from ..interfaces.rollout_request import RolloutRequest
from ..rollouts.runner import Play, RolloutContext, run_groups
from ..rollouts.scoring import score_group
from ..types.rollout import SUCCESS, AnyGroup, AnyRollout, Group, reaches
from ..types.sampling import Sampling
from ..types.task import Task
from .answers import final_answer
from .estimates import Estimate, cons_at_k, default_ks, mean, pass_at_k, proportion

_log = logging.getLogger(__name__)
AnswerOf = Callable[[AnyRollout], str | None]

MOST_TASKS = 50_000
"""A split with more tasks than this counts as endless: the caller must say how many to take."""

MOST_SAMPLES = 65_536
COMPARED = 100  # tasks of a split that are compared with those of another call, or of another split

YOUNG_OBJECTS = 20_000
"""New objects between two collections while episodes run; Python's default is 700."""


@dataclass(frozen=True, kw_only=True)
class TaskResult:
    """The result of one task: of *samples* valid rollouts *right* succeeded; *failed* more failed
    through our fault.

    ``answers`` are the answers of the valid rollouts (``None``: none found) and whether each was
    right; ``reward`` is the mean outcome.
    """

    id: str
    level: float | None
    samples: int
    right: int
    failed: int
    reward: float
    answers: tuple[tuple[str | None, float], ...]


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The rollouts of an evaluation and its estimates, which are ``None`` where no rollout is
    valid.

    Attributes:
        groups: one per task, in the order of the tasks.
        samples: rollouts asked for per task.
        ks: the k of pass@k and cons@k.
        success: outcome from which on a rollout counts as right.
        planned: rollouts that were to be made; there are fewer after an interruption.
    """

    environment: str
    split: str
    engine: str
    groups: tuple[AnyGroup, ...]
    samples: int
    sampling: Sampling
    seed: int
    seconds: float
    ks: tuple[int, ...]
    success: float = SUCCESS
    planned: int = 0
    answer_of: AnswerOf = field(default=lambda rollout: final_answer(rollout.reply), repr=False)

    @cached_property
    def results(self) -> tuple[TaskResult, ...]:
        """Per task, in order."""
        return tuple(self._result(g) for g in self.groups)

    def _result(self, group: AnyGroup) -> TaskResult:
        # of the policy's own player
        outcomes = [r.scores_of("")[0] for r in group.valid]
        answers = tuple(
            (self.answer_of(r), float(reaches(v, self.success)))
            for r, v in zip(group.valid, outcomes, strict=True)
        )
        return TaskResult(
            id=group.task.id,
            level=group.task.level,
            samples=len(outcomes),
            right=sum(right > 0 for _, right in answers),
            failed=len(group.rollouts) - len(outcomes),
            reward=sum(outcomes) / len(outcomes) if outcomes else 0.0,
            answers=answers,
        )

    @property
    def accuracy(self) -> Estimate | None:
        """pass@1."""
        return self.pass_at(1)

    def pass_at(self, k: int) -> Estimate | None:
        """Return the unbiased pass@k over the tasks with at least *k* valid rollouts."""
        return self._over_tasks(k, lambda t: pass_at_k(t.samples, t.right, k))

    def cons_at(self, k: int) -> Estimate | None:
        """Return the unbiased cons@k (plurality vote of *k*) over the tasks with at least *k* valid
        rollouts.
        """
        return self._over_tasks(k, lambda t: cons_at_k(t.answers, k))

    def _over_tasks(self, k: int, value: Callable[[TaskResult], float]) -> Estimate | None:
        enough = [t for t in self.results if t.samples >= k]
        return (
            proportion([value(t) for t in enough], [t.samples for t in enough], k=k)
            if enough
            else None
        )

    @property
    def reward(self) -> Estimate | None:
        """Mean outcome."""
        tried = [t for t in self.results if t.samples]
        return mean([t.reward for t in tried], [t.samples for t in tried]) if tried else None

    @property
    def yardstick(self) -> Estimate | None:
        """Mean of the score that is reported and never trains, over the rollouts that have it;
        ``None`` without one.

        The interval is Wilson's where every score is 0 or 1, as that of accuracy, else the normal
        one between tasks.
        """
        scores = [[r.yardstick.total for r in g.valid if r.yardstick] for g in self.groups]
        measured = [of_task for of_task in scores if of_task]
        if not measured:
            return None
        estimate = (
            proportion if all(s in (0.0, 1.0) for of_task in measured for s in of_task) else mean
        )
        return estimate(
            [fmean(of_task) for of_task in measured], [len(of_task) for of_task in measured]
        )

    @property
    def yardstick_missing(self) -> float | None:
        """Share of the valid rollouts without a yardstick, where some have one: it failed on
        these.
        """
        valid = [r for r in self.rollouts if r.valid]
        measured = sum(r.yardstick is not None for r in valid)
        return 1 - measured / len(valid) if measured else None

    @cached_property
    def rollouts(self) -> tuple[AnyRollout, ...]:
        """All of them, failures included."""
        return tuple(r for g in self.groups for r in g.rollouts)

    @property
    def interrupted(self) -> bool:
        """Whether rollouts are missing; short episodes end first, so the estimates favour them."""
        return len(self.rollouts) < self.planned

    @property
    def failed(self) -> float:
        """Share of the rollouts that failed through our fault."""
        return sum(not r.valid for r in self.rollouts) / len(self.rollouts)

    @property
    def without_turn(self) -> int:
        """Valid rollouts in which nobody took a turn, so that their scores are not the policy's
        own.
        """
        return sum(r.valid and not r.turns for r in self.rollouts)

    @property
    def reasons(self) -> dict[str, int]:
        """Why rollouts failed, and how often, the most frequent first."""
        failures = (r.termination for r in self.rollouts if not r.valid)
        return dict(Counter(f"{e.kind.value}: {e.reason}" for e in failures).most_common())

    @property
    def tokens(self) -> float:
        """Mean number of tokens that the policy sampled per valid rollout."""
        return fmean([float(r.tokens) for r in self.rollouts if r.valid] or [0.0])

    def estimates(self) -> dict[str, Estimate | None]:
        """Return the estimates by name: ``pass@k`` for each k, then ``cons@k`` for each k above 1."""
        passes = {f"pass@{k}": self.pass_at(k) for k in self.ks}
        return passes | {f"cons@{k}": self.cons_at(k) for k in self.ks if k > 1}


async def evaluate(
    environment: Environment[Any, Any],
    engine: Engine,
    *,
    split: str = "test",
    tasks: int | Sequence[Task] | None = None,
    samples: int = 1,
    sampling: Sampling | None = None,
    ks: Sequence[int] = (),
    concurrency: int | None = None,
    retries: int = 1,
    seed: int = 0,
    name: str = "",
    system: str = "",
    success: float = SUCCESS,
    services: Mapping[str, Any] | None = None,
    answer_of: AnswerOf | None = None,
    play: Play | None = None,
    progress: Callable[[AnyRollout], None] | None = None,
    partial: bool = False,
) -> Evaluation:
    """Run *samples* episodes on each task and score them.

    The same seed gives the same episodes (as far as the engine is reproducible), whatever else
    runs.

    Args:
        engine: started.
        tasks: a number takes the first tasks of the split, the same for every policy; or the tasks
            themselves; ``None`` is all.
        sampling: by default greedy for one sample and temperature 1 for several.
        ks: of pass@k and cons@k; 1 is always among them. By default the powers of two up to
            *samples*.
        concurrency: episodes at once; by default the engine's own number.
        retries: further tries of an episode that failed through our fault.
        name, system: of the environment, and the system message that replaces its own.
        success: outcome from which on a rollout counts as right.
        services: by slot, started.
        answer_of: the answer that a rollout votes for in cons@k, ``None`` for none; by default
            `final_answer` of its reply.
        play: plays the episodes, in place of this process.
        progress: called with every rollout as it is scored.
        partial: if the task is cancelled, return what is scored by then, unless that is nothing.

    Raises:
        NoTasksError: the split has none.
        UsageError: the split is endless and *tasks* is not given; a k above *samples*; an
            environment without a reward.
    """
    name = name or type(environment).__name__
    if getattr(environment, "reward", None) is None:
        raise UsageError(
            f"environment {name!r} has no reward: set `reward = ...` in its class, or give an "
            f"expression"
        )
    if tasks is None or isinstance(tasks, int):
        tasks = tasks_of(environment, split, tasks, name=name)
    sampling, ks = (
        sampling or Sampling(temperature=0.0 if samples == 1 else 1.0),
        _checked_ks(ks, samples),
    )
    context = RolloutContext(
        engine=engine,
        sampling=sampling,
        services=services or {},
        run_seed=seed,
        concurrency=concurrency or engine.concurrency or RolloutContext.concurrency,
        retries=retries,
        play=play,
    )
    # a task that is listed twice draws other samples the second time
    seen: Counter[str] = Counter()
    requests: list[RolloutRequest] = []
    for index, task in enumerate(tasks):
        requests.append(
            RolloutRequest(
                environment=environment,
                task=task,
                group_size=samples,
                name=name,
                index=index,
                visit=seen[task.id],
                system=system,
            )
        )
        seen[task.id] += 1
    scored: dict[int, list[AnyRollout]] = {}

    def on_rollout(rollout: AnyRollout) -> None:
        scored.setdefault(rollout.group, []).append(rollout)
        if progress is not None:
            progress(rollout)

    start = time.monotonic()
    try:
        with frozen_heap():
            groups = await run_groups(requests, context, on_rollout)
    except asyncio.CancelledError:
        compares = environment.reward.group  # the samples of a complete group
        done = {i: g for i, g in sorted(scored.items()) if len(g) == samples or not compares}
        if not partial or not done:
            raise
        groups = []
        for index, rollouts in done.items():
            ordered = tuple(sorted(rollouts, key=lambda rollout: rollout.sample))
            group = Group(
                task=requests[index].task, rollouts=ordered, environment=name, index=index
            )
            groups.append(
                await score_group(
                    environment, group, RewardContext(services=context.services), retries
                )
            )
    result = Evaluation(
        environment=name,
        split=split,
        engine=engine.name,
        groups=tuple(groups),
        samples=samples,
        sampling=sampling,
        seed=seed,
        seconds=time.monotonic() - start,
        ks=ks,
        success=success,
        planned=len(requests) * samples,
        **({"answer_of": answer_of} if answer_of else {}),
    )
    if result.without_turn:
        _log.warning(
            "%s %s: in %d of %d rollouts the policy was never asked, so their scores are not its "
            "own; an agent has to send its requests to the address that it is given",
            name,
            split,
            result.without_turn,
            len(result.rollouts),
        )
    return result


@contextmanager
def frozen_heap() -> Iterator[None]:
    """Let the garbage collector leave older objects alone, and look at new ones less often, inside
    the block.

    Episodes make records by the million and free them without cycles: by default half of their time
    is the collector's.
    """
    thresholds = gc.get_threshold()
    # The caller, or a block around this one, has seen to it. Python counts frozen objects one by
    # one, 0.1 s for a million, so this looks at the thresholds first.
    if not 0 < thresholds[0] < YOUNG_OBJECTS or gc.get_freeze_count():
        yield
        return
    gc.freeze()
    # A look at all objects stops the event loop, for a second with 100,000 episodes.
    gc.set_threshold(YOUNG_OBJECTS, thresholds[1], max(100, thresholds[2]))
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


def tasks_of(
    environment: Environment[Any, Any], split: str, count: int | None = None, *, name: str = ""
) -> list[Task]:
    """Return the first *count* tasks of a split, or all of a finite one.

    Raises:
        NoTasksError, UsageError: as `evaluate`.
        EnvironmentFault: the environment's own code failed.
    """
    name = name or type(environment).__name__
    if split not in SPLITS:
        raise UsageError(f"unknown split {split!r}{did_you_mean(split, SPLITS)}")
    if count is not None and count < 1:
        raise UsageError(f"{count} tasks were asked for; expected at least 1")
    tasks = list(
        islice(
            yielded(environment, "tasks", split, name), MOST_TASKS + 1 if count is None else count
        )
    )
    if not tasks:
        others = [
            s
            for s in SPLITS
            if s != split and any(True for _ in yielded(environment, "tasks", s, name))
        ]
        hint = (
            f"it has some for {' and '.join(others)}"
            if others
            else "nor for any other; see its `tasks` method"
        )
        raise NoTasksError(f"environment {name!r} yields no tasks for the split {split!r}; {hint}")
    if count is None and len(tasks) > MOST_TASKS:
        raise UsageError(
            f"the split {split!r} of {name!r} has over {MOST_TASKS} tasks, or no end: say how many "
            f"with --tasks N"
        )
    return tasks


def first_tasks(
    environment: Environment[Any, Any], split: str, name: str, count: int = COMPARED
) -> list[Task]:
    """Return the first *count* of *split*; warn if they are those of ``train``; raises as
    `tasks_of`, also if they change.
    """
    compared = min(count, COMPARED)
    first, again = (tasks_of(environment, split, n, name=name) for n in (count, compared))
    if [task.id for task in first[: len(again)]] != [task.id for task in again]:
        raise EnvironmentFault(
            f"environment {name!r}: the tasks of {split!r} change from call to call, so no run "
            "could be resumed or repeated; draw random tasks with a generator that is seeded by "
            "the fields and the split"
        )
    if (
        split != "train"
        and len(again) > 1
        and again == [*islice(yielded(environment, "tasks", "train"), compared)]
    ):
        _log.warning(
            "environment %r: the splits 'train' and %r are equal: nothing is held out", name, split
        )
    return first


def _checked_ks(ks: Sequence[int], samples: int) -> tuple[int, ...]:
    if not 1 <= samples <= MOST_SAMPLES:
        raise UsageError(
            f"{samples} samples per task were asked for; expected 1 to {MOST_SAMPLES:,}"
        )
    if wrong := [k for k in ks if not 1 <= k <= samples]:
        raise UsageError(
            f"k = {wrong[0]} with {samples} samples per task; expected 1 to {samples} (more with "
            f"--samples)"
        )
    return tuple(sorted({1, *ks})) if ks else default_ks(samples)
