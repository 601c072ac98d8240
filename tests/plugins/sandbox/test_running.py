"""Interactive programs in the provider `bubblewrap`: lines in and out, limits, ends, with real
processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from quintain.errors import InfrastructureError, UsageError
from quintain_sandbox import (
    Bubblewrap,
    LineTimeout,
    LineTooLong,
    ProgramLimits,
    ProgramResult,
    RunningProgram,
)

from .service import left_behind, started

PATIENT = ProgramLimits(seconds=30.0, cpu_seconds=30.0)
ECHO = "import sys\nfor line in sys.stdin: sys.stdout.write(line.upper()); sys.stdout.flush()"


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Bubblewrap]:
    yield from started(slots=50)


@pytest.fixture(autouse=True)
def nothing_left(sandbox: Bubblewrap) -> Iterator[None]:
    """After each test neither processes, zombies, control groups nor descriptors are left within a
    second.
    """
    descriptors = len(os.listdir("/proc/self/fd"))
    yield
    deadline = time.monotonic() + 1.0
    while left := left_behind(None) + ["descriptor"] * (
        len(os.listdir("/proc/self/fd")) - descriptors
    ):
        assert time.monotonic() < deadline, left
        time.sleep(0.02)


def talk(
    sandbox: Bubblewrap,
    code: str,
    conversation: Callable[[RunningProgram], Awaitable[Any]],
    limits: ProgramLimits = PATIENT,
) -> tuple[Any, ProgramResult]:
    """What *conversation* returned, and the result of the program after it."""

    async def talked() -> tuple[Any, ProgramResult]:
        async with sandbox.start(
            {"main.py": code.encode()}, ["python3", "-I", "main.py"], limits
        ) as program:
            value = await conversation(program)
            return value, await program.close()

    return asyncio.run(talked())


def test_lines_go_in_and_come_back(sandbox: Bubblewrap) -> None:
    """A program answers each line; without input it ends, and its result is that of a run."""

    async def conversation(program: RunningProgram) -> list[bytes]:
        lines = []
        for word in (b"one\n", b"two\n", b"last"):
            await program.write(word)
            if word == b"last":
                await program.end_input()
            lines.append(await program.read_line(seconds=20))
        lines.append(await program.read_line())
        with pytest.raises(UsageError, match="closed"):
            await program.write(b"more\n")
        return lines

    lines, result = talk(sandbox, ECHO, conversation)
    assert lines == [b"ONE\n", b"TWO\n", b"LAST", b""]
    assert result.status == "ok"
    assert result.exit == 0
    assert result.stdout == b""
    assert result.stderr == b""
    assert 0 < result.usage.seconds < 30
    assert (1 << 20) < result.usage.memory < PATIENT.memory


def test_lines_in_one_piece_come_one_by_one(sandbox: Bubblewrap) -> None:
    """Lines that arrive together are returned in order, empty ones too; what is not read is in the
    result.
    """

    async def conversation(program: RunningProgram) -> list[bytes]:
        lines = [await program.read_line() for _ in range(3)]
        await program.wait()
        return lines

    lines, result = talk(sandbox, "print('a\\n\\nb\\nc\\nd')", conversation)
    assert lines == [b"a\n", b"\n", b"b\n"]
    assert result.status == "ok"
    assert result.stdout == b"c\nd\n"


def test_a_line_that_does_not_come_is_a_timeout_and_no_end(sandbox: Bubblewrap) -> None:
    """The program still runs after it and can be read from; a part of a line stays for the next
    read.
    """

    async def conversation(program: RunningProgram) -> bytes:
        assert await program.read_line() == b"ready\n"
        began = time.monotonic()
        with pytest.raises(LineTimeout, match="within 0.2 s"):
            await program.read_line(seconds=0.2)
        assert 0.2 <= time.monotonic() - began < 5
        await program.write(b"\n")
        return await program.read_line(seconds=20)

    code = (
        "import sys; print('ready\\nhal', end='', flush=True); input(); print('f', flush=True); "
        "input()"
    )
    line, result = talk(sandbox, code, conversation)
    assert line == b"half\n"
    assert result.status == "closed"
    assert result.exit is None


def test_a_line_above_the_limit_is_refused_and_stays(sandbox: Bubblewrap) -> None:
    """Its size is found before its end; a later read with a larger limit gets it."""

    async def conversation(program: RunningProgram) -> bytes:
        with pytest.raises(LineTooLong, match="at most 1000"):
            await program.read_line(limit=1000)
        line = await program.read_line(limit=500_001)
        with pytest.raises(LineTooLong, match="at most 2"):
            await program.read_line(limit=2)
        assert await program.read_line(limit=4) == b"end\n"
        return line

    line, _ = talk(sandbox, "print('x' * 500_000); print('end')", conversation)
    assert line == b"x" * 500_000 + b"\n"


def test_large_lines_pass_both_ways(sandbox: Bubblewrap) -> None:
    """Lines larger than a pipe neither block the writer nor are cut."""
    data = os.urandom(1 << 19).hex().upper().encode() + b"\n"

    async def conversation(program: RunningProgram) -> bytes:
        await program.write(data)
        return await program.read_line(limit=len(data))

    line, _ = talk(sandbox, ECHO, conversation, ProgramLimits(seconds=30, output=1 << 22))
    assert line == data


def test_the_output_limit_holds_over_the_whole_life(sandbox: Bubblewrap) -> None:
    """Lines that were read count; a flood ends the program with status ``output``."""

    async def conversation(program: RunningProgram) -> int:
        size = 0
        while line := await program.read_line():
            size += len(line)
        return size

    limits = ProgramLimits(seconds=30, output=10_000)
    size, result = talk(sandbox, "while True: print('x' * 99)", conversation, limits)
    assert size == 10_000
    assert result.status == "output"
    assert result.truncated == ("stdout",)
    assert result.stdout == b""
    code = "import sys\nwhile True: print('x' * 99, file=sys.stderr)"
    _, result = talk(sandbox, code, conversation, limits)
    assert result.status == "output"
    assert result.truncated == ("stderr",)
    assert len(result.stderr) == 10_000


def test_the_time_limit_holds_over_the_whole_life(sandbox: Bubblewrap) -> None:
    """A read without a time limit of its own ends when the program is killed, within a quarter of a
    second.
    """

    async def conversation(program: RunningProgram) -> list[bytes]:
        return [await program.read_line(), await program.read_line()]

    taken = []
    for _ in range(3):
        limits = ProgramLimits(seconds=1.5)
        lines, result = talk(
            sandbox, "import time; print('a', flush=True); time.sleep(60)", conversation, limits
        )
        assert lines == [b"a\n", b""]
        assert result.status == "timeout"
        assert result.exit is None
        taken.append(result.usage.seconds)
    assert 1.5 <= min(taken) <= 1.75


def test_a_program_that_exits_early_ends_the_conversation(sandbox: Bubblewrap) -> None:
    """What it wrote is read, then ``b""``; writing to it raises nothing; its exit status is in the
    result.
    """

    async def conversation(program: RunningProgram) -> list[bytes]:
        await program.write(b"x\n" * 200_000)
        lines = [await program.read_line(), await program.read_line(), await program.read_line()]
        await program.write(b"y\n")
        return lines

    lines, result = talk(sandbox, "print('bye', flush=True); raise SystemExit(3)", conversation)
    assert lines == [b"bye\n", b"", b""]
    assert result.status == "failed"
    assert result.exit == 3


def test_a_program_that_closes_its_output_has_not_ended(sandbox: Bubblewrap) -> None:
    """``b""`` comes with the end of the program, when it is known that the sandbox did not fail."""

    async def conversation(program: RunningProgram) -> bytes:
        with pytest.raises(LineTimeout):
            await program.read_line(seconds=0.5)
        await program.end_input()
        return await program.read_line()

    line, result = talk(sandbox, "import os; os.close(1); os.read(0, 1); os._exit(0)", conversation)
    assert line == b""
    assert result.status == "ok"


def test_the_end_of_the_block_kills(sandbox: Bubblewrap) -> None:
    """Leaving the block, also by an exception, leaves no process; an exception of the caller
    passes.
    """

    async def left() -> None:
        async with sandbox.start({}, ["sleep", "3600"], PATIENT):
            assert left_behind(None)
        with pytest.raises(ZeroDivisionError):
            async with sandbox.start({}, ["sleep", "3600"], PATIENT):
                raise ZeroDivisionError
        assert not [name for name in left_behind(None) if "process" in name]

    began = time.monotonic()
    asyncio.run(left())
    assert time.monotonic() - began < 20


def test_a_cancelled_conversation_is_killed(sandbox: Bubblewrap) -> None:
    """Cancellation while reading, and while the program starts, leaves no process."""

    async def conversation() -> None:
        async with sandbox.start({}, ["sleep", "3600"], PATIENT) as program:
            await program.read_line()

    async def cancelled() -> None:
        for seconds in (0.0, 0.001, 0.3):
            tasks = [asyncio.create_task(conversation()) for _ in range(4)]
            await asyncio.sleep(seconds)
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            assert [asyncio.CancelledError] * 4 == [type(outcome) for outcome in outcomes]
            assert not [name for name in left_behind(None) if "process" in name]

    asyncio.run(cancelled())


def test_fifty_programs_talk_at_one_time(sandbox: Bubblewrap) -> None:
    """Each gets its own lines, and each has a user of its own where the trainer is root."""

    async def conversation(number: int) -> tuple[list[bytes], ProgramResult]:
        async with sandbox.start(
            {"main.py": ECHO.encode()}, ["python3", "-I", "main.py"], PATIENT
        ) as program:
            lines = []
            for turn in range(4):
                await program.write(f"p{number}.{turn}\n".encode())
                lines.append(await program.read_line())
            await barrier.wait()
            return lines, await program.close()

    async def together() -> list[tuple[list[bytes], ProgramResult]]:
        return await asyncio.gather(*map(conversation, range(50)))

    barrier = asyncio.Barrier(50)
    outcomes = asyncio.run(together())
    assert [[f"P{n}.{turn}\n".encode() for turn in range(4)] for n in range(50)] == [
        lines for lines, _ in outcomes
    ]
    users = {result.usage.user for _, result in outcomes}
    assert len(users) == (50 if os.getuid() == 0 and None not in users else 1)


def test_a_concurrent_program_needs_no_slot() -> None:
    """Callers that need two programs each share as many slots as there are without waiting for one
    another.
    """

    async def pair(service: Bubblewrap, word: bytes) -> bytes:
        async with (
            service.start({}, ["cat"], PATIENT) as first,
            service.start({}, ["cat"], PATIENT, beside=first) as second,
        ):
            await first.write(word + b"\n")
            await second.write(await first.read_line())
            return await second.read_line()

    async def together(service: Bubblewrap) -> list[bytes]:
        words = [f"w{n}".encode() for n in range(8)]
        lines = await asyncio.wait_for(asyncio.gather(*(pair(service, word) for word in words)), 60)
        assert lines == [word + b"\n" for word in words]
        return lines

    with contextlib.contextmanager(started)(slots=2) as service:
        asyncio.run(together(service))


def test_a_killed_sandbox_is_no_end_of_output(sandbox: Bubblewrap) -> None:
    """SIGKILL of bubblewrap raises in the read, so that no grader takes it for a program that says
    nothing.
    """

    async def killed() -> None:
        async with sandbox.start({}, ["sh", "-c", "echo a; exec sleep 3600"], PATIENT) as program:
            assert await program.read_line() == b"a\n"
            (bwrap,) = (
                int(name.split()[1]) for name in left_behind(None) if name.endswith(" bwrap")
            )
            os.kill(bwrap, 9)
            with pytest.raises(InfrastructureError, match="did not run 'sh' to its end"):
                await program.read_line(seconds=20)
            await program.read_line()

    with pytest.raises(InfrastructureError, match="did not run 'sh' to its end"):
        asyncio.run(killed())


def test_programs_are_refused_where_they_cannot_start(sandbox: Bubblewrap) -> None:
    """A command that does not exist, a service that is not started, a second reader."""

    async def start(service: Bubblewrap, *argv: str) -> None:
        async with service.start({}, argv) as program:
            await program.wait()

    async def read_twice() -> None:
        async with sandbox.start({}, ["cat"], PATIENT) as program:
            first = asyncio.create_task(program.read_line())
            await asyncio.sleep(0.1)
            with pytest.raises(UsageError, match="another task reads"):
                await program.read_line()
            await program.write(b"a\n")
            assert await first == b"a\n"

    with pytest.raises(InfrastructureError, match="no-such-program"):
        asyncio.run(start(sandbox, "no-such-program"))
    with pytest.raises(UsageError, match="not started"):
        asyncio.run(start(Bubblewrap(), "true"))
    with pytest.raises(UsageError, match="argv"):
        asyncio.run(start(sandbox))
    asyncio.run(read_twice())


def test_a_blocked_event_loop_does_not_stretch_the_limits(sandbox: Bubblewrap) -> None:
    """Limits are kept while the caller's event loop computes, and what ended in time is no
    timeout.
    """

    async def blocked() -> tuple[ProgramResult, ProgramResult]:
        limits = ProgramLimits(seconds=1.0)
        async with (
            sandbox.start({}, ["sleep", "60"], limits) as late,
            sandbox.start({}, ["sh", "-c", "echo hi"], limits) as early,
        ):
            time.sleep(2.0)  # noqa: ASYNC251 - this is the point
            return await late.wait(), await early.wait()

    late, early = asyncio.run(blocked())
    assert late.status == "timeout"
    assert early.status == "ok"
    assert early.stdout == b"hi\n"
    assert late.usage.seconds < 1.9


def test_the_end_of_the_service_ends_conversations() -> None:
    """A program that runs, and one that waits for its slot, raise when the service stops."""

    async def read(service: Bubblewrap, started: asyncio.Event) -> None:
        async with service.start({}, ["sleep", "3600"], PATIENT) as program:
            started.set()
            await program.read_line()

    async def stopped(service: Bubblewrap) -> list[BaseException | None]:
        started = asyncio.Event()
        tasks = [asyncio.create_task(read(service, started)) for _ in range(2)]
        await started.wait()
        await service.__aexit__()
        return await asyncio.gather(*tasks, return_exceptions=True)

    with contextlib.contextmanager(started)(slots=1) as service:
        outcomes = asyncio.run(stopped(service))
    assert [InfrastructureError] * 2 == [type(outcome) for outcome in outcomes]


def test_no_zombie_is_left_to_the_system() -> None:
    """Nothing that this file started is defunct."""
    listing = subprocess.run(
        ["ps", "-eo", "ppid,stat,comm"], capture_output=True, text=True, check=True
    ).stdout
    own = [line for line in listing.splitlines()[1:] if line.split()[0] == str(os.getpid())]
    assert not [line for line in own if line.split()[1].startswith("Z")]
    assert Path("/proc/self").exists()


def test_drain_waits_until_a_program_reads(sandbox: Bubblewrap) -> None:
    """What a program does not read stays counted; it reads, and nothing is left to wait for."""
    code = """
