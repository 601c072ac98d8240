"""An episode process on a machine that vanishes: a network namespace whose cable is pulled."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from quintain.types import AnyGroup

from .test_elsewhere import Here, until
from .test_episodes import opened, without_time

OURS, THEIRS = "10.78.0.1", "10.78.0.2"
FOUND = 30.0
"""Seconds in which a machine that is gone has to be found."""
GUARD = 90.0
"""Seconds after which a test that waits has failed."""


def ip(words: str, *, check: bool = True) -> bool:
    """Run `ip` with *words*; return whether it could."""
    done = subprocess.run(["ip", *words.split()], check=check, capture_output=not check)
    return not done.returncode


def may_make_namespaces() -> bool:
    """Return whether this process may make network namespaces."""
    name = f"quintain-may-{os.getpid()}"
    if shutil.which("ip") is None or not ip(f"netns add {name}", check=False):
        return False
    return ip(f"netns del {name}", check=False)


class Machine:
    """A network namespace with a cable to this one."""

    def __init__(self) -> None:
        self.name, self._end = f"quintain-lost-{os.getpid()}", f"ql{os.getpid()}"
        self.words = ("ip", "netns", "exec", self.name)

    def has(self, pid: int) -> bool:
        """Return whether a process is on it."""
        return os.readlink(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net")

    def pull_cable(self) -> None:
        """Let no packet come or go any more, and tell nobody."""
        ip(f"-n {self.name} link set {self._end}b down")

    def put_cable(self) -> None:
        """Connect it again."""
        ip(f"-n {self.name} link set {self._end}b up")

    def connect(self) -> None:
        """Make it."""
        ip(f"netns add {self.name}")
        ip(f"link add {self._end}a type veth peer name {self._end}b netns {self.name}")
        ip(f"address add {OURS}/24 dev {self._end}a")
        ip(f"link set {self._end}a up")
        ip(f"-n {self.name} address add {THEIRS}/24 dev {self._end}b")
        self.put_cable()


@contextmanager
def machine() -> Iterator[Machine]:
    made = Machine()
    try:
        made.connect()
        yield made
    finally:
        ip(f"netns del {made.name}", check=False)  # with the cable


@pytest.mark.slow
@pytest.mark.skipif(not may_make_namespaces(), reason="needs root and ip, for network namespaces")
def test_a_machine_that_vanishes_is_found_and_costs_no_episode(tmp_path: Path) -> None:
    """Nobody says that it is gone. Its episodes are played again on the other one, and it is used
    again once it is back. All are scored as without a loss.
    """
    cluster = Here(tmp_path)
    cluster.host = OURS

    async def run(lost: Machine) -> tuple[float, list[list[AnyGroup]]]:
        async with asyncio.timeout(GUARD), opened("OneTurn", cluster=cluster) as played:
            assert sorted(map(lost.has, played.pids)) == [False, True]
            expected = await played.run(10, 2)
            asked = played.engine.asked
            played.engine.hold = True
            running = asyncio.create_task(played.run(10, 2))
            await until(lambda: played.engine.asked == asked + 20)
            lost.pull_cable()
            began = time.monotonic()
            await until(lambda: played.processes.deaths == 1)
            seconds = time.monotonic() - began
            played.engine.hold = False
            during = await running
            assert not any(map(lost.has, played.pids))
            assert played.engine.asked > asked + 20  # some were played again
            lost.put_cable()
            await until(lambda: any(map(lost.has, played.pids)))
            return seconds, [expected, during, await played.run(10, 2)]

    with machine() as lost:
        cluster.before = [(), lost.words]
        seconds, (expected, during, after) = asyncio.run(run(lost))
        cluster.close()
    print(f"\nfound after {seconds:.1f} s")
    assert seconds < FOUND
    assert without_time(during) == without_time(expected) == without_time(after)
