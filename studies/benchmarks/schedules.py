"""Seconds of a step under each schedule, with a tool whose calls wait: synchronous, one step off,
fully asynchronous.

Episodes of two turns with a tool between them. The tool waits its latency, and ten times as long in
one call of ten. Each schedule trains the same small model on the same tasks; figures are means over
the middle half of the steps, because a schedule that samples ahead fills its queue at first and
empties it at last. *Best* is work divided by capacity: the largest of the seconds of an update, of
the forward passes that a batch needs, and of all waits of a batch divided among the episodes that
the schedule may run at once. *Without drops* is the same if no group is left out: then the longest
call takes at most ``max_staleness + 1`` steps.

    python -m studies.benchmarks.schedules [--quick]       on a simulated clock, with fixed costs
    python -m studies.benchmarks.schedules --clock real    in real time, latencies of up to 1 s
    python -m studies.benchmarks.schedules --validate      0.25 and 1 s in real time and on both
                                                           simulated clocks

On the simulated clock the code of a run is executed and its waits are not, and the figures of two
calls are equal.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
import zlib
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from quintain import Environment, Limits, Rollout, Task, reward

from . import shapes
from .common import arguments, table, write
from .simulated import Costs, simulated

PROMPTS, GROUP, TOKENS, TURNS = 8, 4, 24, 2
SCHEDULES = {
    "sync": ("sync", 0, ""),
    "one_step_off, drop": ("one_step_off", 1, 'stale = "drop"'),
    "areal, drop": ("areal", 4, 'stale = "drop"'),
    "areal": ("areal", 4, ""),
    "pipeline, drop": ("pipeline", 8, 'stale = "drop"'),
    "pipeline": ("pipeline", 8, ""),
}
"""Preset, its staleness, and changes to it."""
LATENCIES = {"real": (0.0, 0.05, 0.25, 1.0), "simulated": (0.05, 0.25, 1.0, 5.0, 20.0, 60.0)}
NAMES = (
    "seconds.step",
    "seconds.rollouts",
    "seconds.update",
    "idle.learner",
    "idle.sampler",
    "staleness.mean",
)
STRAGGLERS, SLOWER = 10, 10
"""One call of *STRAGGLERS* waits *SLOWER* times as long."""

RECIPE = """
run.steps = {steps}
model = {{ name = "{model}", dtype = "float32", device = "cpu" }}
algorithm = {{ use = "dr_grpo", args = {{ correction = "tis" }} }}
sampling.max_tokens = {tokens}
batch = {{ prompts = {prompts}, group_size = {group}, concurrency = 256 }}
learner = {{ lr = 1e-5, precision = "float32"{learner} }}
schedule = {{ use = "{schedule}", args = {{ {schedule_args} }} }}
engine.use = "{engine}"
evaluation = {{ every = 0, test = {{ tasks = 0 }} }}
checkpoint.every = 0
[[environments]]
use = "studies.benchmarks.schedules:Waiting"
args = {{ folder = "{model}", latency = {latency} }}
"""


@reward(range=(0, 1))
def even(rollout: Rollout[Task, Any]) -> float:
    """1 for every second sample: those of a group differ, so that each step updates."""
    return float(rollout.sample % 2 == 0)


class Waiting(Environment[Task, Any]):
    """Two turns; what is between them takes its time."""

    reward = even
    limits = Limits(turns=TURNS, seconds=3600)  # a call of 60 s waits ten minutes at times
    folder: str
    latency: float = 0.05

    def tasks(self, split: str) -> Iterable[Task]:
        return [Task(prompt=text) for text in shapes.prompts(self.folder)]

    async def rollout(self, task: Task, agent: Any) -> None:
        agent.user(task.prompt)
        turn = await agent.turn()
        slow = zlib.crc32(f"{task.prompt}/{turn.text}".encode()) % STRAGGLERS == 0
        await asyncio.sleep(self.latency * (SLOWER if slow else 1))
        agent.user("again")
        await agent.turn()


def train(
    model: Path,
    schedule: str,
    latency: float,
    steps: int,
    clock: str = "real",
    costs: Costs | None = None,
) -> list[dict[str, Any]]:
    """Return the metrics of each step of one run.

    Args:
        clock: ``real``, ``skipping`` (computation takes its time, waits none), or ``simulated``
            with *costs*.
    """
    from quintain.console.screen import Screen
    from quintain.recipe.tables import Recipe
    from quintain.run.build import run_training
    from quintain.store.run_folder import RunFolder

    preset, _, changes = SCHEDULES[schedule]
    charged = clock == "simulated"
    text = RECIPE.format(
        steps=steps,
        model=model,
        prompts=PROMPTS,
        group=GROUP,
        tokens=TOKENS,
        schedule=preset,
        schedule_args=changes,
        latency=float(latency),
        engine="studies.benchmarks.simulated:ChargedEngine" if charged else "embedded",
        learner=', use = "studies.benchmarks.simulated:ChargedLearner"' if charged else "",
    )
    where = tempfile.TemporaryDirectory(prefix="quintain-benchmark-")
    time_of_run = nullcontext() if clock == "real" else simulated(costs if charged else None)
    with where, RunFolder.create(Path(where.name) / "run", text) as folder, time_of_run:
        run_training(Recipe.parse(text), folder, Screen())
        return folder.metrics()


def measure(
    model: Path,
    schedule: str,
    latency: float,
    steps: int,
    clock: str = "real",
    costs: Costs | None = None,
) -> dict[str, float]:
    """Return the figures of one run: means over the middle half of its steps."""
    began = time.perf_counter()
    records = [
        r for r in train(model, schedule, latency, steps, clock, costs) if "seconds.rollouts" in r
    ]
    took = time.perf_counter() - began
    records = records[len(records) // 4 : -len(records) // 4]
    for record in records:
        record["seconds.step"] = sum(v for k, v in record.items() if k.startswith("seconds."))
    figures = {
        name: statistics.fmean(r[name] for r in records) for name in NAMES if name in records[0]
    }
    if schedule == "sync":
        figures["idle.learner"] = figures["seconds.rollouts"] / figures["seconds.step"]
        figures["idle.sampler"] = 1 - figures["idle.learner"]
    figures["staleness.max"] = max(r["staleness.max"] for r in records)
    left_out = sum(
        r.get("groups.abandoned", 0) + r.get("groups.rejected.stale", 0) for r in records
    )
    started = sum(r["groups"] + r.get("groups.abandoned", 0) for r in records)
    ahead, slowest = SCHEDULES[schedule][1] + 1, SLOWER * latency
    forward = costs.forward * TOKENS * TURNS * PROMPTS * GROUP / 64 if costs else 0.0
    best = max(
        figures["seconds.update"], forward, (latency + (slowest - latency) / STRAGGLERS) / ahead
    )
    return figures | {
        "left_out": left_out / started,
        "best": best,
        "without_drops": max(best, slowest / ahead),
        "took": took,
    }


def validate(model: Path, steps: int) -> dict[str, Any]:
    """Real seconds of a step beside those on the simulated clocks; `Costs` are those of the
    synchronous real run.
    """
    figures: dict[str, Any] = {}
    rows = []
    alone = [r for r in train(model, "sync", 0.0, max(steps, 16)) if "seconds.update" in r][4:]
    update, rollouts = (
        statistics.median(r[f"seconds.{name}"] for r in alone) for name in ("update", "rollouts")
    )
    costs = Costs(update=update, forward=rollouts / (TURNS * TOKENS))
    for latency in (0.25, 1.0):
        for schedule in SCHEDULES:
            runs = {
                clock: measure(model, schedule, latency, steps, clock, costs)
                for clock in ("real", "skipping", "simulated")
            }
            real, skipping, fixed = (run["seconds.step"] for run in runs.values())
            figures[f"{schedule}, {latency} s"] = runs | {
                "skipping / real": skipping / real,
                "fixed / real": fixed / real,
            }
            rows.append(
                [
                    f"{latency:g}",
                    schedule,
                    *(f"{x:.2f}" for x in (real, skipping, skipping / real, fixed, fixed / real)),
                ]
            )
    print(
        table(
            ["latency (s)", "schedule", "real s", "skipping s", "ratio", "fixed costs s", "ratio"],
            rows,
        )
    )
    return figures | {"costs": vars(costs)}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--clock", choices=("simulated", "skipping", "real"), default="simulated")
    parser.add_argument(
        "--update",
        type=float,
        default=Costs.update,
        help="seconds of an update (default: %(default)s)",
    )
    parser.add_argument(
        "--forward",
        type=float,
        default=Costs.forward,
        help="seconds of a forward pass (default: %(default)s)",
    )
    parser.add_argument(
        "--latency", type=float, action="append", help="seconds (repeatable; default: the table's)"
    )
    parser.add_argument("--validate", action="store_true", help="compare the clocks")
    args = parser.parse_args()
    steps = args.rounds or (8 if args.quick else 40 if args.clock == "simulated" else 32)
    model = shapes.folder("0.1M")
    conditions = {
        "device": args.device,
        "prompts": PROMPTS,
        "group": GROUP,
        "steps": steps,
        "clock": args.clock,
    }
    if args.validate:
        write("schedules_validation", validate(model, steps), quick=args.quick, about=conditions)
        return
    costs = Costs(forward=args.forward, update=args.update) if args.clock == "simulated" else None
    latencies = LATENCIES["real" if args.clock == "real" else "simulated"]
    figures: dict[str, Any] = {}
    rows = []
    for latency in args.latency or (latencies[:2] if args.quick else latencies):
        base = 0.0
        for schedule in SCHEDULES:
            figure = measure(model, schedule, latency, steps, args.clock, costs)
            base = base or figure["seconds.step"]
            figures[f"{schedule}, {latency} s"] = figure | {"gain": base / figure["seconds.step"]}
            seconds = [
                figure["seconds.step"],
                base / figure["seconds.step"],
                figure["best"],
                figure["without_drops"],
            ]
            names = ("idle.learner", "idle.sampler", "staleness.mean", "staleness.max", "left_out")
            rows.append(
                [
                    f"{latency:g}",
                    schedule,
                    *(f"{x:.2f}" for x in (*seconds, *(figure.get(n, 0.0) for n in names))),
                ]
            )
    head = ["latency (s)", "schedule", "seconds a step", "gain", "best", "without drops"]
    head += ["learner idle", "sampler idle", "staleness", "maximum", "left out"]
    print(table(head, rows))
    if costs:
        conditions |= {
            "seconds of an update": costs.update,
            "seconds of a forward pass": costs.forward,
        }
    write(
        "schedules" if args.clock == "real" else f"schedules_{args.clock}",
        figures,
        quick=args.quick,
        about=conditions,
    )


if __name__ == "__main__":
    main()
