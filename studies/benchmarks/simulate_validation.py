"""Tokens a second of real runs beside those that `quintain simulate` predicts for them.

A real run is `quintain train` with its loop, sessions, collector, learner and files in real time.
Its engine decodes in batches on the clock of the machine: a step takes `STEP` seconds and
`SEQUENCE` more for each turn, and each turn gets one token. Its learner updates a model of 0.1M
parameters, and waits until `UPDATE` seconds and `TOKEN` for each token are over. So little is
computed, and a loaded machine changes little.

The simulator is told neither. It fits them to the timelines of the three runs of `FITTED`, and then
predicts all of `CASES`, none of which it has seen, from their recipes and the distributions of
their replies and waits.

    python -m studies.benchmarks.simulate_validation [--quick] [--only NAME] [--part 1/3]

A part is a share of the cases; the parts of one folder are put together by ``--join``.
"""

from __future__ import annotations

import asyncio
import json
import math
import statistics
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from quintain import (
    Environment,
    Limits,
    Rollout,
    Sampled,
    Sampling,
    Task,
    TokenEngine,
    Weights,
    reward,
)
from quintain.learning.learner import Learner
from quintain_authoring.byte_tokenizer import ByteTokenizer
from quintain_simulate.distributions import Distribution

from . import shapes
from .common import arguments, table, write

STEP, SEQUENCE, UPDATE, TOKEN = 0.04, 0.001, 0.4, 0.0004
"""Seconds: of a step of decoding, of each turn in it, of an update, of each token of its batch."""
LETTERS = 26


class PacedEngine(TokenEngine):
    """Decodes up to *slots* turns on the clock of the machine; the tokens are letters.

    Lengths are drawn from *reply* by the seed of the turn.
    """

    name = "paced"

    def __init__(self, *, reply: str = "10", slots: int = 64) -> None:
        self.tokenizer, self.context = ByteTokenizer(), 4096
        self._reply, self._slots = Distribution.parse(reply), slots
        self._running: dict[asyncio.Future[None], list[int]] = {}
        self._waiting: list[tuple[asyncio.Future[None], list[int]]] = []
        self._decoding: asyncio.Task[None] | None = None
        self._versions: dict[asyncio.Future[None], list[int]] = {}
        self._draining: asyncio.Event | None = None

    async def sample(self, ids: Sequence[int], sampling: Sampling) -> Sampled:
        random = Random(sampling.seed)
        length = max(1, round(self._reply.draw(random)))
        tokens = min(length, sampling.max_tokens or length)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._versions[done] = []
        self._waiting.append((done, [tokens]))
        if self._decoding is None or self._decoding.done():
            self._decoding = asyncio.create_task(self._decode())
        await done
        versions = self._versions.pop(done)
        return Sampled(
            ids=tuple(97 + random.randrange(LETTERS) for _ in range(tokens)),
            logps=(-math.log(LETTERS),) * tokens,
            versions=tuple(versions),
            finish="stop",
        )

    async def _decode(self) -> None:
        due = time.monotonic()
        while self._running or (self._waiting and self._draining is None):
            while self._waiting and len(self._running) < self._slots and self._draining is None:
                done, left = self._waiting.pop(0)
                self._running[done] = left
            # What a late wake-up takes, the next step makes up for.
            due += STEP + SEQUENCE * len(self._running)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            for done, left in [*self._running.items()]:
                self._versions[done].append(self.version)
                left[0] -= 1
                if not left[0]:
                    del self._running[done]
                    done.set_result(None)
        if self._draining is not None:
            self._draining.set()

    async def score(
        self, ids: Sequence[int], start: int, temperature: float = 1.0
    ) -> Sequence[float]:
        return [-math.log(LETTERS)] * (len(ids) - start)

    async def update(self, weights: Weights) -> int:
        if not self.in_flight_updates and self._running:
            self._draining = asyncio.Event()
            await self._draining.wait()
            self._draining = None
            self._decoding = asyncio.create_task(self._decode()) if self._waiting else None
        self.version = weights.version
        return self.version


class PacedLearner(Learner):
    """The learner of core, which takes `UPDATE` seconds and `TOKEN` for each token that trains."""

    def batch(self, *args: Any, **options: Any) -> Any:
        found = super().batch(*args, **options)
        self.tokens = found.tokens
        return found

    def step(self, *args: Any, **options: Any) -> dict[str, float]:
        began = time.monotonic()
        metrics = super().step(*args, **options)
        seconds = UPDATE + TOKEN * self.tokens - (time.monotonic() - began)
        time.sleep(max(0.0, seconds))
        return metrics


@reward(range=(0, 1))
def even(rollout: Rollout[Task, Any]) -> float:
    """1 for every second sample: those of a group differ, so that each step updates."""
    return float(rollout.sample % 2 == 0)


class Waiting(Environment[Task, Any]):
    """Takes turns, and waits after each."""

    reward = even
    limits = Limits(turns=16, seconds=3600)
    turns: str = "1"
    wait: str = "0"

    def tasks(self, split: str) -> Iterable[Task]:
        return [Task(prompt=f"task {number}") for number in range(256)]

    async def rollout(self, task: Task, agent: Any) -> None:
        turns, wait = Distribution.parse(self.turns), Distribution.parse(self.wait)
        for number in range(max(1, round(turns.draw(agent.rng)))):
            agent.user("again" if number else task.prompt)
            await agent.turn()
            await asyncio.sleep(wait.draw(agent.rng))


