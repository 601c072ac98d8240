"""What episodes cost in processes of their own, and many that wait, with an engine that answers at
once in the process of the run.

Every turn has 16 tokens; an episode of five turns calls a tool in the first four. *here* plays all
in one process. CPU time is that of the run and of its episode processes together, in milliseconds
for each rollout. `--waiting` plays that many episodes at once, of which each waits a minute for its
tool, and measures memory, by how much a timer of the run is late, and what CPU time the run takes
between two looks at its timers (*busy*), which no other program on the machine changes.

    python -m studies.benchmarks.workers
    python -m studies.benchmarks.workers --waiting 100000
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from quintain import Sampled, Sampling, TokenEngine, Weights
from quintain.evaluation import frozen_heap
from quintain.recipe import Recipe, RunPlan
from quintain.rollouts import RolloutContext, RolloutRequest, run_groups
from quintain.services import started_services
from quintain_scale.workers import EpisodeProcesses

from . import rollouts
from .common import arguments, table, write

FILE = Path(__file__).parent / "worker_tasks.py"
CASES = {"one turn": "OneTurn", "five turns": "Tool", "gateway": "Outside"}
EPISODES = {"one turn": 4096, "five turns": 1024, "gateway": 2048}
GROUP = 8
CONCURRENCY = 512
PROCESSES = (0, 1, 2, 4)
WAIT = 60.0
TICK = 0.01


class Instant(TokenEngine):
    """Answers in the last of its *turns*, and calls the tool in those before."""

    name, context = "instant", 4096

    def __init__(self) -> None:
        from transformers import AutoTokenizer

        from quintain.models.tokenizer import HFTokenizer

        self.tokenizer = HFTokenizer(AutoTokenizer.from_pretrained(rollouts.tokenizer_folder()))
        self.answers = {name: tuple(ids) for name, ids in rollouts.answers().items()}
        self.logps = tuple(-0.01 * i for i in range(rollouts.TOKENS))
        self.call_end = self.tokenizer.encode("</tool_call>")[0]
        self.turns = 1

    async def sample(self, ids: Sequence[int], sampling: Sampling) -> Sampled:
        # the template has the token once, before any call
        calls = self.turns > 1 and ids.count(self.call_end) < self.turns
        name = "call" if calls else "answer"
        sampled = self.answers[name]
        return Sampled(
            ids=sampled,
            logps=self.logps[: len(sampled)],
            versions=(0,) * len(sampled),
            finish="stop",
            stop=sampled[-1],
        )

    async def score(
        self, ids: Sequence[int], start: int, temperature: float = 1.0
    ) -> Sequence[float]:
        return [0.0] * (len(ids) - start)

    async def update(self, weights: Weights) -> int:
        return 0


def cpu_of(pid: int) -> float:
    """Return the seconds of CPU that a process and its threads have used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(pid: int | str) -> int:
    """Return the bytes that a process holds."""
    pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