import os, time
os.read(0, 1)
print("late", flush=True)
time.sleep(3)
left = (1 << 22) - 1
while left:
    left -= len(os.read(0, left))
print("all", flush=True)
os.read(0, 1)
"""

    async def conversation(program: RunningProgram) -> bytes:
        await program.drain()
        await program.write(bytes(1 << 22))
        assert await program.read_line(seconds=20) == b"late\n"
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(program.drain(1 << 20), 0.3)
        await program.drain(1 << 22)
        await asyncio.gather(program.drain(1 << 20), program.drain(0))
        return await program.read_line(seconds=20)

    assert talk(sandbox, code, conversation)[0] == b"all\n"


@pytest.mark.parametrize(
    "code", ["import os; os.close(0); print(1, flush=True); input()", "print(1, flush=True)"]
)
def test_what_nobody_will_read_is_not_kept(sandbox: Bubblewrap, code: str) -> None:
    """A program that closes its standard input, or ends, leaves nobody waiting and no bytes
    behind.
    """

    async def conversation(program: RunningProgram) -> int:
        await program.read_line(seconds=20)
        for _ in range(64):
            await program.write(bytes(1 << 20))
            await asyncio.wait_for(program.drain(0), 20)
        return program._unsent + sum(map(len, program._input))

    assert talk(sandbox, code, conversation)[0] == 0


def test_unread_bounds_what_waits_and_not_the_sum(sandbox: Bubblewrap) -> None:
    """More than the limit passes where it is read in time; unread output above the bound ends the
    program.
    """
    code = "for i in range(40): print('x' * 99_999, flush=True); input()"

    async def talked(code: str) -> ProgramResult:
        limits = ProgramLimits(seconds=30, output=1 << 16)
        async with sandbox.start(
            {}, ["python3", "-I", "-c", code], limits, unread=1 << 18
        ) as program:
            for _ in range(40):
                if len(await program.read_line(seconds=20)) != 100_000:
                    break
                await program.write(b"\n")
            return await program.wait()

    assert asyncio.run(talked(code)).status == "ok"
    assert asyncio.run(talked("print('x' * 10_000_000); input()")).status == "output"
