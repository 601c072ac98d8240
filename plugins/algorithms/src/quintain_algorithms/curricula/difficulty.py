"""The difficulty filter: how often does the starting policy solve each task? Asked once, before the
first step.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from quintain import Group, Task
from quintain.console import failures_in, success_of, time_metrics
from quintain.errors import NoTasksError
from quintain.rollouts import RolloutRequest, run_groups
from quintain.store import plain_data, write_atomically
from quintain.types import SCORE_TOLERANCE, derived_seed, reaches

if TYPE_CHECKING:
    from quintain.run import Run

Rates = dict[str, float | None]
CHUNK = 256
"""Tasks whose rollouts are held in memory together, and lost together where the process ends."""


@dataclass(kw_only=True)
class Difficulties:
    """What ``difficulty.json`` holds.

    Attributes:
        samples: per task.
        rates: by environment and task, in the order of asking; ``None`` where no sample is valid.
        rollouts, tokens, seconds: what asking took so far, over all processes.
        failures: how many rollouts failed, by kind.
    """

    samples: int
    rates: list[Rates]
    rollouts: int = 0
    tokens: int = 0
    seconds: float = 0.0
    failures: dict[str, int] = field(default_factory=dict)


async def success_rates(
    run: Run, candidates: Sequence[Sequence[Task]], samples: int
) -> tuple[list[Rates], dict[str, Any]]:
    """Sample each of *candidates* so many times from the starting policy.

    The success rates go into ``difficulty.json`` of the run folder, `CHUNK` by `CHUNK`, so that a
    run that died before its first checkpoint does not ask again what was answered. Samples, tokens
    and seconds count among those of the run.

    Returns:
        The rates by environment and task, and what it took, as metrics for the record of step 0.

    Raises:
        Interrupted: the user requested a stop.
    """
    result = _known(run, candidates) or Difficulties(
        samples=samples, rates=[{} for _ in candidates]
    )
    run.record.count_failures(result.failures)
    run.progress.clock.add("difficulty", result.seconds)
    await run.interruption.until_stopped(_ask(run, candidates, result))
    run.progress.samples += result.rollouts
    run.progress.tokens += result.tokens
    return result.rates, time_metrics(
        result.tokens, result.rollouts, {"difficulty": result.seconds}
    )


def tasks_in_range(
    run: Run, rates_of_environments: Sequence[Rates], bounds: tuple[float, float], where: str
) -> list[list[str]]:
    """Return the ids of the tasks whose success rate is within *bounds*, by environment, and say
    how many they are.

    A task without a rate stays: none of its samples was valid. *where* says in an error what the
    rates are of.

    Raises:
        NoTasksError: an environment has no task left.
    """
    low, high = bounds
    ids = []
    for rates, label in zip(rates_of_environments, run.plan.tasks.labels, strict=True):
        ids.append(
            [
                t
                for t, r in rates.items()
                if r is None or (reaches(r, low) and r <= high + SCORE_TOLERANCE)
            ]
        )
        message = (
            f"{len(ids[-1])} of {len(rates)} tasks of {label!r} have a success rate from "
            f"{low:g} to {high:g}"
        )
        if not ids[-1]:
            raise NoTasksError(
                f"{message} {where} ({_spread(rates)}); widen plan.difficulty_range, or take "
                f"easier or harder tasks"
            )
        run.screen.note(f"{message} ({_spread(rates)}); the others are left out")
    return ids


def _known(run: Run, candidates: Sequence[Sequence[Task]]) -> Difficulties | None:
    """Return what a process that died before its first checkpoint found out about the first of
    these very tasks.
    """
    path = run.folder.path / "difficulty.json"
    if not path.exists():
        return None
    try:
        stored = Difficulties(**json.loads(path.read_text(encoding="utf-8")))
        same = stored.samples == run.collector.algorithm.plan.difficulty_samples and len(
            stored.rates
        ) == len(candidates)
        for rates, tasks in zip(stored.rates, candidates, strict=same):
            same = same and list(rates) == [task.id for task in tasks[: len(rates)]]
    except (ValueError, TypeError, AttributeError) as e:
        run.screen.warn(f"{path} cannot be read ({e}); tasks are measured again")
        return None
    return stored if same else None


async def _ask(run: Run, candidates: Sequence[Sequence[Task]], result: Difficulties) -> None:
    """Go on with *result* to the end of *candidates*, and write it down after every chunk."""
    # Seeds of its own: the first step must not draw the very samples that a task was chosen by.
    context = replace(run.collector.rollout_context, run_seed=derived_seed(run.plan.seed, "probe"))
    for index, (environment, label, tasks) in enumerate(
        zip(run.collector.environments, run.plan.tasks.labels, candidates, strict=True)
    ):
        left = len(tasks) - len(result.rates[index])
        if left:
            run.screen.phase(
                f"measuring the difficulty of {left} tasks of {label}", left * result.samples
            )
        for start in range(len(result.rates[index]), len(tasks), CHUNK):
            requests = [
                RolloutRequest(
                    environment=environment,
                    task=task,
                    group_size=result.samples,
                    name=label,
                    index=start + i,
                )
                for i, task in enumerate(tasks[start : start + CHUNK])
            ]
            clock = run.progress.clock.fork()
            with clock("difficulty"):
                groups = await run.interruption.until_stopped(
                    run_groups(requests, context, run.screen.advance)
                )
            _add(run, result, index, groups, clock.spent["difficulty"])


def _add(
    run: Run, result: Difficulties, index: int, groups: Sequence[Group[Any, Any]], seconds: float
) -> None:
    for group in groups:
        right, tried = success_of(group)
        result.rates[index][group.task.id] = right / tried if tried else None
        result.rollouts += len(group.rollouts)
        result.tokens += sum(r.tokens for r in group.rollouts)
    result.seconds += seconds
    failed = failures_in(groups)
    result.failures = dict(Counter(result.failures) + failed)
    run.record.count_failures(failed)
    path = run.folder.path / "difficulty.json"
    write_atomically(
        path, (json.dumps(plain_data(asdict(result)), allow_nan=False) + "\n").encode()
    )


def _spread(rates: Rates) -> str:
    measured = [r for r in rates.values() if r is not None]
    never, always = sum(r <= SCORE_TOLERANCE for r in measured), sum(reaches(r) for r in measured)
    return f"{never} never solved, {always} always"
