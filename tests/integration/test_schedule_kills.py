"""Runs with schedules that die: at any moment, in this process and by SIGKILL, and what a resume
has of them.
"""

from __future__ import annotations

import json
import os
import random
import signal
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from quintain.console.screen import Screen
from quintain.learning.batch import batch_of
from quintain.recipe.tables import Recipe
from quintain.run.build import run_training
from quintain.run.saving import Saving
from quintain.store.run_folder import RunFolder
from quintain.types.rollout import AnyGroup
from quintain_scale.schedules.collector import AsyncCollector
from quintain_scale.schedules.complete import CompleteGroup

from ..core.models.tiny import save_tiny
from ..lanes import examples
from .forks import forked_runs
from .kills import Killed, check_history, run_once

pytestmark = pytest.mark.usefixtures("no_curves")

HERE = Path(__file__).parent
STALENESS = {"sync": 0, "one_step_off": 1, "areal": 4, "pipeline": 8}
STEPS, PROMPTS = 4, 3
MOST = 450
"""Boundaries that a run of `STEPS` steps passes, about; a later moment may find it finished."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("tiny"), context=256)


def scheduled(
    model: Path, schedule: str, every: int = 1, kind: str = "TwoTurns", **args: Any
) -> Recipe:
    """A short run with the preset *schedule* and the arguments *args*, and a checkpoint each
    *every* steps.
    """
    return Recipe.of(
        {
            "run": {"steps": STEPS},
            "model": {"name": str(model), "device": "cpu"},
            "environments": [{"use": f"{HERE}/waiting.py:{kind}", "args": {"size": 7}}],
            "algorithm": {"use": "dr_grpo", "args": {"plan": {}}},
            "schedule": {"use": schedule, "args": args},
            "sampling": {"max_tokens": 4},
            "batch": {"prompts": PROMPTS, "group_size": 2},
            "learner": {"lr": 3e-3},
            "evaluation": {"every": 0, "test": {"tasks": 0}},
            "checkpoint": {"every": every, "keep": 2},
        }
    )


def survives(recipe: Recipe, moments: list[int]) -> dict[str, int]:
    """What `check_history` counts in a run that dies at each of the *moments* and then finishes."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "run"
        deaths = sum(run_once(place, recipe, moment).dead for moment in moments)
        run_once(place, recipe)
        limit = recipe.schedule.args.get("max_staleness", STALENESS[recipe.schedule.use])
        return {**check_history(place, limit), "deaths": deaths}


