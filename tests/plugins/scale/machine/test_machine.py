"""Processes of the cluster `machine`, which claim the devices that they see and refuse a second claim."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from quintain.errors import UsageError
from quintain.interfaces import ProcessRequest
from quintain_scale.machine import Machine
from quintain_scale.machine.cluster import MachineProcess

from ....processes import within

CLAIMS = str(Path(__file__).parent / "claims.py")


@contextmanager
def machine(**settings: Any) -> Iterator[Machine]:
    made = Machine(**settings)
    try:
        yield made
    finally:
        for one in made._started:
            one.end()
        made.close()


def request(role: Any, folder: Path, *, gpus: float = 1, restarts: bool = False) -> ProcessRequest:
    words = ("-S", "-E", CLAIMS, str(folder))
    return ProcessRequest(role=role, words=words, gpus=gpus, restarts=restarts)


def claimed(folder: Path) -> list[str]:
    """What processes have now, as they say."""
    had = Counter[str]()
    for line in (folder / "log").read_text().splitlines() if (folder / "log").exists() else ():
        _, what, devices = line.split(" ")
        had[devices] += 1 if what == "claims" else -1
    return sorted(had.elements())


def leave(placed: MachineProcess) -> None:
    """Let a process give up what it has, and end."""
    process = placed._process
    assert process is not None
    process.send_signal(signal.SIGTERM)
    assert within(60, lambda: placed.ended is not None)


def test_each_device_is_claimed_once(tmp_path: Path) -> None:
    """By two ranks, a server of two devices and four of one. A worker sees none."""
    with machine(sample=6, learn=2, devices=8) as made:
        placed = [*made.start([request("rank", tmp_path), request("rank", tmp_path)])]
        placed += made.start([request("replica", tmp_path, gpus=2)])
        for _ in range(4):
            placed += made.start([request("replica", tmp_path)])
        placed += made.start([request("worker", tmp_path, gpus=0)])
        assert within(60, lambda: len(claimed(tmp_path)) == 8)
        assert [one.ended for one in placed] == [None] * 8
        assert claimed(tmp_path) == ["", "0", "1", "2,3", "4", "5", "6", "7"]
        (late,) = made.start([request("replica", tmp_path)])
        assert late.host == ""
        leave(placed[3])
        assert within(60, lambda: claimed(tmp_path) == ["", "0", "1", "2,3", "4", "5", "6", "7"])
        assert late.host == made.host
        placed[4].end()
    assert all(one.ended is not None for one in placed)


def test_turns_give_a_device_to_a_server_and_a_rank(tmp_path: Path) -> None:
    """Each claims it while the other has given it up, which is refused before."""
    with machine(turns=True, devices=2) as made:
        seen: list[str] = []
        for _ in range(2):
            for role in ("replica", "rank"):
                placed = made.start([request(role, tmp_path)])
                assert within(60, lambda: len(claimed(tmp_path)) == 1)
                seen += claimed(tmp_path)
                leave(placed[0])
        assert seen == ["0", "0", "0", "0"]
        made.start([request("replica", tmp_path)])
        assert within(60, lambda: len(claimed(tmp_path)) == 1)
        (second,) = made.start([request("rank", tmp_path)])
        assert within(60, lambda: second.ended is not None)
        assert "FileExistsError" in str(second.ended)
        assert made.share == 0.6


def test_a_process_that_is_killed_starts_again_on_its_device(tmp_path: Path) -> None:
    with machine(sample=1, learn=1, devices=2) as made:
        (placed,) = made.start([request("rank", tmp_path, restarts=True)])
        assert within(60, lambda: claimed(tmp_path) == ["0"])
        first = placed._process
        assert first is not None
        for file in tmp_path.iterdir():
            file.unlink()
        os.kill(first.pid, signal.SIGKILL)
        assert within(60, lambda: claimed(tmp_path) == ["0"])
        assert placed.ended is None
        placed.end()
        assert str(placed.ended).startswith("exit code -9")


def test_a_process_that_leaves_one_behind_has_ended(tmp_path: Path) -> None:
    """Also if that holds its output open: its device is free."""
    code = "import subprocess, sys; print(subprocess.Popen(['sleep', '60']).pid, flush=True)"
    with machine(sample=1, learn=1, devices=2) as made:
        words = ("-c", code)
        (placed,) = made.start([ProcessRequest(role="rank", words=words, gpus=1)])
        assert within(30, lambda: placed.ended is not None)
        said = str(placed.ended)
        assert said.startswith("exit code 0: ")
        os.kill(int(said.split()[-1]), signal.SIGKILL)
        assert made.start([request("rank", tmp_path)])[0].host == made.host


def test_a_process_that_cannot_be_started_says_why(tmp_path: Path) -> None:
    with machine(sample=1, learn=1, devices=2) as made:
        too_long = {"LONG": "x" * 2**22}
        asked = ProcessRequest(role="rank", words=("-c", ""), gpus=1, environment=too_long)
        (placed,) = made.start([asked])
        assert within(30, lambda: placed.ended is not None)
        assert "Argument list too long" in str(placed.ended)
        assert made.start([request("rank", tmp_path)])[0].host == made.host


def test_more_than_there_is_is_refused(tmp_path: Path) -> None:
    """Where nothing that runs would ever make room."""
    with machine(sample=2, learn=1, devices=3) as made:
        with pytest.raises(UsageError, match=r"cluster.args.learn has 1: .*learner.args.ranks"):
            made.start([request("rank", tmp_path), request("rank", tmp_path)])
        with pytest.raises(UsageError, match=r"cluster.args.sample has 2: .* GPUs of a server"):
            made.start([request("replica", tmp_path, gpus=4)])
    assert not [*tmp_path.iterdir()]


def test_devices_that_are_not_there_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    with pytest.raises(UsageError, match="devices = 8, and torch sees 4"):
        Machine(learn=2, devices=8)
    with pytest.raises(UsageError, match=r"share is 1\.5"):
        Machine(learn=2, share=1.5)


def test_ranks_do_not_take_each_others_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch would take all of them in each process."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 12)
    words = ("-S", "-E", "-c", "import os; print(os.environ.get('OMP_NUM_THREADS'))")
    with machine(learn=3, devices=4) as made:
        placed = made.start([ProcessRequest(role="rank", words=words) for _ in range(3)])
        assert within(60, lambda: all(one.ended for one in placed))
        assert Counter(one.ended for one in placed) == {"exit code 0: 4": 3}
