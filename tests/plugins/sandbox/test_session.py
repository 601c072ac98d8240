# ruff: noqa: E501 - programs as text
"""Sessions in the provider `bubblewrap`: commands, files, the interpreter, limits and hostile commands."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from quintain.errors import InfrastructureError, UsageError
from quintain_sandbox import (
    Bubblewrap,
    Guarantee,
    ProgramLimits,
    SandboxSession,
    SessionFileError,
    session,
)

from .service import left_behind, started

LIMITS = ProgramLimits(
    seconds=60.0, cpu_seconds=30.0, memory=256 << 20, processes=32, output=10_000, disk=16 << 20
)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Bubblewrap]:
    yield from started(slots=2)


@pytest.fixture(autouse=True)
def nothing_left(sandbox: Bubblewrap) -> Iterator[None]:
    """After each test neither processes nor control groups are left within a second."""
    yield
    deadline = time.monotonic() + 1.0
    while left := left_behind(None):
        assert time.monotonic() < deadline, left
        time.sleep(0.02)


def work(
    sandbox: Bubblewrap, steps: Callable[[SandboxSession], Awaitable[Any]], **limits: float
) -> Any:
    async def worked() -> Any:
        asked = ProgramLimits(**(vars(LIMITS) | limits))
        async with sandbox.session({"a.txt": b"one\n", "d/b.txt": b"two\n"}, asked) as session:
            return await steps(session)

    return asyncio.run(worked())


def test_files_and_folders_stay_between_commands(sandbox: Bubblewrap) -> None:
    """A command sees what earlier ones and the caller wrote, and has streams, exit status and usage of its own."""

    async def steps(session: SandboxSession) -> None:
        first = await session.run(
            ["sh", "-c", "cat a.txt d/b.txt; tr a-z A-Z > c.txt; echo e >&2; exit 3"], b"three"
        )
        assert first.status == "failed"
        assert first.exit == 3
        assert first.stdout == b"one\ntwo\n"
        assert first.stderr == b"e\n"
        second = await session.run(
            ["sh", "-c", "cat c.txt new/n.txt"], files={"new/n.txt": b"N", "a.txt": b"1"}
        )
        assert second.status == "ok"
        assert second.stdout == b"THREEN"
        assert await session.read("c.txt") == b"THREE"
        assert await session.read("/tmp/box/a.txt") == b"1"
        assert 0 < second.usage.seconds < 60
        assert 0 < second.usage.memory < LIMITS.memory
        await session.write("new/folder/w.bin", bytes(range(256)))
        await session.write("/tmp/box/a.txt", b"longer than before\n")
        await session.write("a.txt", b"short\n")
        third = await session.run(["sh", "-c", "cat a.txt new/folder/w.bin"])
        assert third.status == "ok"
        assert b"short\n" + bytes(range(256)) == third.stdout
        killed = await session.run(["sh", "-c", "kill -9 $$"])
        assert killed.status == "failed"
        assert killed.exit == 137
        missing = await session.run(["no-such-program"])
        assert missing.status == "failed"
        assert missing.exit == 127
        assert b"no-such-program" in missing.stderr
        forbidden = await session.run(["./a.txt"])
        assert forbidden.status == "failed"
        assert forbidden.exit == 126

    work(sandbox, steps)


def test_limits_of_a_command_end_it_alone(sandbox: Bubblewrap) -> None:
    """Time, output and memory are statuses of one command; the next one works."""

    async def steps(session: SandboxSession) -> None:
        late = await session.run(["sh", "-c", "echo a; trap '' TERM; sleep 60"], seconds=0.3)
        assert late.status == "timeout"
        assert late.exit is None
        assert late.stdout == b"a\n"
        flood = await session.run(["sh", "-c", "while :; do echo xxxxxxxxx; done"])
        assert flood.status == "output"
        assert flood.exit is None
        assert flood.truncated == ("stdout",)
        assert len(flood.stdout) == LIMITS.output
        exact = await session.run(["head", "-c", str(LIMITS.output), "/dev/zero"])
        assert exact.status == "ok"
        assert len(exact.stdout) == LIMITS.output
        assert exact.truncated == ()
        for _ in range(2):
            again = await session.run(["sh", "-c", "head -c 20000 /dev/zero >&2; sleep 60"])
            assert again.status == "output"
            assert again.truncated == ("stderr",)
        if sandbox.guarantees["memory"] is Guarantee.ENFORCED:
            large = await session.run(["python3", "-c", "b'x' * (1 << 30)"])
            assert large.status == "memory"
        assert (await session.run(["cat", "a.txt"])).stdout == b"one\n"

    work(sandbox, steps)


def test_the_limits_of_a_session_hold_for_all_of_it(sandbox: Bubblewrap) -> None:
    """The command that meets the time limit has its status, and so have later ones; files are gone."""

    async def steps(session: SandboxSession) -> None:
        assert (await session.run(["true"])).status == "ok"
        began = time.monotonic()
        assert (await session.run(["sleep", "60"])).status == "timeout"
        assert time.monotonic() - began < 10
        assert (await session.run(["true"])).status == "timeout"
        assert (await session.python().execute("1")).status == "closed"
        with pytest.raises(SessionFileError, match="over"):
            await session.read("a.txt")
        with pytest.raises(SessionFileError, match="over"):
            await session.write("a.txt", b"")

    work(sandbox, steps, seconds=2.0)


def test_what_a_command_leaves_is_killed(sandbox: Bubblewrap) -> None:
    """Daemons, stopped processes and fork bombs are gone before the next command; their pipes hold nobody up."""

    async def steps(session: SandboxSession) -> None:
        began = time.monotonic()
        for left in (
            "setsid sleep 3600 & setsid sh -c 'sleep 3600 & sleep 3600' &",
            "sleep 3600 & kill -STOP $!",
            "f() { f | f & }; f",
        ):
            assert (await session.run(["sh", "-c", left], seconds=5)).status in (
                "ok",
                "failed",
                "timeout",
                "output",
            )
            listing = await session.run(["ps", "-eo", "comm"])
            assert listing.stdout == b"COMMAND\npython3\nps\n", listing
        assert time.monotonic() - began < 40

    work(sandbox, steps)


def test_large_streams_pass_whole(sandbox: Bubblewrap) -> None:
    """Standard input and output larger than pipes, and a command that does not read."""
    data = bytes(range(256)) * 4000

    async def steps(session: SandboxSession) -> None:
        same = await session.run(["cat"], data)
        assert same.status == "ok"
        assert same.stdout == data
        assert (await session.run(["echo", "hi"], data)).stdout == b"hi\n"
        await session.run(["tee", "big"], data)
        assert data == await session.read("big")

    work(sandbox, steps, output=1 << 20)


def test_text_is_written_as_utf_8(sandbox: Bubblewrap) -> None:
    async def steps(session: SandboxSession) -> None:
        await session.write("w", "né")
        result = await session.run(["sh", "-c", "cat w t -"], "√", {"t": "ü"})
        assert "néü√".encode() == result.stdout

    work(sandbox, steps)


def test_reads_are_of_regular_files_and_bounded(sandbox: Bubblewrap) -> None:
    """Missing, unreadable, special and large files are refused; the session continues."""

    async def steps(session: SandboxSession) -> None:
        await session.run(
            [
                "sh",
                "-c",
                "mkfifo f; ln -s /dev/zero z; ln -s f g; head -c 99 /dev/zero > n; mkdir e",
            ]
        )
        for path in ("missing", "f", "z", "g", "e", "/proc/1/environ", "/proc/1/mem"):
            with pytest.raises(SessionFileError, match=path):
                await session.read(path)
        with pytest.raises(SessionFileError, match="more than 98 bytes"):
            await session.read("n", limit=98)
        assert len(await session.read("n", limit=99)) == 99
        await session.python().execute("import os\npipe = os.open('f', os.O_RDWR)")
        for name in ("e", "f", "g", "n/x"):
            with pytest.raises(SessionFileError, match="cannot be written"):
                await session.run(["true"], files={name: b""})
            with pytest.raises(SessionFileError, match=f"{name} cannot be written"):
                await session.write(name, b"")
        for path in ("/usr/new", "/proc/1/oom_score_adj"):
            with pytest.raises(SessionFileError, match=path):
                await session.write(path, b"0")
        for n in range(2):
            await session.run(["true"], files={f"{n}": bytes(7 << 20)})
        with pytest.raises(SessionFileError, match="No space left"):
            await session.run(["true"], files={"3": bytes(7 << 20)})
        with pytest.raises(UsageError, match="outside the working directory"):
            await session.run(["true"], files={"../x": b""})
        with pytest.raises(UsageError, match=r"limits\.disk"):
            await session.write("w", bytes(17 << 20))
        with pytest.raises(UsageError, match="NUL"):
            await session.write("w\0", b"")
        with pytest.raises(UsageError, match="data is a int; expected bytes or text"):
            await session.write("w", 5)
        with pytest.raises(UsageError, match="seconds is '3'; expected a positive finite number"):
            await session.run(["true"], seconds="3")
        with pytest.raises(UsageError, match="seconds"):
            await session.run(["true"], seconds=-1)
        with pytest.raises(UsageError, match="limit"):
            await session.read("n", limit=1 << 40)
        assert (await session.run(["true"])).status == "ok"

    work(sandbox, steps)


def test_commands_cannot_reach_the_supervisor(sandbox: Bubblewrap) -> None:
    """Its descriptors, memory and environment are closed to programs of the same user, and signals do not end it."""
    attack = r"""