class Side:
    """An environment, and what plays it: *processes*, or with 0 this process.

    Attributes:
        pids: of the episode processes.
    """

    def __init__(self, engine: Instant, processes: int) -> None:
        self.engine, self.processes = engine, processes
        self.pids: list[int] = []

    async def open(self, stack: AsyncExitStack, case: str, **args: Any) -> None:
        """Start what plays the episodes of *case*."""
        http = {"use": f"{FILE}:Http"}
        services = {"http": http} if case == "gateway" else {}
        table = {"use": f"{FILE}:{CASES[case]}", "args": args}
        plan = RunPlan.of(Recipe.of({"environments": [table], "services": services}))
        policy = {"policy": self.engine}
        started = await stack.enter_async_context(
            started_services(plan.services, set(plan.slots), policy)
        )
        self.environment = plan.tasks.environments[0].make(started)
        self.play = None
        if self.processes:
            workers = EpisodeProcesses(processes=self.processes, policy=self.engine)
            await stack.enter_async_context(workers)
            await workers.open(plan, [self.environment], started)
            self.play = workers.play
            self.pids = [process.pid for team in workers.teams for process in team.live]

    async def run(self, episodes: int, concurrency: int, on_rollout: Any = None) -> int:
        """Play *episodes*; return how many are valid."""
        tasks = [*self.environment.tasks("train")]
        requests = [
            RolloutRequest(
                environment=self.environment,
                task=tasks[index % len(tasks)],
                group_size=GROUP,
                index=index,
                visit=index // len(tasks),
            )
            for index in range(episodes // GROUP)
        ]
        context = RolloutContext(engine=self.engine, concurrency=concurrency, play=self.play)
        with frozen_heap():
            groups = await run_groups(requests, context, on_rollout)
        return sum(r.valid and r.total == 1 for g in groups for r in g.rollouts)

    def cpu(self) -> tuple[float, float]:
        """Return the CPU seconds of this process and of the others."""
        return time.process_time(), sum(map(cpu_of, self.pids))


async def measured(case: str, processes: int, episodes: int, rounds: int) -> dict[str, float]:
    """Return rollouts a second and CPU milliseconds for each, the medians of *rounds*."""
    engine = Instant()
    engine.turns = 5 if case == "five turns" else 1
    side = Side(engine, processes)
    figures = []
    async with AsyncExitStack() as stack:
        await side.open(stack, case)
        await side.run(CONCURRENCY, CONCURRENCY)
        for _ in range(rounds):
            began, (run, others) = time.perf_counter(), side.cpu()
            valid = await side.run(episodes, CONCURRENCY)
            assert valid == episodes
            seconds, (run_after, others_after) = time.perf_counter() - began, side.cpu()
            figures.append((episodes / seconds, run_after - run, others_after - others))
    rate, run, others = (statistics.median(column) for column in zip(*figures, strict=True))
    return {
        "rollouts_per_second": rate,
        "run_cpu_ms": run / episodes * 1e3,
        "processes_cpu_ms": others / episodes * 1e3,
    }


async def waiting(episodes: int, processes: int, seconds: float) -> dict[str, float]:
    """Return what *episodes* take that all wait for their tool at once."""
    engine = Instant()
    engine.turns = 2
    side = Side(engine, processes)
    late: list[float] = []
    busy: list[float] = []
    most, begun, ended = 0, 0, 0

    async def tick() -> None:
        loop = asyncio.get_running_loop()
        while True:
            due, cpu = loop.time() + TICK, time.process_time()
            await asyncio.sleep(TICK)
            late.append(loop.time() - due)
            busy.append(time.process_time() - cpu)

    def count(_: Any) -> None:
        nonlocal ended
        ended += 1

    async with AsyncExitStack() as stack:
        await side.open(stack, "five turns", seconds=seconds, many=episodes // GROUP)
        sample = engine.sample

        async def counted(ids: Sequence[int], sampling: Sampling) -> Sampled:
            nonlocal begun, most
            begun += ids.count(engine.call_end) == 1  # the first turn
            most = max(most, begun - ended)
            return await sample(ids, sampling)

        engine.sample = counted  # type: ignore[method-assign]
        ticking = asyncio.create_task(tick())
        await asyncio.sleep(0)
        began, cpu = time.perf_counter(), side.cpu()
        memory = asyncio.create_task(highest(side.pids))
        valid = await side.run(episodes, episodes, count)
        taken, after = time.perf_counter() - began, side.cpu()
        for task in (ticking, memory):
            task.cancel()
        gigabytes = HIGHEST[0] / 2**30
    late.sort()
    busy.sort()
    return {
        "episodes": episodes,
        "valid": valid,
        "in_flight": most,
        "seconds": taken,
        "gibibytes": gigabytes,
        "run_cpu_ms": (after[0] - cpu[0]) / episodes * 1e3,
        "processes_cpu_ms": (after[1] - cpu[1]) / episodes * 1e3,
        "late_ms": late[-1] * 1e3,
        "late_99_ms": late[int(len(late) * 0.99)] * 1e3,
        "busy_ms": busy[-1] * 1e3,
        "busy_99_ms": busy[int(len(busy) * 0.99)] * 1e3,
    }


HIGHEST = [0]


async def highest(pids: Sequence[int]) -> None:
    """Note the most memory that this process and *pids* hold together."""
    HIGHEST[0] = 0
    while True:
        HIGHEST[0] = max(HIGHEST[0], sum(map(resident, ["self", *pids])))
        await asyncio.sleep(1)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--waiting", type=int, default=0, help="episodes that wait at once")
    parser.add_argument("--seconds", type=float, default=WAIT, help="that the tool waits")
    parser.add_argument("--processes", type=int, default=2, help="of --waiting")
    options = parser.parse_args()
    if options.waiting:
        figures = asyncio.run(waiting(options.waiting, options.processes, options.seconds))
        print(table(list(figures), [[f"{value:.4g}" for value in figures.values()]]))
        write("workers_waiting", figures, quick=options.quick, about={"seconds": options.seconds})
        return
    rounds = options.rounds or (1 if options.quick else 3)
    results: dict[str, dict[str, dict[str, float]]] = {}
    rows = []
    for case, episodes in EPISODES.items():
        results[case] = {}
        for processes in PROCESSES:
            count = GROUP * 8 if options.quick else episodes
            one = asyncio.run(measured(case, processes, count, rounds))
            results[case][str(processes)] = one
            here = results[case]["0"]
            added = one["run_cpu_ms"] + one["processes_cpu_ms"] - here["run_cpu_ms"]
            name = str(processes) if processes else "here"
            numbers = (one["run_cpu_ms"], one["processes_cpu_ms"], added)
            rows.append(
                [case, name, f"{one['rollouts_per_second']:.0f}", *(f"{x:.3f}" for x in numbers)]
            )
    head = ["episode", "processes", "rollouts/s", "CPU ms of the run", "of the processes", "added"]
    print(table(head, rows))
    write("workers", results, quick=options.quick, about={"rounds": rounds})


if __name__ == "__main__":
    main()
