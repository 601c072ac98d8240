"""Milliseconds of programs in sandboxes, runs per second, and how late a kill is.

Each round measures every way once, in an order that turns, so that other work on the machine meets
all alike. What is reported for a way is the median and the quartiles, and the median of its
differences from the plain interpreter of the same round. Docker and the peer's executor are
measured where they are there.

    python -m studies.benchmarks.sandbox             two minutes
    python -m studies.benchmarks.sandbox --peer ENV/bin/python
                                                     also smolagents, in an environment that has it
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from quintain.errors import InfrastructureError, UsageError
from quintain_sandbox import Bubblewrap, Docker, ProbedSandbox, ProgramLimits

from .common import arguments, shown, spread, table, write

CODE = "print(1)"
SCRIPT = {"main.py": CODE.encode()}
COMMAND = ["python3", "-I", "main.py"]
PATIENT = ProgramLimits(seconds=60.0, cpu_seconds=60.0)
KILL = ProgramLimits(seconds=0.3)
WARM = 8

Way = Callable[[], Awaitable[float]]
"""One unit of work; its seconds."""


async def timed(work: Callable[[], Awaitable[object]]) -> float:
    began = time.perf_counter()
    await work()
    return time.perf_counter() - began


async def plain() -> float:
    """Return a new interpreter without a sandbox."""
    began = time.perf_counter()
    subprocess.run(["/usr/bin/python3", "-I", "-c", CODE], stdout=subprocess.PIPE, check=True)  # noqa: ASYNC221
    return time.perf_counter() - began


def run_of(sandbox: ProbedSandbox, command: list[str]) -> Way:
    async def run() -> None:
        result = await sandbox.run(SCRIPT, command, limits=PATIENT)
        assert (result.status, result.stdout) == ("ok", b"1\n"), result

    return lambda: timed(run)


def warm_of(sandbox: Bubblewrap) -> Way:
    run = run_of(sandbox, COMMAND)

    async def warm() -> float:
        assert sandbox._warm is not None
        await asyncio.to_thread(sandbox._warm.wait_until_full)
        seconds = await run()
        # or the next way would be measured beside it
        await asyncio.to_thread(sandbox._warm.wait_until_full)
        return seconds

    return warm


def exchange_of(sandbox: ProbedSandbox) -> Way:
    async def exchange() -> None:
        async with sandbox.start({}, ["cat"], PATIENT) as program:
            await program.write(b"hello\n")
            assert await program.read_line(seconds=30) == b"hello\n"

    return lambda: timed(exchange)


@contextlib.asynccontextmanager
async def steps_of(sandbox: ProbedSandbox) -> AsyncIterator[dict[str, Way]]:
    """Ways inside one session, and one exchange with a program that runs."""
    limits = ProgramLimits(seconds=3600.0, cpu_seconds=3600.0)
    async with (
        sandbox.session({}, limits) as session,
        sandbox.start({}, ["cat"], limits) as program,
    ):
        python = session.python()

        async def step() -> None:
            assert (await session.run(["true"])).status == "ok"

        async def execute() -> None:
            assert (await python.execute(CODE)).stdout == "1\n"

        async def line() -> None:
            await program.write(b"hello\n")
            assert await program.read_line(seconds=30) == b"hello\n"

        yield {
            "session: a command": lambda: timed(step),
            "session: the interpreter": lambda: timed(execute),
            "a line to a running program and back": lambda: timed(line),
        }


@contextlib.contextmanager
def peer_of(python: str | None) -> Iterator[tuple[dict[str, Way], str]]:
    """smolagents' executor, or why it is left out."""
    if python is None:
        yield {}, "smolagents: not measured; give --peer"
        return
    script = Path(__file__).parent / "peers" / "smolagents_execute.py"
    with subprocess.Popen(
        [python, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        stdin, stdout = child.stdin, child.stdout
        version = json.loads(stdout.readline())["version"]

        async def execute() -> float:
            print(json.dumps(CODE), file=stdin, flush=True)
            answer = json.loads(stdout.readline())
            assert answer["said"] == "1\n", answer
            return float(answer["seconds"])

        yield {f"smolagents {version}, in its process": execute}, ""
        stdin.close()


async def docker_run() -> float:
    """Return the command line of Docker, with the image of the provider."""
    began = time.perf_counter()
    words = [
        "docker",
        "run",
        "--rm",
        "--network",
        "none",
        "quintain-sandbox",
        "python3",
        "-I",
        "-c",
        CODE,
    ]
    subprocess.run(words, capture_output=True, check=True)  # noqa: ASYNC221
    return time.perf_counter() - began


async def docker_ways(stack: contextlib.AsyncExitStack) -> tuple[dict[str, Way], str]:
    """Return the command line and the provider, or why they are left out."""
    if shutil.which("docker") is None:
        return {}, "docker: not measured; the command is missing"
    try:
        sandbox = await stack.enter_async_context(Docker(slots=2, enforce=()))
        await docker_run()
    except (InfrastructureError, UsageError, subprocess.CalledProcessError) as e:
        return {}, f"docker: not measured; {str(e).splitlines()[0]}"
    return {"docker run": docker_run, "docker": run_of(sandbox, COMMAND)}, ""


async def rounds_of(ways: dict[str, Way], rounds: int) -> dict[str, list[float]]:
    """Seconds of each way and round; the first round does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    names = list(ways)
    for number in range(rounds + 1):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            took = await ways[name]()
            if number:
                seconds[name].append(took)
    return seconds


def cpu_seconds() -> float:
    """CPU time of this process, of the launchers of its sandboxes, and of what these started and
    collected.
    """
    ticks = 0
    for task in Path("/proc/self/task").iterdir():
        for child in (task / "children").read_text().split():
            fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


async def throughput(sandbox: ProbedSandbox, runs: int, together: int) -> tuple[float, float]:
    """Runs per second of *together* callers, and CPU seconds of a run."""
    gate = asyncio.Semaphore(together)

    async def one() -> None:
        async with gate:
            assert (await sandbox.run(SCRIPT, COMMAND, limits=PATIENT)).status == "ok"

    before = cpu_seconds()
    took = await timed(lambda: asyncio.gather(*(one() for _ in range(runs))))
    await asyncio.sleep(0.5)  # clean-up, and interpreters that take the place of used ones
    return runs / took, (cpu_seconds() - before) / runs


async def lateness(sandbox: ProbedSandbox, times: int) -> list[float]:
    """Seconds by which the result of a program that sleeps comes after its limit, as the caller
    sees it.
    """
    return [
        await timed(lambda: sandbox.run({}, ["sleep", "60"], limits=KILL)) - KILL.seconds
        for _ in range(times)
    ]


async def measure(options: Any, rounds: int) -> tuple[dict[str, Any], list[str]]:
    runs = 16 if options.quick else options.runs
    async with contextlib.AsyncExitStack() as stack:
        cold = await stack.enter_async_context(Bubblewrap(slots=8, enforce=()))
        warm = await stack.enter_async_context(Bubblewrap(slots=8, enforce=(), warm=WARM))
        ways: dict[str, Way] = {
            "plain interpreter": plain,
            "bubblewrap": run_of(cold, COMMAND),
            "bubblewrap, warm": warm_of(warm),
            "start, a line and back": exchange_of(cold),
        }
        ways |= await stack.enter_async_context(steps_of(cold))
        docker, reason = await docker_ways(stack)
        peer, other = stack.enter_context(peer_of(options.peer))
        seconds = await rounds_of(ways | docker | peer, rounds)
        rates: dict[str, dict[int, list[float]]] = {"bubblewrap": {}, "bubblewrap, warm": {}}
        cpu: dict[str, list[float]] = {name: [] for name in rates}
        for _ in range(1 if options.quick else 3):
            for together in (1, 4, 8):
                for name, sandbox in (("bubblewrap", cold), ("bubblewrap, warm", warm)):
                    rate, used = await throughput(sandbox, runs, together)
                    rates[name].setdefault(together, []).append(rate)
                    cpu[name].append(used)
        late = await lateness(cold, 5 if options.quick else 20)
    added = {
        name: spread(
            one - base for one, base in zip(values, seconds["plain interpreter"], strict=True)
        )
        for name, values in seconds.items()
    }
    figures = {
        "seconds": {name: spread(values) for name, values in seconds.items()},
        "added_seconds": added,
        "runs_per_second": {
            name: {n: spread(v) for n, v in by.items()} for name, by in rates.items()
        },
        "cpu_seconds_per_run": {name: spread(values) for name, values in cpu.items()},
        "kill_late_seconds": spread(late),
    }
    return figures, [text for text in (reason, other) if text]


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument(
        "--runs", type=int, default=200, help="runs of one rate (default: %(default)s)"
    )
    parser.add_argument("--peer", help="an interpreter that has smolagents")
    options = parser.parse_args()
    rounds = options.rounds or (2 if options.quick else 60)
    figures, left_out = asyncio.run(measure(options, rounds))
    scaled = lambda s: {k: v * 1000 if k != "n" else v for k, v in s.items()}  # noqa: E731
    rows = [
        [name, shown(scaled(summary)), f"{figures['added_seconds'][name]['median'] * 1000:+.1f}"]
        for name, summary in figures["seconds"].items()
    ]
    print(table(["way", "ms", "ms beyond the plain interpreter"], rows))
    rates = figures["runs_per_second"]
    cpu = figures["cpu_seconds_per_run"]
    counts = [
        [
            name,
            *(f"{summary['median']:.0f}" for summary in by.values()),
            f"{cpu[name]['median'] * 1000:.1f}",
        ]
        for name, by in rates.items()
    ]
    print(
        "\n"
        + table(
            ["runs per second, callers", *map(str, rates["bubblewrap"]), "CPU ms of a run"], counts
        )
    )
    late = figures["kill_late_seconds"]
    print(
        f"\na kill comes {late['median'] * 1000:.0f} ms after the limit, the latest "
        f"{late['max'] * 1000:.0f} ms"
    )
    for text in left_out:
        print(text)
    conditions = {"rounds": rounds, "warm": WARM, "left_out": left_out}
    write("sandbox", figures, quick=options.quick, about=conditions)
    return 0


if __name__ == "__main__":
    sys.exit(main())
