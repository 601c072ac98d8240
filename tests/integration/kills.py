"""Runs that die at a chosen moment, and what the history of a finished run must be."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from quintain.console.screen import Screen
from quintain.recipe.plan import RunPlan
from quintain.recipe.resolve import EnvironmentSpec
from quintain.recipe.tables import Recipe
from quintain.run.build import curriculum_for, run_training
from quintain.store.checkpoint import Checkpoint
from quintain.store.run_folder import RunFolder
from quintain.types.transcript import TokenSource


class Killed(BaseException):
    """The end of a process that nothing in it sees coming."""


class Life:
    """Counts the boundaries that a process passes and ends it at the one of number *at*.

    A boundary is the end of a callback of the event loop (hence every ``await`` that suspends), the
    entry of a write to the run folder, or the moment before or after data reaches the disk
    (``fsync``, ``rename``, ``replace``).
    """

    def __init__(self, at: int | None) -> None:
        self.at, self.passed, self.dead = at, 0, False

    def boundary(self) -> None:
        self.passed += 1
        if self.passed == self.at and not self.dead:
            self.dead = True
            raise Killed

    def write(self) -> None:
        if self.dead:  # a dead process writes nothing on its way out
            raise Killed
        self.boundary()


@contextmanager
def living(at: int | None) -> Iterator[Life]:
    """Inside the block, a run passes boundaries and dies with `Killed` at number *at* (``None``:
    never).
    """
    life = Life(at)
    handle, check = asyncio.events.Handle._run, RunFolder.check

    def step(self: Any) -> None:
        handle(self)  # a callback that never ran would leave its task waiting
        life.boundary()

    def checked(self: RunFolder) -> None:
        life.write()
        check(self)

    def around(function: Any) -> Any:
        def called(*args: Any, **named: Any) -> Any:
            life.write()
            result = function(*args, **named)
            life.write()
            return result

        return called

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio.events.Handle, "_run", step)
        patch.setattr(RunFolder, "check", checked)
        for name in ("fsync", "rename", "replace"):
            patch.setattr(os, name, around(getattr(os, name)))
        patch.setenv("QUINTAIN_PLUGINS", "")  # drawing curves would take half of the time
        yield life


def run_once(place: Path, recipe: Recipe, at: int | None = None) -> Life:
    """One process of the run in *place*, started or continued; it dies at boundary *at* or
    finishes.
    """
    if not place.exists():
        RunFolder.create(place, recipe.to_toml()).close()
    with living(at) as life:
        try:
            with RunFolder.open(place) as folder:
                run_training(Recipe.parse(folder.recipe()), folder, Screen(quiet=True))
        except BaseException:
            # what is cleaned up after `Killed` may fail in other ways, which nobody would see
            if not life.dead:
                raise
    return life


def last_state(place: Path) -> dict[str, Any]:
    """The state in the last checkpoint."""
    return Checkpoint.open(sorted((place / "checkpoints").glob("step-*"))[-1]).state


def pending(state: Mapping[str, Any]) -> list[int]:
    """The index of each group in the queue of a checkpoint."""
    return [
        entry["index"] for part in ("groups", "prompts") for entry in state["queue"].get(part, ())
    ]


def stream(recipe: Recipe, count: int) -> list[str]:
    """The ids of the first *count* tasks that the curriculum of *recipe* draws."""
    specs = [EnvironmentSpec.of(table) for table in recipe.environments]
    environments = [spec.make(dict.fromkeys(spec.slots)) for spec in specs]
    return [pick.task.id for pick in curriculum_for(RunPlan.of(recipe), environments).pick(count)]


def check_history(place: Path, max_staleness: int) -> dict[str, int]:
    """Assert that the stored history of a finished run is that of one run without a kill; return
    what it counted.

    - Each step has one line of metrics and one file of rollouts.
    - Each task that the curriculum drew is in exactly one step, under the index of its draw, with
      all its samples; abandoned groups alone are in none. The last checkpoint has nothing left
      over.
    - The versions of a sequence never fall; none is of a later step, and no trained one is older
      than *max_staleness*.
    """
    folder = RunFolder(place, lock=False)
    recipe = Recipe.parse(folder.recipe())
    steps, size = recipe.run.steps, recipe.batch.group_size
    records = folder.metrics()
    assert [*range(steps + 1)] == [record["step"] for record in records]
    assert [*range(1, steps + 1)] == [
        int(p.stem[-6:]) for p in sorted((place / "rollouts").glob("*.parquet"))
    ]
    groups: dict[int, int] = {}
    samples: dict[int, list[int]] = {}
    tasks: dict[int, set[str]] = {}
    for step in range(1, steps + 1):
        rows = folder.read_rollouts(step)
        for row in rows:
            assert step == groups.setdefault(row["group"], step), (
                f"group {row['group']} trained twice"
            )
            samples.setdefault(row["group"], []).append(row["sample"])
            tasks.setdefault(row["group"], set()).add(row["task_id"])
            versions = [
                version
                for version, source in zip(row["token_versions"], row["token_sources"], strict=True)
                if source == TokenSource.MODEL
            ]
            assert all(0 <= one <= other < step for one, other in pairwise([*versions, step - 1]))
        assert records[step]["groups"] == len({row["group"] for row in rows})
        assert records[step].get("staleness.max", 0) <= max_staleness
    state = last_state(place)
    drawn = state["curriculum"]["picked"]
    abandoned = sum(r.get("groups.abandoned", 0) for r in records)
    assert all([*range(size)] == sorted(of) for of in samples.values())
    left = pending(state)
    # resampling ends with groups that it did not need
    assert not left or recipe.algorithm.args["plan"].get("resample")
    assert not {*left} & {*groups}
    assert drawn == len(groups) + len(left) + abandoned
    order = stream(recipe, drawn)
    assert {index: {order[index]} for index in groups} == tasks
    return {"steps": steps, "drawn": drawn, "abandoned": abandoned}