@pytest.mark.more
@settings(
    max_examples=2,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    moments=st.lists(st.integers(1, MOST), min_size=1, max_size=2),
    schedule=st.sampled_from([*STALENESS]),
    every=st.integers(1, 2),
)
@example(moments=[MOST // 2, 120], schedule="areal", every=1)
def test_killed_at_any_boundary_it_trains_each_task_once(
    model: Path, moments: list[int], schedule: str, every: int
) -> None:
    survives(scheduled(model, schedule, every), moments)


@pytest.mark.slow
@examples(60)
@given(
    moments=st.lists(st.integers(1, MOST), min_size=1, max_size=5),
    schedule=st.sampled_from([*STALENESS]),
    every=st.integers(0, 3),
    stale=st.sampled_from(["drop", "retry"]),
    kind=st.sampled_from(["TwoTurns", "Failing", "Reporting"]),
)
def test_killed_at_any_boundaries_it_trains_each_task_once(
    model: Path, moments: list[int], schedule: str, every: int, stale: str, kind: str
) -> None:
    """More moments, episodes that fail, stale groups that are sampled again, and checkpoints at the
    end only.
    """
    args = {} if schedule == "sync" else {"stale": stale}
    survives(scheduled(model, schedule, every, kind, **args), moments)


def samples_of(place: Path) -> dict[tuple[int, int], tuple[str, int, tuple[int, ...]]]:
    """Task, seed and tokens of each sample of a run, by group and number."""
    folder = RunFolder(place, lock=False)
    steps = range(1, len(folder.metrics()))
    return {
        (row["group"], row["sample"]): (row["task_id"], row["seed"], tuple(row["token_ids"]))
        for step in steps
        for row in folder.read_rollouts(step)
    }


def saved_before(place: Path) -> dict[str, bytes]:
    """The rollouts and the lines of the metrics up to the last checkpoint of a run that was
    killed.
    """
    steps = sorted(int(p.name[-6:]) for p in (place / "checkpoints").glob("step-*"))
    last = steps[-1] if steps else -1
    content = {
        p.name: p.read_bytes()
        for p in (place / "rollouts").glob("step-*.parquet")
        if int(p.stem[-6:]) <= last
    }
    lines = (place / "metrics.jsonl").read_bytes().splitlines() if steps else []
    return content | {f"line {i}": line for i, line in enumerate(lines[: last + 1])}


@pytest.mark.keeps("areal-2")
@pytest.mark.parametrize("deaths", [2, pytest.param(25, marks=pytest.mark.slow)])
@pytest.mark.parametrize("schedule", ["one_step_off", "areal"])
def test_what_is_equal_after_kills(model: Path, tmp_path: Path, schedule: str, deaths: int) -> None:
    """What was saved stays bit for bit. Every task is drawn in the order of a run without a kill,
    and each of its samples has the same seed. So it has the same tokens under the same weights,
    which a rate of 1e-30 keeps bit for bit, in whichever step it trains.
    """
    recipe = scheduled(model, schedule).replace(
        {"learner.lr": 1e-30, "run.steps": STEPS + deaths // 4}
    )
    draw, place, calm = random.Random(schedule), tmp_path / "killed", tmp_path / "calm"
    for _ in range(deaths):
        died = run_once(place, recipe, draw.randint(60, MOST)).dead
        saved = saved_before(place)
        if not died:
            break
    run_once(place, recipe)
    run_once(calm, recipe)
    again = saved_before(place)
    assert {name: again[name] for name in saved} == saved
    limit = STALENESS[schedule]
    assert check_history(place, limit)["steps"] == check_history(calm, limit)["steps"]

    killed, whole = samples_of(place), samples_of(calm)
    both = killed.keys() & whole.keys()  # the last groups differ: which end first
    assert len(both) >= len(whole) - 2 * PROMPTS * (limit + 1)
    assert {key: killed[key] for key in both} == {key: whole[key] for key in both}


def tokens_of(group: AnyGroup) -> list[str]:
    """The rollouts of a group as text: token ids, log-probs, versions, scores and whatever else a
    record has.
    """
    return [json.dumps(rollout.to_json()) for rollout in group.rollouts]


@pytest.mark.more
def test_a_resume_has_the_queued_groups_token_for_token(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Complete groups that no batch has taken come back from the checkpoint as they were queued,
    and train so.
    """
    recipe = scheduled(model, "areal", kind="Reporting")
    queued: dict[int, list[CompleteGroup]] = {}
    restored: list[CompleteGroup] = []
    batch, save, restore = AsyncCollector._batch, Saving.save, AsyncCollector.restore

    def patient(self: AsyncCollector) -> Any:
        """Takes no batch before twice its groups are complete, so that the queue has some at each
        checkpoint.
        """
        ready = self._complete.count(rejected=True)
        return None if ready < 2 * self.groups and self._running else batch(self)

    def saved(self: Saving, **options: Any) -> None:
        save(self, **options)
        assert isinstance(self.collector, AsyncCollector)
        queued[self.progress.step] = list(self.collector._complete)
        if len(queued) == 2:
            raise Killed

    def back(self: AsyncCollector, state: Mapping[str, Any]) -> None:
        restore(self, state)
        restored.extend(self._complete)

    monkeypatch.setattr(AsyncCollector, "_batch", patient)
    monkeypatch.setattr(AsyncCollector, "restore", back)
    with monkeypatch.context() as patch, RunFolder.create(tmp_path, recipe.to_toml()) as folder:
        patch.setattr(Saving, "save", saved)
        with pytest.raises(Killed):
            run_training(recipe, folder, Screen(quiet=True))
    run_once(tmp_path, recipe)
    check_history(tmp_path, 4)

    before = queued[2]
    assert len(before) >= PROMPTS
    assert [tokens_of(c.group) for c in before] == [tokens_of(c.group) for c in restored]
    for field in ("reason", "oldest"):
        assert [getattr(c, field) for c in before] == [getattr(c, field) for c in restored]
    for field in ("index", "visit", "name", "group_size", "task"):
        assert [getattr(c.request, field) for c in before] == [
            getattr(c.request, field) for c in restored
        ]
    batches = [
        batch_of([c.group for c in q], temperature=1.0, max_tokens=4) for q in (before, restored)
    ]
    assert batches[0] == batches[1]  # what the learner gets: sequences, scores per turn, groups
    assert {0, 1, 2} >= {
        v for sample in batches[1].samples for s in sample.sequences for v in s.versions if v >= 0
    }
    rows = [row for step in (3, 4) for row in folder.read_rollouts(step)]
    trained = {(row["group"], row["sample"]): json.loads(row["rollout"]) for row in rows}
    for c in before:
        for rollout in c.group.rollouts:
            assert json.dumps(trained[c.group.index, rollout.sample]) == json.dumps(
                rollout.to_json()
            )


@pytest.mark.keeps("one_step_off-3")
@pytest.mark.parametrize(
    "kills",
    [pytest.param(3, marks=pytest.mark.ci), pytest.param(12, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("schedule", ["one_step_off", "areal", "pipeline"])
def test_after_sigkill_at_random_moments_it_trains_each_task_once(
    model: Path, tmp_path: Path, schedule: str, kills: int
) -> None:
    """`quintain train` dies by SIGKILL again and again: some time after a step that is drawn, or
    while it starts.
    """
    draw, steps = random.Random(f"{schedule} {kills}"), 6 * kills + 6
    changes = {
        "run.steps": steps,
        "checkpoint.every": 2,
        "environments.0.args": {"size": 24, "pause": 0.01},
    }
    (tmp_path / "recipe.toml").write_text(scheduled(model, schedule).replace(changes).to_toml())
    metrics = tmp_path / "runs" / "run" / "metrics.jsonl"
    died: list[int] = []
    again = "train --resume runs/run"

    def lines() -> int:
        return metrics.read_text().count("\n") if metrics.exists() else 0

    def kill(process: int) -> None:
        """At once or when 1 to 6 more steps are complete, and up to 0.1 s later."""
        wanted = lines() + draw.randrange(7)
        while lines() < min(wanted, steps + 1) and Path(f"/proc/{process}").exists():
            time.sleep(0.002)
        time.sleep(draw.random() * 0.1)
        with suppress(ProcessLookupError):  # it has finished
            os.kill(process, signal.SIGKILL)

    with forked_runs(tmp_path, QUINTAIN_PLUGINS="") as start:
        for _ in range(kills):
            begun = (metrics.parent / "recipe.toml").exists()
            process = start(again if begun else "train recipe.toml --name run")
            kill(process.pid)
            status = process.finish()
            assert status in (0, -signal.SIGKILL), (tmp_path / "errors.txt").read_text()
            if status:
                died.append(lines() - 1)
        assert start(again).finish() == 0, (tmp_path / "errors.txt").read_text()
    counted = check_history(metrics.parent, STALENESS[schedule])

    assert died
    print(f"{schedule}: killed after steps {died}; {counted}")
