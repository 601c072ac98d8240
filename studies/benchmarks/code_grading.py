"""Milliseconds of one grading in two sandboxes, and gradings per second, on rows of MBPP.

Each round times one row in turn by four ways: the reference and its tests together in a bare
interpreter (which any solution can fool), an empty program in one sandbox, the grading, and the
grading with interpreters that wait. So other work on the machine meets them alike, and the ratios
say what the second sandbox costs. Throughput is measured apart, with two gradings per core at one
time.

    QUINTAIN_DATA=FOLDER python -m studies.benchmarks.code_grading          two minutes
"""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from .common import arguments, spread, table, write

SLOTS = os.cpu_count() or 1
PYTHON = shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin") or sys.executable
"""The interpreter of the sandboxes."""


async def timed(work: Callable[[], Awaitable[object]]) -> float:
    """Milliseconds of wall time."""
    began = time.perf_counter()
    await work()
    return (time.perf_counter() - began) * 1000


WAYS = ("bare interpreter", "one sandbox, empty program", "two sandboxes", "two warm sandboxes")


async def rounds(sandbox: Any, grader: Any, warm: Any, tasks: list[Any]) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    for task in tasks:
        source = "\n".join([task.solution["solution.py"], task.setup, *task.tests])

        async def bare(source: str = source) -> None:
            command = [PYTHON, "-I", "-c", source]
            await asyncio.to_thread(subprocess.run, command, check=True, stdout=subprocess.DEVNULL)

        async def empty() -> None:
            await sandbox.run({}, ["python3", "-I", "-c", "pass"])

        async def graded(task: Any = task, by: Any = grader) -> None:
            grade = await by.once(task, task.solution)
            assert grade.outcome == "passed", (task.source, grade)

        async def warmly(graded: Any = graded) -> None:
            await graded(by=warm)

        for name, work in zip(seconds, (bare, empty, graded, warmly), strict=True):
            seconds[name].append(await timed(work))
        await asyncio.sleep(0.1)  # interpreters start again
    return seconds


async def throughput(grader: Any, tasks: list[Any]) -> float:
    """Gradings per second."""
    room = asyncio.Semaphore(2 * SLOTS)

    async def one(task: Any) -> None:
        async with room:
            await grader.once(task, task.solution)

    began = time.perf_counter()
    await asyncio.gather(*map(one, tasks))
    return len(tasks) / (time.perf_counter() - began)


async def measured(data: Path, n: int, passes: int) -> tuple[dict[str, list[float]], list[float]]:
    from quintain_env_code import Grader
    from quintain_env_code.data import load
    from quintain_sandbox import Bubblewrap

    tasks = list(load(str(data), "test", "test"))[: 4 * n]
    cold = Bubblewrap(slots=SLOTS, enforce=())
    warm = Bubblewrap(slots=SLOTS, enforce=(), warm=2 * SLOTS)
    async with cold as sandbox, warm as waiting:
        grader, ready = Grader(sandbox), Grader(waiting)
        await rounds(sandbox, grader, ready, tasks[:3])
        seconds = await rounds(sandbox, grader, ready, tasks[:n])
        return seconds, [await throughput(grader, tasks) for _ in range(passes)]


def main() -> int:
    options = arguments(__doc__).parse_args()
    data = Path(os.environ.get("QUINTAIN_DATA", "")) / "mbpp" / "mbpp.jsonl"
    if not data.is_file():
        print("QUINTAIN_DATA names no folder with mbpp/mbpp.jsonl", file=sys.stderr)
        return 2
    n, passes = (5, 1) if options.quick else (options.rounds or 60, 3)
    milliseconds, rates = asyncio.run(measured(data, n, passes))
    base = milliseconds["one sandbox, empty program"]
    rows = []
    for name, values in milliseconds.items():
        ratio = statistics.median(a / b for a, b in zip(values, base, strict=True))
        rows.append(
            [name, f"{statistics.median(values):.1f}", f"{min(values):.1f}", f"{ratio:.2f}"]
        )
    print(table(["way", "median ms", "least ms", "times one sandbox"], rows))
    print(
        f"\n{statistics.median(rates):.1f} gradings per second, {2 * SLOTS} at one time in {SLOTS} "
        f"slots"
    )
    figures = {
        "milliseconds": {k: spread(v) for k, v in milliseconds.items()},
        "per_second": spread(rates),
    }
    conditions = {"rows": n, "passes": passes, "slots": SLOTS, "data": "mbpp"}
    write("code_grading", figures, quick=options.quick, about=conditions)
    return 0


if __name__ == "__main__":
    sys.exit(main())
