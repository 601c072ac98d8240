"""Whole runs of methods that say which tasks are tried and how a batch is filled; in this process,
on a tiny model.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from quintain.cli.summary import rows
from quintain.console.screen import Screen
from quintain.errors import Interrupted, NoTasksError, UsageError
from quintain.learning.learner import Learner
from quintain.recipe.check import check_recipe
from quintain.recipe.tables import Recipe
from quintain.run import build
from quintain.run.build import run_training
from quintain.run.progress import RunProgress
from quintain.store.checkpoint import Checkpoint, CheckpointManager, latest
from quintain.store.run_folder import RunFolder
from quintain.store.storage import steps_in
from quintain.types.transcript import TokenSource
from quintain_algorithms.curricula import difficulty as difficulty

from ..core.models.tiny import save_tiny

pytestmark = pytest.mark.usefixtures("no_curves")

HERE = Path(__file__).parent
STEPS = 6
EVERYTHING: dict[str, Any] = {
    "resample": "active",
    "attempts": 4,
    "order": "hard_first",
    "drop_solved": 0.7,
    "difficulty_samples": 4,
    "difficulty_range": [0.1, 0.9],
    "staleness": 2,
    "thinking_budget": {"min_tokens": 2, "max_tokens": 5, "text": ".", "until": ""},
}


class Killed(BaseException):
    """As `kill -9` would: nothing is saved on the way out."""


class Watching(Screen):
    """Hears everything, and does something at one moment."""

    def __init__(self, at: int = -1, do: Any = None) -> None:
        super().__init__(quiet=True)
        self.phases: list[str] = []
        self.totals: list[int | None] = []  # of the phases, in items
        self.notes: list[str] = []
        self.warnings: list[str] = []
        self.options: list[dict[str, Any]] = []  # of the line of each step
        self.ended = [0]  # how many rollouts there were when each step ended
        self.killed = False
        self.pieces, self._moment, self._do = 0, at, do

    def phase(self, name: str, total: int | None = None) -> None:
        self.phases.append(name)
        self.totals.append(total)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def warn(self, text: str) -> None:
        self.warnings.append(text)

    def advance(self, piece: object = None) -> None:
        self.pieces += 1
        if self.pieces == self._moment:
            self.killed = self._do is kill
            self._do()

    def step(self, step: int, metrics: Mapping[str, Any], **options: Any) -> None:
        self.ended.append(self.pieces)
        self.options.append(options)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("tiny"), context=256)


def recipe(model: Path, plan: Mapping[str, Any], **changes: Any) -> Recipe:
    return Recipe.of(
        {
            "run": {"steps": STEPS},
            "model": {"name": str(model), "device": "cpu"},
            "environments": [{"use": f"{HERE}/babble.py:Babble"}],
            "algorithm": {"use": "dr_grpo", "args": {"plan": dict(plan), "group_filter": "varied"}},
            "sampling": {"max_tokens": 8},
            "batch": {"prompts": 4, "group_size": 3},
            "learner": {"lr": 3e-3},
            "evaluation": {"every": 2, "tasks": 8, "test": {"tasks": 8}},
            "checkpoint": {"every": 2},
        }
    ).replace({key.replace("__", "."): value for key, value in changes.items()})


def run(place: Path, told: Recipe | None = None, screen: Watching | None = None) -> dict[str, Any]:
    """Start a run in *place*, or resume it."""
    folder = RunFolder.create(place, told.to_toml()) if told is not None else RunFolder.open(place)
    screen = screen or Watching()
    begin = CheckpointManager.begin

    def begun(manager: CheckpointManager, *args: Any, **settings: Any) -> None:
        if screen.killed:
            raise Killed  # a run saves on its way out, a dead process does not
        begin(manager, *args, **settings)

    with folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(CheckpointManager, "begin", begun)
        return run_training(Recipe.parse(folder.recipe()), folder, screen)


def metrics(place: Path) -> list[dict[str, Any]]:
    """Without what a clock says."""
    records = RunFolder(place, lock=False).metrics()
    return [
        {k: v for k, v in r.items() if "seconds" not in k and "per_second" not in k}
        for r in records
    ]


def weights(place: Path) -> bytes:
    (last,) = sorted((place / "checkpoints").glob("step-*"))[-1:]
    return (last / "model" / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def calm(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    """A run with a plan that does everything, undisturbed; how many rollouts there were when each
    step ended.
    """
    place, screen = tmp_path_factory.mktemp("calm") / "run", Watching()
    run(place, recipe(model, EVERYTHING), screen)
    return place, screen.ended


def kill() -> None:
    raise Killed


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.more
@pytest.mark.parametrize(
    "ends, way",
    [
        ([(0, 4, 5), (2, 6, 3)], kill),
        pytest.param([(0, 3, 7), (2, 5, 1)], interrupt, marks=pytest.mark.slow),
        pytest.param(
            [(0, 1, 3 * 8 + 4 * 24 + 3), (0, 2, 9), (0, 5, 4), (4, 6, 11)],
            kill,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            [(0, 2, 11), (1, 3, 2), (2, 4, 1), (3, 6, 8)], interrupt, marks=pytest.mark.slow
        ),
    ],
)
def test_resumed_anywhere_it_is_the_same_run(
    model: Path,
    calm: tuple[Path, list[int]],
    tmp_path: Path,
    ends: list[tuple[int, int, int]],
    way: Any,
) -> None:
    """Resampling, order by failures, dropping of solved tasks, the difficulty filter, staleness and
    the thinking budget: metrics and weights agree bit for bit.

    Each process resumes after a step and ends in a later one, after some of its rollouts. The first
    probes 24 tasks.
    """
    place, told = tmp_path / "run", recipe(model, EVERYTHING)
    undisturbed, ended = calm
    for number, (after, during, rollouts) in enumerate(ends):
        probed = number > 0 and after == 0  # what the first process asked is not asked again
        moment = ended[during - 1] - ended[after] + rollouts - (4 * 24 if probed else 0)
        screen = Watching(moment, way)
        with pytest.raises((Killed, Interrupted)):
            run(place, told if number == 0 else None, screen)
        going_on = [note for note in screen.notes if note.startswith("continuing after step")]
        assert [f"continuing after step {after} of {STEPS}"] * (after > 0) == going_on
        assert during - after == len(screen.ended)
    run(place)

    assert metrics(undisturbed) == metrics(place)
    assert weights(undisturbed) == weights(place)


MEASURED: dict[str, Any] = {
    "evaluation__every": 1,
    "evaluation__test__tasks": 0,
    "run__steps": 3,
    "batch__concurrency": 2,
}
"""Each step is evaluated with 8 tasks, after 4 prompts with 3 samples; two episodes run at once."""


@pytest.fixture(scope="module")
def measured(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("measured") / "run"
    run(place, recipe(model, {}, **MEASURED))
    return place


@pytest.mark.parametrize(
    "moment, step",
    [
        (8 + 12 + 3, 1),  # in the evaluation of step 1
        (8 + 12 + 8 + 12 + 1, 2),  # in that of step 2, where a checkpoint is due
        pytest.param(8 + 2 * 20 + 12 + 2, 3, marks=pytest.mark.more),  # in the last one
    ],
)
def test_an_interrupt_saves_the_last_step_and_evaluates_nothing(
    model: Path, tmp_path: Path, measured: Path, moment: int, step: int
) -> None:
    """The checkpoint of the step whose update is complete, at once. Resumed, the run is that of
    nobody who interrupted it, with the same best checkpoint.
    """
    place, screen = tmp_path / "run", Watching(moment, interrupt)

    with pytest.raises(Interrupted, match=f"after step {step}"):
        run(place, recipe(model, {}, **MEASURED), screen)

    saved = latest(RunFolder(place, lock=False))
    assert saved is not None
    assert saved.step == step
    assert screen.ended[-1] <= screen.pieces <= moment + 3  # those that were running ended
    run(place)
    assert metrics(measured) == metrics(place)
    assert weights(measured) == weights(place)
    assert best_of(measured) == best_of(place)
    assert states_of(measured) == states_of(place)


@pytest.mark.more
def test_an_evaluation_is_interrupted_as_often_as_one_likes(
    model: Path, tmp_path: Path, measured: Path
) -> None:
    """The process that resumes evaluates first; it may be interrupted, too, and the one after it."""
    place = tmp_path / "run"
    with pytest.raises(Interrupted):
        run(place, recipe(model, {}, **MEASURED), Watching(8 + 20 + 12 + 1, interrupt))
    for moment in (2, 3):
        with pytest.raises(Interrupted, match="after step 2"):
            run(place, screen=Watching(moment, interrupt))
    with pytest.raises(Killed):  # after the record, before the next checkpoint
        run(place, screen=Watching(8 + 4, kill))
    run(place)

    assert metrics(measured) == metrics(place)
    assert weights(measured) == weights(place)
    assert best_of(measured) == best_of(place)


def interrupt_in_update(step: int) -> Callable[..., Any]:
    """A method `Learner.step` in which a user presses Ctrl-C, once."""
    update, updates = Learner.step, iter(range(1, 99))

    def interrupted(learner: Any, *args: Any, **settings: Any) -> Any:
        if next(updates) == step:
            interrupt()
        return update(learner, *args, **settings)

    return interrupted


def test_an_interrupt_in_an_update_waits_for_it_and_evaluates_nothing(
    model: Path, tmp_path: Path, measured: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, screen = tmp_path / "run", Watching()
    with monkeypatch.context() as patch:
        patch.setattr(Learner, "step", interrupt_in_update(2))
        with pytest.raises(Interrupted, match="after step 2"):
            run(place, recipe(model, {}, **MEASURED), screen)

    saved = latest(RunFolder(place, lock=False))
    assert saved is not None
    assert saved.step == 2
    assert screen.pieces <= 8 + 20 + 12
    run(place)
    assert metrics(measured) == metrics(place)
    assert weights(measured) == weights(place)


@pytest.mark.parametrize("moment", [3, 8 + 2])
def test_an_interrupt_before_training_ends_its_evaluations(
    model: Path, tmp_path: Path, moment: int
) -> None:
    """Both of them, on the test split and on that of training. Nothing is there to save."""
    place, screen = tmp_path / "run", Watching(moment, interrupt)
    told = recipe(model, {}, run__steps=1, evaluation__every=1, batch__concurrency=2)
    with pytest.raises(Interrupted, match="after step 0"):
        run(place, told, screen)

    assert screen.pieces <= moment + 3
    assert latest(RunFolder(place, lock=False)) is None
    assert metrics(place) == []


def best_of(place: Path) -> list[tuple[int, bool]]:
    """The checkpoints of complete steps that the recipe asked for, and which were the best then."""
    found = [Checkpoint.open(path) for _, path in steps_in(place / "checkpoints")]
    return [(one.step, one.best) for one in found if one.step % 2 == 0]


def states_of(place: Path) -> dict[str, Any]:
    """What the last checkpoint says of curriculum, services and counters, without times."""
    saved = latest(RunFolder(place, lock=False))
    assert saved is not None
    state = saved.state
    del state["run"]["progress"]["seconds"], state["run"]["held_out"]["longest"]
    return state


@pytest.mark.more
def test_an_evaluation_counts_the_tasks_that_there_are(model: Path, tmp_path: Path) -> None:
    """Where a split has fewer tasks than the limit, its progress ends at all of them."""
    screen = Watching()
    run(tmp_path / "run", recipe(model, {}, run__steps=1, evaluation__tasks=40), screen)

    totals = [
        total
        for name, total in zip(screen.phases, screen.totals, strict=True)
        if name.startswith("held-out tasks") and "(dev)" in name
    ]
    assert totals
    assert set(totals) == {24}


@pytest.mark.more
def test_what_such_a_run_records(calm: tuple[Path, list[int]]) -> None:
    """Groups tried, accepted and rejected by reason; thinking budgets; versions as they were
    sampled; staleness.
    """
    steps = metrics(calm[0])[1:]
    folder = RunFolder(calm[0], lock=False)

    for number, step in enumerate(steps, 1):
        assert step["groups"] == step["groups.accepted"] + step["groups.rejected"] <= 16
        assert step["groups.missing"] == 4 - step["groups.accepted"]
        assert step["groups.rejected"] == step.get("groups.rejected.all_outcomes_equal", 0)
        assert step["samples"] == 3 * step["groups"]
        assert step["curriculum.dropped"] >= 0
        behind = min(2, number - 1)
        assert behind == step["staleness.mean"] == step["staleness.max"]
        rows = folder.read_rollouts(number)
        assert {-1, number - 1 - behind} == {v for row in rows for v in row["token_versions"]}
        forced = [int(TokenSource.FORCED) in row["token_sources"] for row in rows]
        assert step["thinking_budget.reached"] == pytest.approx(sum(forced) / len(forced))
    assert sum(step["groups.rejected"] for step in steps) > 0
    assert max(step["thinking_budget.reached"] for step in steps) > 0.5
    groups = [
        g
        for n in range(1, STEPS + 1)
        for g in dict.fromkeys(r["group"] for r in folder.read_rollouts(n))
    ]
    assert list(range(len(groups))) == groups


@pytest.mark.keeps("active")
@pytest.mark.parametrize("resample", ["dynamic", "active"])
def test_batches_are_full(model: Path, tmp_path: Path, resample: str) -> None:
    """Where filtering leaves holes, resampling leaves none."""
    run(
        tmp_path / "run",
        recipe(model, {"resample": resample}, evaluation__every=0, evaluation__test__tasks=0),
    )
    steps = metrics(tmp_path / "run")[1:]

    assert [step["groups.accepted"] for step in steps] == [4] * STEPS
    assert [step["learner.samples"] for step in steps] == [12.0] * STEPS
    assert max(step["groups"] for step in steps) > 4
    assert (max(step["groups.rounds"] for step in steps) > 1) == (resample == "dynamic")


def test_a_step_that_cannot_be_filled_continues_and_says_so(model: Path, tmp_path: Path) -> None:
    """Every group is solved by all or by none: nothing is accepted, whatever is tried."""
    screen = Watching()
    told = recipe(
        model,
        {"resample": "dynamic", "attempts": 2},
        run__steps=1,
        batch__group_size=1,
        batch__min_group_size=1,
    )
    run(tmp_path / "run", told, screen)
    (_, step) = metrics(tmp_path / "run")

    assert step["groups"] == 8
    assert step["groups.accepted"] == 0
    assert step["groups.missing"] == 4
    assert any(
        "0 of 4 groups were accepted" in note and "plan.attempts" in note for note in screen.notes
    )


def test_measuring_difficulty_asks_once_and_leaves_the_rest_out(
    model: Path, tmp_path: Path
) -> None:
    """A run that dies before its first checkpoint does not ask again; what was left out is never
    tried.
    """
    place = tmp_path / "run"
    told = recipe(
        model,
        {"difficulty_samples": 4, "difficulty_range": [0.2, 0.8]},
        checkpoint__every=0,
        evaluation__test__tasks=0,
        run__steps=3,
    )
    first, second = Watching(8 + 12 * 4 + 5, kill), Watching()
    with pytest.raises(Killed):
        run(place, told, first)
    summary = run(place, None, second)
    (rates,) = json.loads((place / "difficulty.json").read_text())["rates"]
    kept = {task for task, rate in rates.items() if 0.2 <= rate <= 0.8}
    tried = {
        row["task_id"] for n in (1, 2, 3) for row in RunFolder(place, lock=False).read_rollouts(n)
    }

    # 3 steps of 4 groups try 12 tasks.
    assert any("measuring the difficulty of 12 tasks" in phase for phase in first.phases)
    assert not any("measuring the difficulty" in phase for phase in second.phases)
    assert 12 == len(rates) > len(kept) >= len(tried)
    assert tried <= kept
    assert any(f"{len(kept)} of 12 tasks" in note for note in second.notes)
    assert summary["samples"] == 12 * 4 + 3 * 4 * 3


def test_measuring_difficulty_is_paid_for_in_the_record_of_step_0(
    model: Path, tmp_path: Path
) -> None:
    """Its samples, tokens and seconds; the records add up to the summary, and the budget counts it
    from the start.
    """
    told = recipe(
        model,
        {"difficulty_samples": 4},
        run__steps=3,
        stop__samples=12 * 4 + 13,
        evaluation__test__tasks=0,
    )
    summary = run(tmp_path / "run", told)
    start, *steps = RunFolder(tmp_path / "run", lock=False).metrics()

    assert start["samples"] == 12 * 4
    assert start["tokens"] > 12 * 4
    assert start["seconds.difficulty"] == summary["seconds"]["difficulty"] > 0
    assert "held_out.accuracy" in start
    assert [step["samples"] for step in steps] == [12, 12]  # the second step passes the budget
    for what in ("samples", "tokens"):
        assert summary[what] == start[what] + sum(step[what] for step in steps)


def test_measuring_difficulty_spends_the_seconds_of_training(model: Path, tmp_path: Path) -> None:
    """A budget that measuring difficulty has used up leaves none for a step."""
    told = recipe(
        model,
        {"difficulty_samples": 1},
        run__steps=2,
        stop__seconds=1e-6,
        evaluation__test__tasks=0,
    )

    assert run(tmp_path / "run", told)["steps"] == 0


@pytest.mark.slow
def test_measuring_difficulty_resumes_chunk_by_chunk(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was answered is kept, also what it cost and how much of it failed."""
    monkeypatch.setattr(difficulty, "CHUNK", 5)
    environments = [{"use": f"{HERE}/babble.py:Frail"}]
    settings: dict[str, Any] = {
        "environments": environments,
        "run__steps": 3,
        "evaluation__test__tasks": 0,
    }
    told = recipe(
        model,
        {"difficulty_samples": 4, "difficulty_range": [0.0, 1.0]},
        checkpoint__every=0,
        batch__retries=0,
        **settings,
    )
    place, second = tmp_path / "killed", Watching()
    with pytest.raises(Killed):
        run(place, told, Watching(8 + 5 * 4 + 7, kill))
    kept = json.loads((place / "difficulty.json").read_text())
    assert [len(rates) for rates in kept["rates"]] == [5]
    assert kept["rollouts"] == 20
    assert kept["seconds"] > 0
    summary = run(place, None, second)
    calm = run(tmp_path / "calm", told)

    assert any("measuring the difficulty of 7 tasks" in phase for phase in second.phases)
    assert metrics(tmp_path / "calm") == metrics(place)
    whole = json.loads((place / "difficulty.json").read_text())
    assert whole["seconds"] == summary["seconds"]["difficulty"] > kept["seconds"]
    assert whole["seconds"] == RunFolder(place, lock=False).metrics()[0]["seconds.difficulty"]
    failed = sum(whole["failures"].values())
    assert failed == 4 * sum(rate is None for rate in whole["rates"][0].values()) > 0
    assert calm["failures"] == summary["failures"]
    assert sum(summary["failures"].values()) > failed
    assert any(
        "episodes failed" in line and "environment_error" in line for line in second.warnings
    )


