"""What an author's code does, seen from outside: statuses, signals, threads and forks of whole
processes.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ..core.models.tiny import save_tiny
from ..lanes import mostly_slow

AUTHOR = Path(__file__).with_name("author.py")
WALL = 300.0
"""Seconds for what takes a few: the machine may be busy."""
GRACE = 1.5


def start(place: Path, *words: str, **environ: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "quintain", *words],
        cwd=place,
        env={
            **os.environ,
            "QUINTAIN_GRACE_SECONDS": str(GRACE),
            "PYTHONPATH": str(AUTHOR.parent),
            **environ,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def evaluation(mode: str, where: str = "reward") -> list[str]:
    arguments = [word for pair in (f"mode={mode}", f"where={where}") for word in ("--arg", pair)]
    return ["eval", f"{AUTHOR}:Misbehaving", "--engine", "@oracle", "--retries", "0", *arguments]


def recipe(place: Path, mode: str, where: str = "reward", steps: int = 3) -> Path:
    path = place / "recipe.toml"
    path.write_text(
        f"""
[run]
name = "run"
steps = {steps}
[model]
name = "{save_tiny(place / "model", context=256)}"
[[environments]]
use = "author:Misbehaving"
args = {{ mode = "{mode}", where = "{where}" }}
[sampling]
max_tokens = 4
[batch]
prompts = 4
group_size = 2
[evaluation]
every = 0
[evaluation.test]
tasks = 0
[checkpoint]
every = 1
"""
    )
    return path


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=WALL)
    except subprocess.TimeoutExpired:
        process.kill()
        raise AssertionError(f"still there after {WALL} s:\n{process.communicate()[1]}") from None
    return process.returncode, out, err


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + WALL
    while not path.exists():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.more
@pytest.mark.parametrize("where", mostly_slow(["reward", "rollout", "tasks"], ["reward"]))
def test_an_evaluation_whose_author_calls_exit_fails(where: str, tmp_path: Path) -> None:
    status, out, err = finish(start(tmp_path, *evaluation("exits", where)))

    assert status == 1, err
    text = " ".join((out + err).split())  # tables wrap at 80 columns
    assert "SystemExit: 0 (author.py, line" in text
    assert "Traceback" not in err


@pytest.mark.slow
def test_failures_leave_the_other_rollouts(tmp_path: Path) -> None:
    """In a whole process; tests/core/rollouts/test_author_failures.py shows each alone. Also where
    threads of the author never end, and where a task of the author exits, which ends an event loop.
    """
    modes = "cancels, exits in a task, waits without end, keeps a thread, leaves a thread"
    status, out, err = finish(
        start(tmp_path, *evaluation(modes), "--json", "--max-failures", "0.6")
    )

    assert status == 0, err
    assert json.loads(out)["failed"] == 4
    assert json.loads(out)["rollouts"] == 8
    assert re.search(
        r"reward_error: reward 'judged' failed: SystemExit: 0 \(author.py, line \d+\)", out
    )
    assert re.search(
        r"SystemExit: 0 \(author.py, line \d+\) in a task that is not Quintain's; the command con",
        err,
    )
    assert "reward 'judged' on task 'task-5' catches its cancellation and still runs" in err
    assert "Traceback" not in err
    assert "still runs; the process ends without it" in err


Blocks = tuple[str, str, tuple[signal.Signals, ...]]
BLOCKS: list[Blocks] = [
    ("spins", "reward", (signal.SIGINT, signal.SIGINT)),
    ("sleeps", "rollout", (signal.SIGTERM,)),
    ("catches", "reward", (signal.SIGINT, signal.SIGINT)),
]
MORE: list[Blocks] = [
    ("backtracks", "reward", (signal.SIGINT, signal.SIGINT)),
    ("backtracks", "reward", (signal.SIGTERM,)),
    ("catches", "rollout", (signal.SIGTERM,)),
    ("spins", "tasks", (signal.SIGINT, signal.SIGINT)),
]


@pytest.mark.more
@pytest.mark.parametrize(
    "blocks", [BLOCKS, pytest.param(MORE, marks=pytest.mark.ci)], ids=["some", "more"]
)
def test_code_that_blocks_an_evaluation_is_named_and_stopped(
    blocks: list[Blocks], tmp_path: Path
) -> None:
    """Whatever it blocks in; all at the same time, since most of this is waiting."""
    processes = []
    for i, (mode, where, _) in enumerate(blocks):
        (tmp_path / str(i)).mkdir()
        processes.append(
            start(tmp_path / str(i), *evaluation(mode, where), QUINTAIN_STALL_SECONDS="0.5")
        )
    for i, process in enumerate(processes):
        wait_for(tmp_path / str(i) / "here", process)
    time.sleep(2)
    for (_, _, signals), process in zip(blocks, processes, strict=True):
        stop(process, *signals)
    for (mode, where, signals), process in zip(blocks, processes, strict=True):
        status, _, err = finish(process)
        case = f"{mode} in {where}, {signals}: {status}\n{err}"
        assert status, case
        assert "Traceback" not in err, case
        if mode == "catches":
            assert 128 + signals[-1] == status, case
            assert "the process was ended" in err, case
        if mode != "backtracks":  # it keeps the global lock
            name = {
                "reward": "judged",
                "rollout": "Misbehaving.rollout",
                "tasks": "Misbehaving.tasks",
            }[where]
            task = "" if where == "tasks" else " on task 'task-3'"
            assert re.search(rf"s for {name} \(author.py, line \d+\){task}, which blocks", err), (
                case
            )


def stop(process: subprocess.Popen[str], *signals: signal.Signals) -> None:
    for number in signals:
        time.sleep(0.3)
        process.send_signal(number)


@pytest.mark.ci
def test_code_that_blocks_a_run_can_be_stopped_and_the_run_resumes(tmp_path: Path) -> None:
    """The steps before are kept."""
    cases = {
        "spins": (signal.SIGTERM,),
        "waits without end": (signal.SIGTERM,),
        "catches": (signal.SIGINT, signal.SIGINT),
    }
    processes = {}
    for mode in cases:
        (tmp_path / mode).mkdir()
        processes[mode] = start(
            tmp_path / mode, "train", str(recipe(tmp_path / mode, mode, steps=6))
        )
    for mode, signals in cases.items():
        wait_for(tmp_path / mode / "here", processes[mode])
        stop(processes[mode], *signals)
    for mode, signals in cases.items():
        run = tmp_path / mode / "runs" / "run"
        status, _, err = finish(processes[mode])
        assert (128 + signals[-1] if mode == "catches" else 130) == status, err
        assert mode != "spins" or "continue with" in err
        steps = [
            json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()
        ]
        saved = sorted(int(p.name[-6:]) for p in (run / "checkpoints").glob("step-*"))
        assert [step for step in steps if step][-1:] == saved[-1:]

    (tmp_path / "spins" / "fixed").touch()
    status, _, err = finish(start(tmp_path / "spins", "train", "--resume", "run"))
    assert status == 0, err


@pytest.mark.more
def test_an_import_that_blocks_is_named(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import time\ntime.sleep(2)\nfrom author import Misbehaving\n"
    )
    words = ["eval", "slow.py:Misbehaving", "--engine", "@oracle", "--json"]
    status, _, err = finish(start(tmp_path, *words, QUINTAIN_STALL_SECONDS="0.5"))

    assert status == 0, err
    assert "s for <module> (slow.py, line 2), which blocks" in err
