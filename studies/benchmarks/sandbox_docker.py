"""What a program costs in the sandbox `docker`: with a container that waits, with a fresh one, and
over the time limit.

A round runs a plain interpreter, one in a container that waits and one in a fresh container, in
turn; the report has the medians and the differences to the plain one of the same round. The
sustained rate has more programs than the pool has containers. Needs an engine (``tools/engine.sh
start FOLDER``, ``DOCKER_HOST``) and its image (``quintain build-image``).

    python -m studies.benchmarks.sandbox_docker                   two minutes
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable

from quintain_sandbox import Docker, ProgramLimits

from .common import arguments, spread, table, write

CODE = "print(6 * 7)"
ARGV = ["python3", "-I", "-S", "-c", CODE]
PATIENT = ProgramLimits(seconds=60.0)
POOL = 8


async def milliseconds(call: Callable[[], Awaitable[object]]) -> float:
    began = time.perf_counter()
    await call()
    return (time.perf_counter() - began) * 1000


async def plain() -> None:
    """The same interpreter without a sandbox."""
    child = await asyncio.create_subprocess_exec(
        getattr(sys, "_base_executable", sys.executable), *ARGV[1:], stdout=subprocess.PIPE
    )
    output, _ = await child.communicate()
    assert output == b"42\n"


async def full(service: Docker) -> None:
    while service.ready() < POOL:  # noqa: ASYNC110 - a benchmark
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.5)


async def measured(rounds: int, programs: int) -> dict[str, list[float]]:
    measurements: dict[str, list[float]] = {
        name: []
        for name in ("plain", "waiting", "waiting, no interpreter", "fresh", "overrun", "rate")
    }
    async with Docker(slots=4, warm=POOL) as waiting, Docker(slots=4, warm=0) as fresh:

        async def one(service: Docker, argv: list[str] = ARGV) -> None:
            result = await service.run({}, argv, limits=PATIENT)
            assert (result.status, result.stdout) == ("ok", b"42\n"), result

        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "plain": plain,
            "waiting": lambda: one(waiting),
            "waiting, no interpreter": lambda: one(waiting, ["echo", "42"]),
            "fresh": lambda: one(fresh),
        }
        for _ in range(rounds):
            for name, call in calls.items():
                await full(waiting)  # and nothing is started ahead meanwhile
                measurements[name].append(await milliseconds(call))
        await full(waiting)
        began = time.perf_counter()
        await asyncio.gather(*(one(waiting) for _ in range(programs)))
        measurements["rate"].append(programs / (time.perf_counter() - began))
        for _ in range(rounds):
            await full(waiting)
            result = await waiting.run({}, ["sleep", "60"], limits=ProgramLimits(seconds=0.5))
            assert result.status == "timeout"
            measurements["overrun"].append((result.usage.seconds - 0.5) * 1000)
    return measurements


def main() -> int:
    options = arguments(__doc__).parse_args()
    rounds, programs = (2, 4) if options.quick else (options.rounds or 20, 60)
    measurements = asyncio.run(measured(rounds, programs))
    rows = []
    for name in ("plain", "waiting", "waiting, no interpreter", "fresh"):
        over = statistics.median(
            a - b for a, b in zip(measurements[name], measurements["plain"], strict=True)
        )
        summary = spread(measurements[name])
        quartiles = f"{summary['q1']:.1f}-{summary['q3']:.1f}"
        rows.append(
            [name, f"{summary['median']:.1f}", quartiles, f"{summary['min']:.1f}", f"{over:+.1f}"]
        )
    print(table(["milliseconds", "median", "quartiles", "least", "over plain"], rows))
    late = spread(measurements["overrun"])
    print(
        f"\n{measurements['rate'][0]:.1f} programs a second over {programs}, of which {POOL} had a "
        f"container that waited"
    )
    print(
        f"ended {late['median']:.0f} ms after the limit of 0.5 s (median), at most "
        f"{late['max']:.0f} ms"
    )
    conditions = {"rounds": rounds, "programs": programs, "pool": POOL, "slots": 4}
    figures = {name: spread(values) for name, values in measurements.items()}
    write("sandbox_docker", figures, quick=options.quick, about=conditions)
    return 0


if __name__ == "__main__":
    sys.exit(main())
