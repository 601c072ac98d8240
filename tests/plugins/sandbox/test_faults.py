"""Faults of the host around the provider `bubblewrap`: killed helpers, full disks, no descriptors,
clocks.
"""

from __future__ import annotations

import ast
import asyncio
import itertools
import os
import resource
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import quintain_sandbox
from quintain.errors import InfrastructureError
from quintain_sandbox import Bubblewrap, ProgramLimits, ProgramResult
from quintain_sandbox.launcher import Launcher

from .service import command_line, left_behind

PATIENT = ProgramLimits(seconds=30.0, cpu_seconds=30.0)
RUN = ["python3", "-I", "main.py"]


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Bubblewrap]:
    others.extend(launchers())
    service = Bubblewrap(slots=2, enforce=())
    try:
        asyncio.run(service.__aenter__())
    except InfrastructureError as e:
        pytest.skip(f"bubblewrap does not work here: {e}")
    yield service
    asyncio.run(service.__aexit__())
    deadline = time.monotonic() + 1.0
    while left := left_behind(None):
        assert time.monotonic() < deadline, left
        time.sleep(0.02)


def ok(sandbox: Bubblewrap) -> bool:
    return asyncio.run(sandbox.run({"main.py": b"print(1)"}, RUN, limits=PATIENT)).status == "ok"


others: list[int] = []
"""Launchers of services that other modules of tests have started in this process."""


def children(pid: int) -> list[int]:
    """The processes that threads of a process started."""
    return [
        int(word)
        for task in Path(f"/proc/{pid}/task").iterdir()
        for word in (task / "children").read_text().split()
    ]


def launchers() -> list[int]:
    """The launchers of this module's service."""
    return [
        pid
        for pid in children(os.getpid())
        if b"launcher_main.py" in command_line(pid) and pid not in others
    ]


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGKILL,
        pytest.param(signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param(signal.SIGSEGV, marks=pytest.mark.slow),
    ],
)
def test_a_launcher_that_dies_ends_everything_of_it(
    sandbox: Bubblewrap, number: signal.Signals
) -> None:
    """Runs, conversations and sessions raise, no process stays, and the next run has a new
    launcher.
    """

    async def dies() -> list[BaseException | object]:
        running = [asyncio.Event(), asyncio.Event()]

        async def converse() -> None:
            async with sandbox.start({}, ["cat"], PATIENT) as program:
                running[0].set()
                await program.read_line()

        async def work() -> None:
            async with sandbox.session() as session:
                running[1].set()
                await session.run(["sleep", "3600"])

        tasks = [asyncio.create_task(converse()), asyncio.create_task(work())]
        for event in running:
            await asyncio.wait_for(event.wait(), 30)
        await asyncio.sleep(0.2)
        (launcher,) = launchers()
        os.kill(launcher, number)
        return await asyncio.gather(*tasks, return_exceptions=True)

    assert [InfrastructureError] * 2 == [type(outcome) for outcome in asyncio.run(dies())]
    assert ok(sandbox)


def test_a_stopped_launcher_delays_and_loses_nothing(sandbox: Bubblewrap) -> None:
    """Its results come when it continues; time limits are measured by the kernel's clock and kept
    by the trainer.
    """

    async def stopped() -> ProgramResult:
        task = asyncio.create_task(sandbox.run({}, ["sleep", "0.1"], limits=PATIENT))
        await asyncio.sleep(0.05)
        (launcher,) = launchers()
        os.kill(launcher, signal.SIGSTOP)
        await asyncio.sleep(0.5)
        os.kill(launcher, signal.SIGCONT)
        return await task

    assert asyncio.run(stopped()).status == "ok"
    assert ok(sandbox)


def test_a_killed_bubblewrap_takes_its_program_with_it(sandbox: Bubblewrap) -> None:
    """At any moment of the start: the program ends, and the run is no result, or the whole one.

    Two guards see to that, each with a test of its own below: the kernel, as bubblewrap asks for it
    (which alone ends the program where the launcher is gone), and the launcher, before bubblewrap
    has asked.
    """

    async def killed(after: float) -> BaseException | ProgramResult:
        task = asyncio.create_task(sandbox.run({}, ["sleep", "1.5"], limits=PATIENT))
        await asyncio.sleep(after)
        for name in left_behind(None):
            if name.startswith("process"):
                os.kill(int(name.split()[1]), signal.SIGKILL)
        (outcome,) = await asyncio.gather(task, return_exceptions=True)
        return outcome

    kinds = set()
    for step in range(12):
        outcome = asyncio.run(killed(0.004 * step))
        kinds.add(getattr(outcome, "status", type(outcome)))
        deadline = time.monotonic() + 1.0  # the program itself takes 1.5
        while sleeping := [name for name in left_behind(None) if name.endswith(" sleep")]:
            assert time.monotonic() < deadline, sleeping
            time.sleep(0.01)
    assert InfrastructureError in kinds
    assert kinds <= {InfrastructureError, "ok"}
    assert ok(sandbox)


