"""Whole runs on two environments, whose policy stalls when it loses: is a stall left out, or scored
by its cause?

A random model of 0.1M parameters learns to say a letter, on a simulated clock, so that stalling
costs no time. All of the product runs: episodes, retries, terminations, groups, updates.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import zlib
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, ClassVar

from quintain import Environment, Limits, Rollout, Task, reward

from ..benchmarks import shapes
from ..benchmarks.simulated import Costs, simulated
from .common import Line, Panel, Report, main

PROMPTS, GROUP, TOKENS, STEPS, RATE, LETTER, LAST = 8, 4, 3, 20, 1e-2, "k", 5
LEAST_SEEDS = 2
TREATMENTS = ("left out", "by cause")
RECIPE = """
run = {{ steps = {steps}, seed = {seed} }}
model = {{ name = "{model}", dtype = "float32", device = "cpu" }}
algorithm.use = "dr_grpo"
sampling.max_tokens = {tokens}
batch = {{ prompts = {prompts}, group_size = {group} }}
learner = {{ lr = {lr}, precision = "float32", use = "studies.benchmarks.simulated:ChargedLearner" }}
engine.use = "studies.benchmarks.simulated:ChargedEngine"
evaluation = {{ every = 0, test = {{ tasks = 0 }} }}
checkpoint.every = 0
[[environments]]
use = "studies.experiments.failure_runs:{environment}"
args = {{ counted = {counted} }}
"""


@reward(range=(0, 1))
def right(rollout: Rollout[Task, str]) -> float:
    """1 for a right reply."""
    return float(rollout.result == "right")


class Once(Environment[Task, str]):
    """Say something with the letter k. Three of four wrong replies stall.

    Attributes:
        counted: the time of a stall is the policy's.
    """

    reward, limits = right, Limits(turns=1, seconds=10)
    count: ClassVar[int] = 1
    counted: bool = True

    def tasks(self, split: str) -> Iterable[Task]:
        return [Task(prompt=f"{split} {i}") for i in range(64)]

    async def rollout(self, task: Task, agent: Any) -> str:
        texts = []
        for _ in range(self.count):
            agent.user(task.prompt)
            texts.append((await agent.turn()).text)
        solved = all(LETTER in text for text in texts)
        stalls = not solved and zlib.crc32("/".join(texts).encode()) % 4 > 0
        agent.metric(solved=solved, stalls=stalls)
        if stalls:
            with agent.policy_time() if self.counted else nullcontext():
                await asyncio.sleep(100)
        return "right" if solved else "wrong"


class Twice(Once):
    """Say it in both of two turns."""

    limits = Limits(turns=2, seconds=10)
    count = 2


def study(seeds: Sequence[int], quick: bool) -> Report:
    """Share of solved episodes, failed ones included, and of stalls, by step."""
    steps = 2 if quick else STEPS
    panels, contrasts = [], dict[str, list[float]]()
    for environment in (Once, Twice):
        name = environment.__name__
        curves = {t: [_trained(name, t, seed, steps) for seed in seeds] for t in TREATMENTS}
        for quantity in ("solved", "stalls"):
            lines = [
                Line(label=t, x=list(range(1, steps + 1)), values=[run[quantity] for run in runs])
                for t, runs in curves.items()
            ]
            panels.append(Panel(title=f"{quantity}, {name}", xlabel="step", lines=lines))
            contrasts |= {
                f"{quantity}, {name}, mean of the last {LAST} steps: {line.label}": [
                    sum(row[-LAST:]) / len(row[-LAST:]) for row in line.values
                ]
                for line in lines
            }
    settings = {"steps": steps, "lr": RATE, "prompts": PROMPTS, "group_size": GROUP}
    return Report(panels=panels, contrasts=contrasts, settings=settings)


def _trained(environment: str, treatment: str, seed: int, steps: int) -> dict[str, list[float]]:
    """Return the shares of each step of one run. One that ends because all episodes of a step failed
    keeps the shares of such a step.
    """
    from quintain.console.screen import Screen
    from quintain.errors import RunError
    from quintain.recipe.tables import Recipe
    from quintain.run.build import run_training
    from quintain.store.run_folder import RunFolder

    text = RECIPE.format(
        steps=steps,
        seed=seed,
        model=shapes.folder("0.1M"),
        tokens=TOKENS,
        prompts=PROMPTS,
        group=GROUP,
        lr=RATE,
        environment=environment,
        counted=str(treatment == "by cause").lower(),
    )
    shares: dict[str, list[float]] = {"solved": [], "stalls": []}
    where = tempfile.TemporaryDirectory(prefix="quintain-study-")
    with where, RunFolder.create(Path(where.name) / "run", text) as folder, simulated(Costs()):
        try:
            run_training(Recipe.parse(text), folder, Screen())
        except RunError as e:
            if f"all {PROMPTS * GROUP} episodes of the step failed" not in str(e):
                raise
        for step in range(1, len(folder.metrics())):
            rows = folder.read_rollouts(step)
            metrics = [json.loads(row["rollout"])["metrics"] for row in rows]
            for name, values in shares.items():
                values.append(sum(m[name] for m in metrics) / len(metrics))
    for name, end in (("solved", 0.0), ("stalls", 1.0)):
        shares[name] += [end] * (steps - len(shares[name]))
    return shares


if __name__ == "__main__":
    main(study)
