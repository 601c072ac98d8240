"""The difficulty filter: how often does the starting policy solve each task? Asked once, before the first step."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .episodes import Job, run_groups
from .errors import NoTasksError
from .health import success_of
from .session import derived_seed
from .store import plain, write_atomically
from .task import Task

if TYPE_CHECKING:
    from .run import Run

Rates = dict[str, float | None]
CHUNK = 256
"""Tasks whose rollouts are held in memory together."""
_TOLERANCE = 1e-9


async def probe(run: Run) -> None:
    """Leave out the tasks that the plan's ``probe`` samples of the starting policy show to be too easy or too hard.

    The success rates go into ``probe.json`` of the run folder, which tasks are kept into every checkpoint; neither a
    resumed run nor one that died before its first checkpoint asks again. What was not probed is not drawn. Tasks none
    of whose samples is valid are kept. The samples count among those of the run.

    Raises:
        NoTasksError: an environment has no task left.
    """
    plan, curriculum = run.row.plan, run.curriculum
    if not plan.probe or curriculum.probed:
        return
    candidates = curriculum.candidates()
    found = _known(run, candidates)
    if found is None:
        with run.clock("probe"):
            found = await _asked(run, candidates)
        path = run.folder.path / "probe.json"
        write_atomically(path, (json.dumps(plain(found), allow_nan=False) + "\n").encode())
    run.at.samples += found["rollouts"]
    run.at.tokens += found["tokens"]
    low, high = plan.keep
    kept = []
    for rates, table in zip(found["rates"], run.recipe.environments, strict=True):
        kept.append([t for t, r in rates.items() if r is None or low - _TOLERANCE <= r <= high + _TOLERANCE])
        said = f"{len(kept[-1])} of {len(rates)} tasks of {table.use!r} have a success rate from {low:g} to {high:g}"
        if not kept[-1]:
            raise NoTasksError(
                f"{said} in {plan.probe} samples of the starting policy ({_spread(rates)}); widen plan.keep, or take "
                "easier or harder tasks"
            )
        run.screen.note(f"{said} ({_spread(rates)}); the others are left out")
    curriculum.keep(kept)


def _known(run: Run, candidates: Sequence[Sequence[Task]]) -> dict[str, Any] | None:
    """What a process that died before its first checkpoint found out about these very tasks."""
    path = run.folder.path / "probe.json"
    if not path.exists():
        return None
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    same = [list(rates) for rates in found["rates"]] == [[task.id for task in tasks] for tasks in candidates]
    return found if same and found["samples"] == run.row.plan.probe else None


async def _asked(run: Run, candidates: Sequence[Sequence[Task]]) -> dict[str, Any]:
    samples, rollouts, tokens = run.row.plan.probe, 0, 0
    # Seeds of its own: the first step must not draw the very samples that a task was chosen by.
    setting = replace(run.setting(0), run_seed=derived_seed(run.recipe.run.seed, "probe"))
    found: list[Rates] = []
    for environment, table, tasks in zip(run.environments, run.recipe.environments, candidates, strict=True):
        run.screen.phase(f"probing {len(tasks)} tasks of {table.use}", len(tasks) * samples)
        found.append({})
        for start in range(0, len(tasks), CHUNK):
            jobs = [
                Job(environment=environment, task=task, members=samples, name=table.use, index=start + i)
                for i, task in enumerate(tasks[start : start + CHUNK])
            ]
            for group in await run.until_stopped(run_groups(jobs, setting, run.screen.advance)):
                right, tried = success_of(group)
                found[-1][group.task.id] = right / tried if tried else None
                rollouts += len(group.rollouts)
                tokens += sum(r.tokens for r in group.rollouts)
    return {"samples": samples, "rates": found, "rollouts": rollouts, "tokens": tokens}


def _spread(rates: Rates) -> str:
    known = [r for r in rates.values() if r is not None]
    never, always = sum(r <= _TOLERANCE for r in known), sum(r >= 1 - _TOLERANCE for r in known)
    return f"{never} never solved, {always} always"