@pytest.mark.keeps("{")
@pytest.mark.parametrize("text", ["{", "[]", '{"rates": [{}]}', '{"samples": 2, "rates": 3}'])
def test_a_damaged_record_of_measuring_difficulty_is_not_believed(
    model: Path, tmp_path: Path, text: str
) -> None:
    """Tasks are measured again, and a note says so."""
    told = recipe(
        model,
        {"difficulty_samples": 2, "difficulty_range": [0.0, 1.0]},
        run__steps=1,
        evaluation__every=0,
        evaluation__test__tasks=0,
    )
    screen = Watching()
    RunFolder.create(tmp_path / "run", told.to_toml()).close()
    (tmp_path / "run" / "difficulty.json").write_text(text)
    run(tmp_path / "run", None, screen)

    assert any("difficulty.json" in line for line in screen.warnings)
    assert json.loads((tmp_path / "run" / "difficulty.json").read_text())["rollouts"] == 8


@pytest.mark.keeps("limit2-1")
@pytest.mark.parametrize(
    "limit, steps", [({"samples": 25}, 3), ({"tokens": 150}, None), ({"seconds": 1e-6}, 1)]
)
def test_a_run_that_stops_early_is_measured_at_its_end(
    model: Path, tmp_path: Path, limit: dict[str, float], steps: int | None
) -> None:
    """As one that comes to the end of its steps is."""
    told = recipe(model, {}, stop=limit, evaluation__every=100, evaluation__test__tasks=0)
    summary = run(tmp_path / "run", told)
    records = metrics(tmp_path / "run")

    assert summary["steps"] == len(records) - 1 == (steps or len(records) - 1) < STEPS
    assert [0, summary["steps"]] == [r["step"] for r in records if "held_out.accuracy" in r]


