# ruff: noqa: E501 - programs as text
"""Ten thousand mixed runs of the provider `bubblewrap`; ``QUINTAIN_SOAK`` sets another number."""

from __future__ import annotations

import asyncio
import collections
import gc
import os
import random
import time
from pathlib import Path

import pytest

from quintain.errors import InfrastructureError
from quintain_sandbox import Bubblewrap, ProgramLimits

from .service import left_behind

RUNS = int(os.environ.get("QUINTAIN_SOAK", "10000"))
TOGETHER = 8
PATIENT = ProgramLimits(seconds=60.0, cpu_seconds=30.0, memory=128 << 20, output=10_000)
SHORT = ProgramLimits(seconds=0.15, output=10_000)
WARM = ["python3", "-I", "main.py"]


async def warm(sandbox: Bubblewrap, number: int) -> str:
    code = f"print({number} * 2)".encode()
    result = await sandbox.run({"main.py": code}, WARM, limits=PATIENT)
    assert result.status == "ok", result
    assert result.stdout == b"%d\n" % (number * 2), result
    return "warm"


async def cold(sandbox: Bubblewrap, number: int) -> str:
    result = await sandbox.run(
        {}, ["sh", "-c", f"read x; echo $x; exit {number % 3}"], b"%d\n" % number, PATIENT
    )
    assert result.exit == number % 3, result
    assert result.stdout == b"%d\n" % number, result
    return "cold"


async def late(sandbox: Bubblewrap, number: int) -> str:
    result = await sandbox.run(
        {"main.py": b"while True: pass"}, WARM if number % 2 else ["sleep", "9"], limits=SHORT
    )
    assert result.status == "timeout", result
    return "timeout"


async def flood(sandbox: Bubblewrap, number: int) -> str:
    result = await sandbox.run({}, ["yes", str(number)], limits=PATIENT)
    assert result.status == "output", result
    return "output"


async def large(sandbox: Bubblewrap, number: int) -> str:
    result = await sandbox.run({"main.py": b"bytearray(b'x') * (1 << 28)"}, WARM, limits=PATIENT)
    assert result.status in ("memory", "failed"), result
    return "memory"


async def daemon(sandbox: Bubblewrap, number: int) -> str:
    result = await sandbox.run(
        {}, ["sh", "-c", "setsid sleep 3600 & setsid sleep 3600 & echo a"], limits=PATIENT
    )
    assert result.status == "ok", result
    assert result.stdout == b"a\n", result
    return "daemon"


async def cancelled(sandbox: Bubblewrap, number: int) -> str:
    task = asyncio.create_task(
        sandbox.run({"main.py": b"input()"}, WARM if number % 2 else ["sleep", "9"], limits=PATIENT)
    )
    await asyncio.sleep(0.03 * random.Random(number).random())
    task.cancel()
    (outcome,) = await asyncio.gather(task, return_exceptions=True)
    assert not isinstance(outcome, Exception), outcome
    return "cancelled"


async def conversation(sandbox: Bubblewrap, number: int) -> str:
    async with sandbox.start({}, ["cat"], PATIENT) as program:
        for turn in range(3):
            line = b"%d.%d\n" % (number, turn)
            await program.write(line)
            assert line == await program.read_line()
    return "conversation"


async def session(sandbox: Bubblewrap, number: int) -> str:
    async with sandbox.session({"a": b"%d" % number}, PATIENT) as session:
        assert b"%d" % number == (await session.run(["cat", "a"])).stdout
        assert (await session.run(["sleep", "9"], seconds=0.05)).status == "timeout"
        python = session.python()
        await python.execute(f"x = {number}")
        assert f"{number}\n" == (await python.execute("x")).stdout
    return "session"


KINDS = (warm, warm, warm, cold, cold, late, flood, large, daemon, cancelled, conversation, session)


def held() -> tuple[float, int]:
    """Megabytes of the resident set, and descriptors."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20, len(os.listdir("/proc/self/fd"))


async def soak(sandbox: Bubblewrap, runs: int) -> collections.Counter[str]:
    counts: collections.Counter[str] = collections.Counter()
    numbers = iter(range(runs))

    async def worker() -> None:
        for number in numbers:
            counts[await KINDS[number % len(KINDS)](sandbox, number)] += 1

    await asyncio.gather(*(worker() for _ in range(TOGETHER)))
    return counts


@pytest.mark.slow
def test_mixed_runs_leave_nothing_and_take_no_more() -> None:
    """Memory and descriptors after all runs are those after the first tenth; no process, zombie or group is left."""

    async def all_of_them() -> None:
        try:
            service = await Bubblewrap(slots=TOGETHER, warm=4, enforce=()).__aenter__()
        except InfrastructureError as e:
            pytest.skip(f"bubblewrap does not work here: {e}")
        try:
            await soak(service, max(RUNS // 10, 4 * len(KINDS)))
            memory, descriptors = held()
            began = time.monotonic()
            counts = await soak(service, RUNS)
            seconds = time.monotonic() - began
            await asyncio.sleep(1.0)
            after, open_ones = held()
            print(
                f"{dict(counts)} in {seconds:.0f} s; {memory:.1f} -> {after:.1f} MB, {descriptors} -> {open_ones} descriptors"
            )
            assert after <= memory * 1.05 + 1.0
            assert open_ones <= descriptors + 8  # of interpreters that wait
        finally:
            await service.__aexit__()

    descriptors = len(os.listdir("/proc/self/fd"))
    asyncio.run(all_of_them())
    assert descriptors >= len(os.listdir("/proc/self/fd"))
    deadline = time.monotonic() + 1.0
    while left := left_behind(None):
        assert time.monotonic() < deadline, left
        time.sleep(0.02)
