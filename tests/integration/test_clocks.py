"""Runs that are stopped for a while, and runs whose wall clock jumps."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from quintain.store.run_folder import RunFolder

from ..small_run import make_small_run, small_recipe
from .forks import ForkedRun, forked_runs

HERE = Path(__file__).parent
SCHEDULES = {"here": "", "processes": "[workers]\nepisodes = 1"}
FAKETIME = [*Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")]
LIMIT = 3.0
"""Seconds that an episode of `SlowLetters` may take."""


def outcome(run: Path) -> tuple[list[dict[str, Any]], list[tuple[Any, ...]]]:
    """The metrics of a run without what a clock says, and its episodes."""
    folder = RunFolder.open(run, lock=False)
    records = folder.metrics()
    seconds = [v for r in records for k, v in r.items() if "seconds" in k or "per_second" in k]
    assert seconds
    assert all(v >= 0 for v in seconds)
    metrics = [
        {k: v for k, v in record.items() if "seconds" not in k and "per_second" not in k}
        for record in records
    ]
    names = ("task_id", "sample", "reply", "termination", "attempts", "outcome", "token_logps")
    steps = [record["step"] for record in records[1:]]
    rows = [row for step in steps for row in folder.read_rollouts(step)]
    return metrics, [tuple(row[name] for name in names) for row in rows]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model and recipes of two steps of slow letters."""
    folder = tmp_path_factory.mktemp("clocks")
    for name, schedule in SCHEDULES.items():
        recipe = small_recipe('use = "letters:SlowLetters"', steps=2, tables=schedule)
        (folder / f"{name}.toml").write_text(recipe)
    return make_small_run(folder, recipe)


@pytest.fixture(scope="module")
def start(place: Path) -> Iterator[Callable[..., ForkedRun]]:
    """Starts `quintain` with some words in *place* in a process of its own, one at a time."""
    with forked_runs(place, PYTHONPATH=str(HERE)) as start:
        yield start


def children_of(pid: int) -> list[int]:
    """The processes that the process *pid* has started."""
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for file in lists for child in file.read_text().split()]


def wait_for(file: Path, process: ForkedRun) -> None:
    """Wait until *file* exists, and fail where *process* ends before."""
    while not file.exists():
        assert process.runs, (file.parent / "errors.txt").read_text()
        time.sleep(0.01)


@pytest.mark.more
@pytest.mark.parametrize("name", SCHEDULES)
def test_time_in_which_a_run_was_stopped_is_nobodys(
    name: str, place: Path, start: Callable[..., ForkedRun]
) -> None:
    """SIGSTOP in the middle of an episode, for longer than it may take: it ends as it would have,
    at the first attempt.
    """
    assert start("train", f"{name}.toml", "--name", f"{name}-calm").finish() == 0
    (place / "waits").unlink()

    process = start("train", f"{name}.toml", "--name", f"{name}-stopped")
    wait_for(place / "waits", process)
    pids = [process.pid, *children_of(process.pid)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(2 * LIMIT)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)

    assert process.finish() == 0, (place / "errors.txt").read_text()
    (place / "waits").unlink()
    assert outcome(place / "runs" / f"{name}-stopped") == outcome(place / "runs" / f"{name}-calm")


@pytest.mark.more
def test_time_in_which_code_blocks_the_run_is_the_policys(
    place: Path, start: Callable[..., ForkedRun]
) -> None:
    """The process runs on while its event loop is blocked, which is no pause."""
    words = f"--set run.steps=1 --set environments.0.args.blocks={LIMIT + 1}"
    assert start("train", "here.toml", "--name", "blocked", *words.split()).finish() == 0
    _, episodes = outcome(place / "runs" / "blocked")
    # the others wait for it, which is not their policy's time
    assert "policy_timeout" in {episode[3] for episode in episodes}


@pytest.mark.ci
@pytest.mark.skipif(not FAKETIME, reason="needs libfaketime (apt-get install faketime)")
def test_a_wall_clock_that_jumps_changes_nothing(place: Path, tmp_path: Path) -> None:
    """A day forward and two back while episodes run, as a clock that is set."""
    shift, begun = tmp_path / "shift", place / "waits"
    shift.write_text("+0")
    words = ("train", "here.toml", "--set", "run.steps=3", "--set", "checkpoint.every=1", "--name")
    faked = {
        "LD_PRELOAD": str(FAKETIME[0]),
        "FAKETIME_TIMESTAMP_FILE": str(shift),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "PYTHONPATH": str(HERE),
    }
    with forked_runs(place, **faked) as start:
        assert start(*words, "right").finish() == 0, (place / "errors.txt").read_text()
        begun.unlink()
        process = start(*words, "jumps")
        for lines, days in ((1, "+1d"), (5, "-1d")):  # four episodes are a step
            wait_for(begun, process)
            while begun.read_text().count("\n") < lines:
                assert process.runs, (place / "errors.txt").read_text()
                time.sleep(0.01)
            shift.write_text(days)
        assert process.finish() == 0, (place / "errors.txt").read_text()
    dates = [float(line) for line in begun.read_text().splitlines()]
    begun.unlink()
    assert max(dates) - min(dates) > 1.5 * 86_400
    assert outcome(place / "runs" / "jumps") == outcome(place / "runs" / "right")
