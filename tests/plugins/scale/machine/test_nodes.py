"""Machines that join a run: here processes of this machine, whose devices have names of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from quintain.errors import RunError, UsageError
from quintain_scale.machine import Machine
from quintain_scale.machine.division import taken
from quintain_scale.machine.nodes import TOKEN

from ....processes import within
from ...learners.fsdp.test_remote import SECRET, free_port
from .test_machine import claimed, machine, request

JOIN = [sys.executable, "-m", "quintain_scale.machine.join"]


@contextmanager
def joining(port: int, count: int, **environment: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that stand for machines with two devices each: a0 and a1, b0 and b1."""
    own = os.environ | {TOKEN: SECRET, "OMP_NUM_THREADS": "1"} | environment
    processes = [
        subprocess.Popen(
            [*JOIN, f"127.0.0.1:{port}", "--devices", "2"],
            env=own | {"CUDA_VISIBLE_DEVICES": f"{name}0,{name}1", "SLURM_NODEID": str(number)},
        )
        for number, name in enumerate("ab"[:count])
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.mark.more
def test_ranks_and_servers_are_on_machines_that_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two ranks have one of them, a server of two devices the other. What a machine had is over when
    that is lost; the others end with the run.
    """
    monkeypatch.setenv(TOKEN, SECRET)
    port = free_port()
    with joining(port, 2) as nodes:
        place = f"127.0.0.1:{port}"
        with machine(learn=2, sample=2, devices=2, machines=2, rendezvous=place) as made:
            assert not made.is_local
            ranks = made.start([request("rank", tmp_path), request("rank", tmp_path)])
            (server,) = made.start([request("replica", tmp_path, gpus=2)])
            assert within(100, lambda: len(claimed(tmp_path)) == 3)
            assert claimed(tmp_path) == ["a0", "a1", "b0,b1"]
            assert server.host == "127.0.0.1"
            nodes[1].kill()
            assert within(60, lambda: server.ended is not None)
            assert str(server.ended) == "exit code 1: its machine 127.0.0.1 is gone"
            assert [rank.ended for rank in ranks] == [None, None]
            ranks[0].end()
            assert str(ranks[0].ended).startswith("exit code -9")
        assert nodes[0].wait(60) == 0


def test_machines_that_do_not_join_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    place = f"127.0.0.1:{free_port()}"
    monkeypatch.delenv(TOKEN, raising=False)
    with pytest.raises(UsageError, match=f"set it as {TOKEN} on all"):
        Machine(learn=2, devices=2, machines=2, rendezvous=place)
    monkeypatch.setenv(TOKEN, SECRET)
    with pytest.raises(RunError, match=r"machines 0, 1 of 2 have not joined.*quintain launch"):
        Machine(learn=2, devices=2, machines=2, rendezvous=place, patience=0.1)
    with pytest.raises(UsageError, match="machines is 2 and rendezvous None"):
        Machine(learn=2, devices=2, machines=2)
    with pytest.raises(UsageError, match="expected host:port"):
        Machine(learn=2, devices=2, machines=2, rendezvous="node0")


@pytest.mark.more
def test_a_machine_with_another_token_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, SECRET)
    port = free_port()
    with joining(port, 1, **{TOKEN: "x" * 40}) as nodes:
        with pytest.raises(RunError, match="machines 0 of 1 have not joined"):
            Machine(learn=1, devices=2, rendezvous=f"127.0.0.1:{port}", patience=30)
        assert nodes[0].wait(60) == 2


def test_a_process_has_devices_of_one_machine() -> None:
    free = [1, 2, 3, 5]
    assert taken(free, 2, each=2) == [2, 3]
    assert free == [1, 5]
    assert taken(free, 2, each=2) is None
    assert taken(free, 0, each=2) == []
    assert free == [1, 5]