@pytest.mark.more
def test_the_minutes_of_a_run_begin_after_its_model_is_prepared(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A warm start may take longer than the training that it precedes, also before a resume."""
    monkeypatch.setattr(
        build, "RunProgress", lambda seconds: RunProgress(seconds={"model": 3600.0})
    )
    told = recipe(model, {}, run__steps=2, stop__minutes=50, evaluation__test__tasks=0)
    place = tmp_path / "run"

    assert run(place, told)["steps"] == 2
    (place / "recipe.toml").write_text(told.replace({"run.steps": 4}).to_toml())
    summary = run(place)
    assert summary["steps"] == 4
    assert summary["seconds"]["model"] == 3600.0
    (place / "recipe.toml").write_text(
        told.replace({"run.steps": 6, "stop.minutes": 1e-6}).to_toml()
    )
    assert run(place)["stopped"] == "stop.minutes = 1e-06"


def test_all_limits_that_a_run_reaches_at_once_are_named(model: Path, tmp_path: Path) -> None:
    told = recipe(model, {}, run__steps=1, stop__minutes=1e-6, evaluation__every=0)
    RunFolder.create(tmp_path / "run", told.to_toml()).close()
    (tmp_path / "run" / "recipe.toml").write_text(
        told.replace({"stop.samples": 12, "stop.minutes": 50}).to_toml()
    )
    assert run(tmp_path / "run")["stopped"] == "stop.samples = 12 and run.steps = 1"


@pytest.mark.slow
def test_the_time_left_has_the_evaluations_to_come(model: Path, tmp_path: Path) -> None:
    """Those of training and the one after it, each as long as the longest so far."""
    told, screen = recipe(model, {}, run__steps=5, checkpoint__every=1), Watching()
    run(tmp_path / "run", told, screen)
    last = RunFolder(tmp_path / "run", lock=False)
    saved = latest(last)
    assert saved is not None
    longest = saved.state["run"]["held_out"]["longest"]

    assert longest["training"] > 0 < longest["test"]
    assert [options["to_evaluate"] > longest["test"] for options in screen.options] == [
        True,
        True,
        True,
        True,
        False,
    ]  # steps 2, 4 and 5 evaluate
    assert screen.options[-1]["to_evaluate"] == longest["test"]
    assert [options["evaluated"] > 0 for options in screen.options] == [
        False,
        True,
        True,
        True,
        True,
    ]


def test_a_run_without_a_step_measures_its_model_once(model: Path, tmp_path: Path) -> None:
    """The table has one result then, and says why nothing was trained."""
    told, screen = recipe(model, {}, stop__minutes=1e-6), Watching()
    summary = run(tmp_path / "run", told, screen)

    assert summary["steps"] == 0
    measured = [phase for phase in screen.phases if "(test)" in phase]
    assert len(measured) == 2  # one for each way of decoding
    assert summary["held_out"]["before"] == summary["held_out"]["after"]
    table = rows(summary, RunFolder(tmp_path / "run", lock=False))
    assert table[-1] == ("next", "nothing was trained: stop.minutes = 1e-06")
    (heading, text), *results = table
    assert heading == "held-out accuracy"
    assert text.startswith("no step was made, 95 % intervals, ")
    assert not any("->" in text for _, text in results)


def test_a_run_that_has_learned_enough_stops(model: Path, tmp_path: Path) -> None:
    """After the measurement that says so."""
    told = recipe(model, {}, stop__accuracy=0.01, evaluation__temperature=1.0, learner__lr=1e-9)
    summary = run(tmp_path / "run", told)
    found = [r["held_out.accuracy"] for r in metrics(tmp_path / "run") if "held_out.accuracy" in r]

    assert summary["steps"] in (0, 2, 4)
    assert found[-1] >= 0.01
    assert not any(found[:-1])


def test_a_filter_that_keeps_nothing_says_what_it_found(model: Path, tmp_path: Path) -> None:
    """The error names the setting and how the tasks fared."""
    told = recipe(
        model,
        {"difficulty_samples": 2, "difficulty_range": [0.7, 0.8]},
        run__steps=1,
        evaluation__test__tasks=0,
    )
    with pytest.raises(
        NoTasksError,
        match=r"0 of 4 tasks .* from 0.7 to 0.8 in 2 samples .* widen plan.difficulty_range",
    ):
        run(tmp_path / "run", told)


@pytest.mark.more
def test_held_out_tasks_meet_the_newest_weights(model: Path, tmp_path: Path) -> None:
    """The sampler never moves here, what is measured does."""
    told = recipe(
        model,
        {"staleness": 100},
        evaluation__every=1,
        evaluation__tasks=24,
        evaluation__temperature=1.0,
        learner__lr=3e-2,
        algorithm__args__group_filter="minimum",
    )
    run(tmp_path / "run", told)
    steps = metrics(tmp_path / "run")
    rows = [
        row
        for n in range(1, STEPS + 1)
        for row in RunFolder(tmp_path / "run", lock=False).read_rollouts(n)
    ]

    assert {-1, 0} >= {v for row in rows for v in row["token_versions"]}
    assert [*range(STEPS)] == [step["staleness.max"] for step in steps[1:]]
    assert len({step["held_out.accuracy"] for step in steps}) > 1


def test_an_order_by_level_without_levels_is_refused_at_the_start(model: Path) -> None:
    """Before a model is loaded."""
    told = recipe(
        model, {"order": "easy_to_hard"}, environments=[{"use": f"{HERE}/babble.py:Flat"}]
    )
    with pytest.raises(UsageError, match=r"environment '.*Flat' has no level"):
        check_recipe(told)
    check_recipe(recipe(model, {"order": "easy_to_hard"}))