@dataclass(frozen=True, kw_only=True)
class Case:
    """A run: its schedule, its batch, its episodes, its engine."""

    schedule: str = "sync"
    changes: dict[str, Any] = field(default_factory=dict)
    prompts: int = 8
    group: int = 4
    reply: str = "uniform:8,24"
    turns: str = "1"
    wait: str = "0"
    slots: int = 64
    replicas: int = 1
    concurrency: int = 256

    def recipe(self, model: Path, steps: int) -> str:
        """Return the recipe of the real run."""
        args = f'reply = "{self.reply}", slots = {self.slots}'
        engine = f'use = "{__spec__.name}:PacedEngine", args = {{ {args} }}'
        if self.replicas > 1:
            engine = (
                f'use = "pool", args = {{ engine = "{__spec__.name}:PacedEngine", count = '
                f'{self.replicas}, slots = {self.slots}, settings = {{ reply = "{self.reply}" }} }}'
            )
        return f"""
run = {{ steps = {steps}, max_sample_mismatch = "none" }}
model = {{ name = "{model}", dtype = "float32", device = "cpu" }}
algorithm = {{ use = "dr_grpo", args = {{ ratio_to = "mu" }} }}
sampling.max_tokens = 64
batch = {{ prompts = {self.prompts}, group_size = {self.group}, concurrency = {self.concurrency} }}
learner = {{ lr = 1e-7, precision = "float32", use = "{__spec__.name}:PacedLearner" }}
schedule = {{ use = "{self.schedule}", args = {json.dumps(self.changes).replace(":", " =")} }}
engine = {{ {engine} }}
evaluation = {{ every = 0, test = {{ tasks = 0 }} }}
checkpoint.every = 0
[[environments]]
use = "{__spec__.name}:Waiting"
args = {{ turns = "{self.turns}", wait = "{self.wait}" }}
"""

    @property
    def warm(self) -> int:
        """Steps that fill the queue."""
        from quintain.registry import current

        kind = current().load("schedule", self.schedule)
        return int(kind(**self.changes).max_staleness) + 2


FITTED = {
    "fit: 4 x 2": Case(prompts=4, group=2),
    "fit: 8 x 4": Case(),
    "fit: 12 x 4": Case(prompts=12, reply="uniform:4,40"),
}
TOOL, SLOW = "uniform:0.2,1.0", "mixture:0.3*0.9,3*0.1"
DROP = {"stale": "drop"}
CASES = {
    "sync, 16 x 4": Case(prompts=16),
    "sync, 4 x 8, long": Case(prompts=4, group=8, reply="uniform:20,60"),
    "sync, 16 slots": Case(slots=16),
    "sync, 8 slots, long": Case(prompts=6, slots=8, reply="uniform:10,30"),
    "sync, tool": Case(turns="2", wait=TOOL),
    "sync, slow tool": Case(turns="2", wait=SLOW),
    "sync, 4 turns": Case(prompts=6, turns="4", wait=TOOL),
    "sync, 2 replicas": Case(prompts=12, replicas=2),
    "sync, 16 episodes": Case(concurrency=16),
    "one off, 8 x 4": Case(schedule="one_step_off"),
    "one off, 16 x 4": Case(schedule="one_step_off", prompts=16),
    "one off, tool": Case(schedule="one_step_off", turns="2", wait=TOOL),
    "one off, slow tool": Case(schedule="one_step_off", turns="2", wait=SLOW),
    "one off, 16 slots": Case(schedule="one_step_off", slots=16),
    "one off, 2 replicas": Case(schedule="one_step_off", prompts=12, replicas=2),
    "areal, 8 x 4": Case(schedule="areal"),
    "areal 2, 12 x 4": Case(schedule="areal", changes={"max_staleness": 2}, prompts=12),
    "areal 1, tool": Case(schedule="areal", changes={"max_staleness": 1}, turns="2", wait=TOOL),
    "areal, slow tool": Case(schedule="areal", turns="2", wait=SLOW),
    "areal 2, drop": Case(
        schedule="areal", changes={"max_staleness": 2} | DROP, turns="2", wait=SLOW
    ),
    "areal, 16 slots": Case(schedule="areal", slots=16, reply="uniform:4,40"),
    "areal 2, 3 replicas": Case(
        schedule="areal", changes={"max_staleness": 2}, prompts=12, replicas=3, slots=16
    ),
    "pipeline 4, long": Case(
        schedule="pipeline", changes={"max_staleness": 4}, reply="uniform:20,60"
    ),
    "pipeline 3, 4 turns": Case(
        schedule="pipeline", changes={"max_staleness": 3}, prompts=6, turns="4", wait=TOOL
    ),
    "pipeline 2, 16 slots": Case(
        schedule="pipeline", changes={"max_staleness": 2}, slots=16, reply="uniform:10,30"
    ),
}