def test_the_kernel_ends_the_program_of_a_killed_bubblewrap(sandbox: Bubblewrap) -> None:
    """Also while the launcher, which would end it, does not run."""
    left: list[str] = []

    async def killed() -> None:
        async with sandbox.start({}, ["sleep", "3598"], PATIENT) as program:
            assert await_processes(b"sleep\x003598\0", 1)
            (launcher,) = launchers()
            os.kill(launcher, signal.SIGSTOP)
            try:
                for child in children(launcher):
                    os.kill(child, signal.SIGKILL)
                left.extend(await_processes(b"sleep\x003598\0", 0))
            finally:
                os.kill(launcher, signal.SIGCONT)
            await program.wait()

    with pytest.raises(InfrastructureError):
        asyncio.run(killed())
    assert left == []
    assert ok(sandbox)


def test_the_launcher_ends_what_a_killed_process_leaves() -> None:
    """bubblewrap may be killed before its child has asked the kernel to be killed with it."""
    launcher = Launcher()
    with open(os.devnull, "r+b") as null:
        process = launcher.launch(
            ["/bin/sh", "-c", "sleep 3597 & wait"], [null.fileno()] * 3, limits={}
        )
    assert await_processes(b"sleep\x003597\0", 1)
    process.kill()
    assert await_processes(b"sleep\x003597\0", 0) == []
    process.close()
    launcher.close()


def await_processes(command: bytes, number: int) -> list[str]:
    """The processes with this command line, as soon as they are *number*, and after five
    seconds.
    """
    deadline = time.monotonic() + 5.0
    while True:
        found = [
            folder.name
            for folder in Path("/proc").glob("[0-9]*")
            if command == command_line(int(folder.name))
        ]
        if len(found) == number or time.monotonic() > deadline:
            return found
        time.sleep(0.01)


def test_a_full_disk_is_a_warning_at_the_start_and_stops_no_run(
    sandbox: Bubblewrap, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the canaries need the host's temporary folder; programs and their files are in
    memory.
    """
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4k,nr_inodes=2", "none", tmp_path]
    ).returncode:
        pytest.skip("mounts need root")
    try:
        (tmp_path / "full").write_bytes(b"")
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        assert ok(sandbox)

        async def start() -> None:
            async with Bubblewrap(slots=1, enforce=()):
                pass

        with pytest.raises(InfrastructureError, match="cannot be prepared.*No space left"):
            asyncio.run(start())
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_a_host_without_descriptors_is_no_result(sandbox: Bubblewrap) -> None:
    """Whichever descriptor is the one too many, the run raises, nothing leaks, and the next one
    works.
    """

    async def attempt() -> str:
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        outcomes = []
        for room in range(24):
            taken = {int(name) for name in os.listdir("/proc/self/fd")}
            free = (number for number in range(4096) if number not in taken)
            limit = next(itertools.islice(free, room, None))
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
            try:
                outcomes.append(
                    (await sandbox.run({"main.py": b"print(1)"}, RUN, limits=PATIENT)).status
                )
            except InfrastructureError:
                outcomes.append("error")
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, before)
        return " ".join(outcomes)

    assert ok(sandbox)
    descriptors = len(os.listdir("/proc/self/fd"))
    outcomes = asyncio.run(attempt())
    assert outcomes.startswith("error")
    assert outcomes.endswith("ok")
    assert set(outcomes.split()) == {"error", "ok"}
    deadline = time.monotonic() + 1.0
    while descriptors < len(os.listdir("/proc/self/fd")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert ok(sandbox)


def test_no_limit_is_measured_by_a_clock_that_jumps() -> None:
    """No module asks for the time of day, which administrators and time servers set; files that go
    into a container have it as the time at which they were written.
    """
    for path in Path(quintain_sandbox.__file__).parent.glob("*.py"):
        if path.name == "task_container.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute):
                asked = ast.unparse(node)
                assert asked not in {
                    "time.time",
                    "time.time_ns",
                    "datetime.now",
                    "datetime.datetime.now",
                }, path.name