import ctypes, os, signal
for path in ("fd/0", "fd/1", "fd/3", "fd/4", "mem", "environ", "maps", "cwd/a.txt", "root/etc/passwd"):
    for mode in ("rb", "wb"):
        try:
            open(f"/proc/1/{path}", mode)
        except OSError as e:
            print("held", e.errno)
        else:
            print("BREACH", path)
for number in range(1, 65):
    try:
        os.kill(1, number)
    except OSError:
        pass
print("held", ctypes.CDLL(None).ptrace(16, 1, 0, 0))
print("held", os.listdir("/proc/self/fd"))
"""

    async def steps(session: SandboxSession) -> None:
        result = await session.run(["python3", "-I", "-c", attack])
        assert result.status == "ok", result
        assert b"BREACH" not in result.stdout, result.stdout
        assert b"held" in result.stdout
        assert b"['0', '1', '2', '3']" in result.stdout
        assert (await session.run(["cat", "a.txt"])).stdout == b"one\n"

    work(sandbox, steps)


@pytest.mark.parametrize(
    "answer",
    [
        b"", b"no json", b"{}", b"[]", b"null", b'{"status": "ok"}', b'{"status": "ok", "exit": NaN}', b"[" * 100_000,
        b'{"status":"ok","exit":0,"stdout":"%","stderr":"","seconds":0.1,"cpu_seconds":0.1,"memory":1,"truncated":[]}',
        b'{"status":"ok","exit":999,"stdout":"","stderr":"","seconds":0.1,"cpu_seconds":0.1,"memory":1,"truncated":[]}',
        b'{"status":"ok","exit":0,"stdout":"","stderr":"","seconds":0.1,"cpu_seconds":0.1,"memory":1,"truncated":["x"]}',
        b'{"status":"ok","exit":0,"stdout":"","stderr":"","seconds":1e999,"cpu_seconds":0,"memory":1,"truncated":[]}',
    ],
)  # fmt: skip
def test_an_answer_that_breaks_the_protocol_ends_the_session(
    sandbox: Bubblewrap, monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    """Whatever a box says in place of the supervisor is no success, raises nothing, and ends the box."""
    forged = f"import sys\nprint('ready', flush=True)\nfor line in sys.stdin: print({answer.decode()!r}, flush=True)"
    monkeypatch.setattr("quintain_sandbox.protocol.SUPERVISOR", ("python3", "-c", forged))
    monkeypatch.setattr("quintain_sandbox.protocol.SOURCE", b"")

    async def steps(session: SandboxSession) -> None:
        result = await session.run(["true"])
        assert result.status == "failed"
        assert result.exit is None
        assert result.stdout == b""
        assert (await session.run(["true"])).status == "failed"

    work(sandbox, steps)


@pytest.mark.parametrize(
    "supervisor, message",
    [
        (("sh", "-c", "echo ready; sleep 60"), "gave no answer within 0 s"),
        (("sh", "-c", "echo what >&2; exit 1"), "needs a python3 of 3.9 or later in the box: what"),
        (("echo", "redy"), "needs a python3 of 3.9 or later in the box: status"),
        (("no-such-program",), "no-such-program"),
    ],
)
def test_a_supervisor_that_does_not_work_is_a_failure_of_the_sandbox(
    sandbox: Bubblewrap, monkeypatch: pytest.MonkeyPatch, supervisor: tuple[str, ...], message: str
) -> None:
    """No start, or silence after the time limit of a command, raises and ends the box."""
    monkeypatch.setattr("quintain_sandbox.protocol.SUPERVISOR", supervisor)
    monkeypatch.setattr("quintain_sandbox.protocol.SOURCE", b"")
    monkeypatch.setattr(session, "GRACE", 0.1)

    async def steps(session: SandboxSession) -> None:
        await session.run(["true"], seconds=0.1)

    with pytest.raises(InfrastructureError, match=message):
        work(sandbox, steps)


def test_the_interpreter_keeps_its_state(sandbox: Bubblewrap) -> None:
    """Names, imports and the working directory stay; the value of a last expression is printed; errors are text."""

    async def steps(session: SandboxSession) -> None:
        python = session.python()
        first = await python.execute(
            "import math\nx = 6\ndef f(y):\n    return x / y\nprint(open('a.txt').read())\nx * 7"
        )
        assert first.status == "ok"
        assert first.stdout == "one\n\n42\n"
        assert first.error == ""
        assert first.truncated is False
        assert (await python.execute("f(2)")).stdout == "3.0\n"
        error = await python.execute("print('before')\nf(0)")
        assert error.status == "error"
        assert error.stdout == "before\n"
        assert error.error.startswith(
            'Traceback (most recent call last):\n  File "<cell 3>", line 2, in <module>\n    f(0)'
        )
        assert error.error.endswith("ZeroDivisionError: division by zero\n")
        syntax = await python.execute("x = = 1")
        assert syntax.status == "error"
        assert syntax.stdout == ""
        assert syntax.error.startswith('  File "<cell 4>", line 1\n    x = = 1\n')
        assert "SystemExit: 3\n" in (await python.execute("raise SystemExit(3)")).error
        assert "EOFError" in (await python.execute("input()")).error
        assert (await python.execute("import sys; print('e', file=sys.stderr) or x")).stdout[
            -2:
        ] == "6\n"
        assert (await session.run(["sh", "-c", "echo new > a.txt"])).status == "ok"
        assert (await python.execute("open('a.txt').read()")).stdout == "'new\\n'\n"
        assert (await python.execute("")).stdout == ""

    work(sandbox, steps)


def test_limits_end_the_interpreter_alone(sandbox: Bubblewrap) -> None:
    """Time, memory and exits lose the names; files and the session stay; long output is cut and the session continues."""

    async def steps(session: SandboxSession) -> None:
        python = session.python()
        for code, status in (
            ("print('a', flush=True)\nwhile True: pass", "timeout"),
            ("print('a', flush=True)\nimport os; os._exit(0)", "exit"),
            ("print('a', flush=True)\nimport os; os.closerange(3, 99)", "exit"),
            ("print('a', flush=True)\nimport os; os.kill(os.getpid(), 9)", "exit"),
            ("print('a', flush=True)\nb = b'x' * (1 << 30)", "memory"),
        ):
            if status == "memory" and sandbox.guarantees["memory"] is not Guarantee.ENFORCED:
                continue
            assert (await python.execute("x = 1")).status == "ok"
            outcome = await python.execute(code, seconds=1.0 if status == "timeout" else 30.0)
            assert status == outcome.status, code
            assert outcome.stdout[:2] == "a\n", code
            assert "NameError" in (await python.execute("x")).error
        long = await python.execute("x = 5\nprint('y' * 50_000)")
        assert long.status == "ok"
        assert long.truncated is True
        assert len(long.stdout) == LIMITS.output
        assert (await python.execute("x")).stdout == "5\n"
        error = await python.execute("raise ValueError('z' * 100_000)")
        assert error.status in ("error", "exit")
        assert len(error.error) <= LIMITS.output
        assert await session.read("a.txt") == b"one\n"

    work(sandbox, steps)


def test_what_code_leaves_running_is_killed(sandbox: Bubblewrap) -> None:
    """Child processes end with the execution, also where the code starts them without end; the names stay."""

    async def steps(session: SandboxSession) -> None:
        python = session.python()
        outcome = await python.execute(
            "import subprocess\np = subprocess.Popen(['sleep', '3600'])\nx = 4"
        )
        assert outcome.status == "ok"
        listing = await session.run(["ps", "-eo", "comm,stat"])
        assert not [
            line for line in listing.stdout.splitlines() if b"sleep" in line and b"Z" not in line
        ]
        assert (await python.execute("print(p.wait(), x)")).stdout == "-9 4\n"
        bomb = "import os, threading\ndef f():\n    while True:\n        try:\n            if os.fork() == 0: os.execvp('sleep', ['sleep', '9'])\n        except OSError: pass\nthreading.Thread(target=f, daemon=True).start()"
        await python.execute(bomb, seconds=5)
        assert (await session.run(["echo", "hi"], seconds=20)).stdout in (b"hi\n", b"")
        await python.execute("import os; os._exit(0)", seconds=5)
        assert (await python.execute("1 + 1")).stdout == "2\n"

    work(sandbox, steps)


def test_a_session_is_dead_after_its_block(sandbox: Bubblewrap) -> None:
    """Later requests are errors of the caller; cancellation in a command leaves nothing."""

    async def left() -> None:
        async with sandbox.session() as session:
            assert (await session.run(["true"])).status == "ok"
        with pytest.raises(UsageError, match="has ended"):
            await session.run(["true"])
        with pytest.raises(UsageError, match="has ended"):
            await session.read("x")

    async def cancelled() -> None:
        async def hang() -> None:
            async with sandbox.session() as session:
                running.set()
                await session.run(["sleep", "3600"])

        running = asyncio.Event()
        task = asyncio.create_task(hang())
        await running.wait()
        await asyncio.sleep(0.2)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert not [name for name in left_behind(None) if "process" in name]

    asyncio.run(left())
    asyncio.run(cancelled())