def run(case: Case, steps: int, model: Path, parent: Path, name: str) -> Path:
    """Train *case* in real time; return the folder of the run."""
    from quintain.console import Screen
    from quintain.recipe import Recipe
    from quintain.run import run_training
    from quintain.store import RunFolder

    text = case.recipe(model, steps)
    with RunFolder.create(parent / name, text) as folder:
        run_training(Recipe.parse(text), folder, Screen(quiet=True))
    return parent / name


def measured(folder: Path, warm: int) -> dict[str, float]:
    """Return tokens a second and seconds of a step of the run in *folder*."""
    from quintain.store import RunFolder

    records = [r for r in RunFolder(folder, lock=False).metrics() if r.get("step", 0) > warm]
    seconds = sum(v for r in records for k, v in r.items() if k.startswith("seconds."))
    return {
        "tokens_per_second": sum(r["tokens"] for r in records) / seconds,
        "step_seconds": seconds / len(records),
        "steps": len(records),
    }


def predicted(case: Case, costs: dict[str, Any], model: Path) -> dict[str, float]:
    """Return the same of a simulation with *costs*."""
    from quintain.recipe import Recipe, RunPlan
    from quintain_simulate import Simulation, SimulationSetup

    setup = SimulationSetup.of(
        {
            "engine": {**costs["engine"], "slots": case.slots},
            "learner": costs["learner"],
            "cluster": {"engines": case.replicas},
            "episodes": {
                "prompt": 0, "added": 0, "reply": case.reply, "turns": case.turns, "wait": case.wait,
            },
        }
    )  # fmt: skip
    plan = RunPlan.of(Recipe.parse(case.recipe(model, 1)))
    outcome = Simulation(plan=plan, setup=setup).run(steps=60)
    return {
        "tokens_per_second": outcome.tokens_per_second,
        "step_seconds": outcome.step_seconds,
        "cpu_seconds": outcome.cpu_seconds,
    }


@contextmanager
def folder_of_runs(kept: Path | None) -> Any:
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        yield kept
        return
    with tempfile.TemporaryDirectory(prefix="quintain-simulate-") as place:
        yield Path(place)


def train_all(chosen: dict[str, Case], steps: int, place: Path, model: Path) -> None:
    """Run those of *chosen* that *place* does not have yet."""
    for name, case in chosen.items():
        folder = place / name.replace(" ", "_").replace(",", "").replace(":", "")
        if not (folder / "summary.json").exists():
            began = time.monotonic()
            run(case, case.warm + steps, model, place, folder.name)
            print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)


def compare(place: Path, model: Path) -> dict[str, Any]:
    """Return the figures of all runs in *place* beside the predictions."""
    from quintain_simulate.fit import setup_like

    def folder(name: str) -> Path:
        return place / name.replace(" ", "_").replace(",", "").replace(":", "")

    _, costs = setup_like([folder(name).name for name in FITTED], str(place))
    figures: dict[str, Any] = {}
    for name, case in CASES.items():
        if not (folder(name) / "summary.json").exists():
            continue
        real, simulated = measured(folder(name), case.warm), predicted(case, costs, model)
        ratio = simulated["tokens_per_second"] / real["tokens_per_second"]
        figures[name] = {"real": real, "simulated": simulated, "ratio": ratio}
    return {"costs": costs, "cases": figures}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--only", action="append", help="a case (repeatable)")
    parser.add_argument("--part", default="1/1", help="of the cases, such as 1/3")
    parser.add_argument("--runs", type=Path, help="folder of the runs, which keeps them")
    parser.add_argument("--join", action="store_true", help="compare the runs in --runs")
    args = parser.parse_args()
    model = shapes.folder("0.1M")
    part, parts = map(int, args.part.split("/"))
    chosen = {n: c for n, c in CASES.items() if not args.only or n in args.only}
    if args.quick:
        chosen = dict([*chosen.items()][:1])
    every = [*(FITTED | chosen).items()][part - 1 :: parts]
    steps = args.rounds or (3 if args.quick else 8)
    with folder_of_runs(args.runs) as place:
        if not args.join:
            train_all(dict(every), steps, place, model)
            if parts > 1:
                return
        found = compare(place, model)
    cases = found["cases"]
    rows = [
        [
            name,
            *(f"{figure[side]['tokens_per_second']:.1f}" for side in ("real", "simulated")),
            f"{figure['ratio']:.3f}",
            f"{figure['real']['step_seconds']:.2f}",
        ]
        for name, figure in cases.items()
    ]
    print(table(["case", "real tokens/s", "simulated", "ratio", "s a step"], rows))
    off = [abs(figure["ratio"] - 1) for figure in cases.values()]
    found["within 10 %"] = sum(each <= 0.1 for each in off)
    found["median error"] = statistics.median(off)
    print(f"{found['within 10 %']} of {len(off)} within 10 %, median {found['median error']:.1%}")
    about = {"engine": [STEP, SEQUENCE], "learner": [UPDATE, TOKEN], "steps": steps}
    write("simulate_validation", found, quick=args.quick, about=about)


if __name__ == "__main__":
    main()
