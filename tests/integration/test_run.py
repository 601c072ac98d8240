"""Whole runs, as a user starts them: in their own process, killed, stopped, resumed, refused."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from quintain.cli import main
from quintain.store.run_folder import RunFolder
from quintain.store.storage import steps_in

from ..core.models.tiny import save_tiny
from .forks import ForkedRun, forked_runs, wait_for_step

HERE = Path(__file__).parent
STEPS = 8


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a tiny model and a recipe; runs go to ``runs``."""
    folder = tmp_path_factory.mktemp("place")
    save_tiny(folder / "model", context=256)
    (folder / "recipe.toml").write_text(
        f"""
[run]
steps = {STEPS}
[model]
name = "model"
[[environments]]
use = "letters:Letters"
[algorithm]
use = "grpo"
[sampling]
max_tokens = 8
[batch]
prompts = 4
group_size = 4
[learner]
lr = 3e-3
warmup_steps = 2
[evaluation]
every = 3
tasks = 8
[evaluation.test]
tasks = 8
[checkpoint]
every = 2
"""
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(HERE)
        yield folder


@pytest.fixture(scope="module")
def start(place: Path) -> Iterator[Callable[..., ForkedRun]]:
    """Starts `quintain` with some words in *place* in a process of its own, one at a time."""
    with forked_runs(place, PYTHONPATH=str(HERE)) as start:
        yield start


def kill(process: ForkedRun) -> None:
    """SIGKILL, unless it has finished."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGKILL)
    process.finish()


def here(place: Path, *words: str, status: int = 0) -> tuple[str, str]:
    """Standard output and error of a command in this process; a process of its own spends 5 s on
    imports, and only what is killed or stopped needs one.
    """
    out, err = io.StringIO(), io.StringIO()
    with contextlib.chdir(place), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        ended = main(words)
    assert status == ended, err.getvalue() + out.getvalue()
    return out.getvalue(), err.getvalue()


def metrics(place: Path, run: str) -> list[dict[str, Any]]:
    """The metrics of a run without what a clock says."""
    records = RunFolder.open(place / "runs" / run, lock=False).metrics()
    return [
        {k: v for k, v in r.items() if "seconds" not in k and "per_second" not in k}
        for r in records
    ]


@pytest.fixture(scope="module")
def undisturbed(place: Path) -> list[dict[str, Any]]:
    """The metrics of the run that nothing happens to."""
    out, _ = here(place, "train", "recipe.toml", "--name", "calm", "--json")
    assert json.loads(out)["steps"] == STEPS
    return metrics(place, "calm")


def test_summary_holds_what_programs_read(place: Path, undisturbed: list[dict[str, Any]]) -> None:
    """Accuracy before and after, time by phase, samples and tokens stand in the run folder."""
    summary = json.loads((place / "runs" / "calm" / "summary.json").read_text())

    assert (
        0
        <= summary["held_out"]["before"]["accuracy"]
        <= summary["held_out"]["after"]["accuracy"]
        <= 1
    )
    assert {"total", "rollouts", "update", "evaluation"} <= set(summary["seconds"])
    assert summary["samples"] == STEPS * 16
    assert sum(m["tokens"] for m in undisturbed[1:]) == summary["tokens"] > 0
    stored = RunFolder.open(place / "runs" / "calm", lock=False).metrics()[1:]
    assert all(0 < m["grading.seconds"] <= m["seconds.rollouts"] for m in stored)
    assert (place / "runs" / "calm" / "curves.png").stat().st_size > 1000


def test_rollouts_are_readable_by_datasets(place: Path, undisturbed: list[dict[str, Any]]) -> None:
    """Each step's rollouts are a Parquet file that `datasets` opens, exact tokens included."""
    import datasets

    files = sorted(str(p) for p in (place / "runs" / "calm" / "rollouts").glob("*.parquet"))
    rows = datasets.load_dataset(
        "parquet", data_files=files, split="train", cache_dir=str(place / "cache")
    )

    assert len(rows) == STEPS * 16
    assert {"reply", "termination"} <= set(rows.column_names)


def test_checkpoint_loads_with_transformers(place: Path, undisturbed: list[dict[str, Any]]) -> None:
    """The last checkpoint is an ordinary Hugging Face folder."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    (last,) = sorted((place / "runs" / "calm" / "checkpoints").glob("step-*"))[-1:]
    model = AutoModelForCausalLM.from_pretrained(last / "model")

    assert f"step-{STEPS:06d}" == last.name
    assert 260 == len(AutoTokenizer.from_pretrained(last / "model")) == model.config.vocab_size


@pytest.mark.parametrize(
    "attempt", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)]
)
def test_killed_anywhere_and_resumed_is_the_same_run(
    place: Path, start: Callable[..., ForkedRun], undisturbed: list[dict[str, Any]], attempt: int
) -> None:
    """After `kill -9` at random points the metrics equal those of the undisturbed run, bit for
    bit.
    """
    draw = random.Random(attempt)
    name = f"killed-{attempt}"
    process = start("train", "recipe.toml", "--name", name)
    for number in range(2):
        wait_for_step(place / "runs" / name, draw.randrange(1, STEPS), process)
        time.sleep(draw.random() * 0.3)
        kill(process)
        if number == 0:
            process = start("train", "--resume", name)
    here(place, "train", "--resume", name)

    assert undisturbed == metrics(place, name)


PLAN = """[environments.args]
size = 40
[algorithm]
use = "grpo"
[algorithm.args]
group_filter = "varied"
[algorithm.args.plan]
resample = "active"
attempts = 4
order = "hard_first"
drop_solved = 0.8
difficulty_samples = 4
difficulty_range = [0.05, 0.95]
staleness = 2
thinking_budget = { min_tokens = 2, max_tokens = 5, text = ".", until = "" }
"""


@pytest.mark.slow
def test_killed_anywhere_with_a_plan_that_remembers_and_resumed_is_the_same_run(
    place: Path, start: Callable[..., ForkedRun]
) -> None:
    """Resampling, an order that learns from outcomes, measuring difficulty and a stale sampler
    survive `kill -9`.
    """
    text = (place / "recipe.toml").read_text().replace("letters:Letters", "babble:Babble")
    (place / "plan.toml").write_text(text.replace('[algorithm]\nuse = "grpo"\n', PLAN))
    here(place, "train", "plan.toml", "--name", "plan-calm")
    draw = random.Random(7)
    process = start("train", "plan.toml", "--name", "plan-killed")
    for _ in range(3):
        wait_for_step(place / "runs" / "plan-killed", draw.randrange(1, STEPS), process)
        time.sleep(draw.random() * 0.3)
        kill(process)
        process = start("train", "--resume", "plan-killed")
    assert process.finish() == 0, (place / "errors.txt").read_text()

    found = metrics(place, "plan-calm")
    assert found == metrics(place, "plan-killed")
    assert sum(step["groups.rejected"] for step in found[1:]) > 0


def last_saved(place: Path, name: str) -> int:
    return steps_in(place / "runs" / name / "checkpoints")[-1][0]


@pytest.mark.more
@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM]
)
def test_a_signal_saves_and_the_run_resumes(
    place: Path, start: Callable[..., ForkedRun], undisturbed: list[dict[str, Any]], number: int
) -> None:
    """Ctrl-C and SIGTERM end with status 130, a checkpoint and the command that resumes."""
    name = f"stopped-{number}"
    process = start("train", "recipe.toml", "--name", name)
    wait_for_step(place / "runs" / name, 3, process)
    os.kill(process.pid, number)
    assert process.finish() == 130, (place / "errors.txt").read_text()
    done = metrics(place, name)

    assert f"--resume runs/{name}" in (place / "errors.txt").read_text()
    assert last_saved(place, name) in (len(done) - 1, len(done))  # more than recorded: still open
    assert undisturbed[: len(done)] == done
    here(place, "train", "--resume", name)
    assert undisturbed == metrics(place, name)


@pytest.mark.more
@pytest.mark.usefixtures("no_curves")
def test_a_closed_pipe_saves_and_the_run_resumes(
    place: Path, undisturbed: list[dict[str, Any]]
) -> None:
    """`quintain train 2>&1 | head` ends the run as Ctrl-C does: no complete step is lost."""
    read, write = os.pipe()

    def read_two_steps() -> None:
        with open(read, encoding="utf-8") as screen:
            for line in screen:
                if f"step 2/{STEPS}" in line:
                    return

    reader = threading.Thread(target=read_two_steps)
    reader.start()
    with contextlib.suppress(BrokenPipeError), open(write, "w", encoding="utf-8") as screen:
        with contextlib.chdir(place), contextlib.redirect_stderr(screen):
            status = main(["train", "recipe.toml", "--name", "unread"])
        reader.join()
    done = metrics(place, "unread")

    assert status == 141
    assert 3 <= len(done) <= STEPS
    assert last_saved(place, "unread") in (
        len(done) - 1,
        len(done),
    )  # more than recorded: still open
    here(place, "train", "--resume", "unread")
    assert undisturbed == metrics(place, "unread")


@pytest.mark.slow
@pytest.mark.usefixtures("no_curves")
def test_a_run_without_a_checkpoint_says_that_it_begins_again(
    place: Path, undisturbed: list[dict[str, Any]]
) -> None:
    shutil.copytree(place / "runs" / "calm", place / "runs" / "bare")
    shutil.rmtree(place / "runs" / "bare" / "checkpoints")

    _, err = here(place, "train", "--resume", "bare")

    assert f"no checkpoint was saved: begins again, {STEPS} steps are repeated" in " ".join(
        err.split()
    )
    assert undisturbed == metrics(place, "bare")


def test_a_second_process_on_the_same_run_is_refused(
    place: Path, start: Callable[..., ForkedRun]
) -> None:
    """One run folder, one process."""
    first = start("train", "recipe.toml", "--name", "held", "--set", "run.steps=1000")
    wait_for_step(place / "runs" / "held", 1, first)
    os.kill(first.pid, signal.SIGSTOP)  # it keeps its lock and spends nothing
    _, err = here(place, "train", "--resume", "held", status=1)
    os.kill(first.pid, signal.SIGKILL)
    assert first.finish() == -signal.SIGKILL

    assert "error:" in err
    assert "Traceback" not in err
    assert str(first.pid) in err


def test_a_fork_does_not_become_a_second_trainer(
    place: Path, start: Callable[..., ForkedRun]
) -> None:
    """The child of a bare `os.fork` in an author's code ends as soon as it returns to Quintain."""
    forks = """use = "author:Misbehaving"\nargs = { mode = "forks" }"""
    text = (place / "recipe.toml").read_text()
    (place / "forks.toml").write_text(text.replace('use = "letters:Letters"', forks))
    words = "--set run.steps=2 --set evaluation.every=0 --set evaluation.test.tasks=0"
    before = processes_in(place)

    status = start("train", "forks.toml", "--name", "forks", *words.split()).finish()

    assert status == 0, (place / "errors.txt").read_text()
    assert [record["step"] for record in metrics(place, "forks")] == [0, 1, 2]
    assert processes_in(place) == before  # that from which runs are forked


def processes_in(place: Path) -> list[str]:
    """The command lines of the processes that work in *place*."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if folder.joinpath("cwd").readlink() == place:
                found.append(folder.joinpath("cmdline").read_text())
    return found


@pytest.mark.usefixtures("no_curves")
def test_diverged_weights_are_never_a_checkpoint(place: Path) -> None:
    """A learning rate of 1e300 ends the run with one line, and no checkpoint of NaN weights
    exists.
    """
    _, err = here(
        place, "train", "recipe.toml", "--name", "nan", "--set", "learner.lr=1e300", status=1
    )

    assert "Traceback" not in err
    assert "its weights have diverged" in err, err
    assert not list((place / "runs" / "nan" / "checkpoints").glob("*"))


def test_a_temperature_schedule_is_that_of_samples_and_update(
    place: Path, start: Callable[..., ForkedRun]
) -> None:
    """The samples of a step have its temperature, the learner agrees with their log-probs, and a
    run that was killed goes on with it.
    """
    words = ["--set", "sampling.schedules.temperature={ramp=[2,0.5,3]}", "--steps", "5"]
    process = start("train", "recipe.toml", *words, "--name", "cooled")
    wait_for_step(place / "runs" / "cooled", 2, process)
    kill(process)
    here(place, "train", "--resume", "cooled")
    here(place, "train", "recipe.toml", *words, "--name", "whole")

    steps = metrics(place, "whole")[1:]
    assert [m["schedule.sampling.temperature"] for m in steps] == [2, 1.5, 1, 0.5, 0.5]
    assert max(m["mismatch.sample"] for m in steps) < 1e-4
    folder = RunFolder.open(place / "runs" / "whole", lock=False)
    for step, temperature in enumerate([2, 1.5, 1, 0.5, 0.5], 1):
        for row in folder.read_rollouts(step):
            (transcript,) = json.loads(row["rollout"])["transcripts"].values()
            assert transcript["temperature"] == temperature
    assert metrics(place, "cooled") == metrics(place, "whole")
