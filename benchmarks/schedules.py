"""Seconds of a step under each schedule, with a tool whose calls wait: synchronous, one step off, fully asynchronous.

Episodes of two turns with a tool between them. The tool waits its latency, and ten times as long in one call of ten.
Each schedule trains the same small model on the same tasks; figures are means over the middle half of the steps,
because a schedule that samples ahead fills its queue at first and empties it at last.
*Best* is work divided by capacity: the larger of the seconds of an update alone and the seconds of all waits of a batch
divided among the episodes that the schedule may run at once.

    python -m benchmarks.schedules [--quick]
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from quintain import Environment, Limits, Rollout, Task, reward

from . import shapes
from .common import arguments, table, write

PROMPTS, GROUP = 8, 4
SCHEDULES = {"sync": 0, "one_step_off": 1, "areal": 4}
LATENCIES = (0.0, 0.05, 0.25, 1.0)
NAMES = ("seconds.step", "seconds.rollouts", "seconds.update", "idle.learner", "idle.sampler", "staleness.mean")
STRAGGLERS, SLOWER = 10, 10
"""One call of *STRAGGLERS* waits *SLOWER* times as long."""

RECIPE = """
run.steps = {steps}
model = {{ name = "{model}", dtype = "float32", device = "cpu" }}
algorithm = {{ use = "dr_grpo", args = {{ correction = "tis" }} }}
sampling.max_tokens = 24
batch = {{ prompts = {prompts}, group_size = {group}, concurrency = 256 }}
learner = {{ lr = 1e-5, precision = "float32" }}
schedule.use = "{schedule}"
evaluation = {{ every = 0, test = {{ tasks = 0 }} }}
checkpoint.every = 0
[[environments]]
use = "benchmarks.schedules:Waiting"
args = {{ folder = "{model}", latency = {latency} }}
"""


@reward(range=(0, 1))
def even(rollout: Rollout[Task, Any]) -> float:
    """1 for every second sample: those of a group differ, so that each step updates."""
    return float(rollout.sample % 2 == 0)


class Waiting(Environment[Task, Any]):
    """Two turns; what is between them takes its time."""

    reward = even
    limits = Limits(turns=2)
    folder: str
    latency: float = 0.05

    def tasks(self, split: str) -> Iterable[Task]:
        return [Task(prompt=text) for text in shapes.prompts(self.folder)]

    async def rollout(self, task: Task, agent: Any) -> None:
        agent.user(task.prompt)
        turn = await agent.turn()
        slow = (len(turn.text) + len(task.prompt)) % STRAGGLERS == 0
        await asyncio.sleep(self.latency * (SLOWER if slow else 1))
        agent.user("again")
        await agent.turn()


def train(model: Path, schedule: str, latency: float, steps: int) -> list[dict[str, Any]]:
    """The metrics of each step of one run."""
    from quintain.training.build import run_training
    from quintain.training.recipe.tables import Recipe
    from quintain.training.run_folder import RunFolder
    from quintain.training.screen import Screen

    text = RECIPE.format(
        steps=steps, model=model, prompts=PROMPTS, group=GROUP, schedule=schedule, latency=float(latency)
    )
    where = tempfile.TemporaryDirectory(prefix="quintain-benchmark-")
    with where, RunFolder.create(Path(where.name) / "run", text) as folder:
        run_training(Recipe.parse(text), folder, Screen())
        return folder.metrics()


def main() -> None:
    parser = arguments(__doc__)
    args = parser.parse_args()
    steps = args.rounds or (8 if args.quick else 32)
    latencies = LATENCIES[:2] if args.quick else LATENCIES
    model = shapes.folder("0.1M")
    figures: dict[str, Any] = {}
    rows = []
    for latency in latencies:
        wait = latency * (1 + (SLOWER - 1) / STRAGGLERS)
        base = 0.0
        for schedule, staleness in SCHEDULES.items():
            records = [r for r in train(model, schedule, latency, steps) if "seconds.rollouts" in r]
            records = records[len(records) // 4 : -len(records) // 4]
            for record in records:
                record["seconds.step"] = sum(v for k, v in record.items() if k.startswith("seconds."))
            mean = {name: statistics.fmean(r[name] for r in records) for name in NAMES if name in records[0]}
            base = base or mean["seconds.step"]
            best = max(mean["seconds.update"], wait / (staleness + 1))
            figures[f"{schedule}, {latency} s"] = mean | {"gain": base / mean["seconds.step"], "best": best}
            numbers = [mean["seconds.step"], base / mean["seconds.step"], best]
            numbers += [mean.get(name, 0.0) for name in ("idle.learner", "staleness.mean")]
            rows.append([f"{latency:g}", schedule, *(f"{number:.2f}" for number in numbers)])
    head = ["latency (s)", "schedule", "seconds a step", "gain", "best", "learner idle", "staleness"]
    print(table(head, rows))
    write("schedules", figures, quick=args.quick, about={"device": args.device, "prompts": PROMPTS, "group": GROUP})


if __name__ == "__main__":
    main()
