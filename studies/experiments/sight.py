"""Does GRPO teach a small vision-language model to count what it sees, and does it keep to pictures
that it was not trained on? The model `sight` before and after `examples/pictures/counting.toml`, with a blind
control beside it.

The measurement without the picture asks the same questions: a model that scores there as it does
with the picture has learned the answers, and not to see.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from quintain import Sampling
from quintain.engine import EmbeddedEngine
from quintain.evaluation import evaluate
from quintain.models import load_model
from quintain.store import model_named
from quintain_env_pictures import Counting
from quintain_starter import sight

from .common import ROOT, Line, Panel, Report, main

RECIPE = "examples/pictures/counting.toml"
STEPS, TASKS = 100, 200
LEAST_SEEDS = 3
"""Of a page: whole runs."""
OTHERS: Mapping[str, Mapping[str, Any]] = {
    "pictures as in training": {},
    "colours that GRPO leaves out": {"colours": ("purple", "orange")},
    "smaller shapes": {"scale": (0.35, 0.5)},
    "without the picture": {"blind": True},
}
"""Tasks of the split ``test``, by their settings."""


def study(seeds: Sequence[int], quick: bool) -> Report:
    """Accuracy along training on ``dev``, sampled, and before and after it on four kinds of tasks."""
    steps, tasks = (2, 8) if quick else (STEPS, TASKS)
    with tempfile.TemporaryDirectory(prefix="quintain-sight-") as temporary:
        place = Path(temporary)
        if quick:
            begin = str(place / "model")
            sight.grow(place / "model", 0, print, tower_updates=1, updates=1)
        else:
            begin = str(sight.grown_once(0, print))
        runs = [_trained(begin, seed, steps, tasks, place / str(seed)) for seed in seeds]
        before = _measured(begin, tasks)
        after = [_measured(model_named(str(run)).path, tasks) for run in runs]
        curves = [_curve(run) for run in runs]
    xs = [step for step, _ in curves[0]]
    contrasts = {}
    notes = []
    for name in before:
        contrasts[f"{name}: after less before"] = [one[name] - before[name] for one in after]
        notes.append(
            f"{name}: {before[name]:.3f} before, " + ", ".join(f"{one[name]:.3f}" for one in after)
        )
    line = Line(label="sampled", x=xs, values=[[value for _, value in curve] for curve in curves])
    panel = Panel(
        title="held-out accuracy of counting (dev)",
        xlabel="step",
        lines=[line],
        marks={"chance": 1 / 6},
    )
    ends = [
        Line(label=name, x=[0, steps], values=[[before[name], one[name]] for one in after])
        for name in before
        if name.endswith("sampled")
    ]
    kinds = Panel(
        title="accuracy on test, sampled", xlabel="step", lines=ends, marks={"chance": 1 / 6}
    )
    return Report(
        panels=[panel, kinds],
        contrasts=contrasts,
        settings={"recipe": RECIPE, "steps": steps, "tasks": tasks, "model": Path(begin).name},
        notes=notes,
    )


def _trained(begin: str, seed: int, steps: int, tasks: int, folder: Path) -> Path:
    """Make one run and return its folder."""
    words = [sys.executable, "-m", "quintain", "train", RECIPE, "-q", "--model", begin]
    words += [
        "--seed",
        str(seed),
        "--folder",
        str(folder),
        "--name",
        "run",
        "--set",
        f"run.steps={steps}",
    ]
    words += ["--set", f"evaluation.tasks={tasks}", "--set", "evaluation.test.tasks=0"]
    subprocess.run(words, cwd=ROOT, check=True)
    return folder / "run"


def _curve(run: Path) -> list[tuple[int, float]]:
    """Return step and accuracy of each evaluation on ``dev``."""
    rows = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [(row["step"], row["held_out.accuracy"]) for row in rows if "held_out.accuracy" in row]


def _measured(model: str, tasks: int) -> dict[str, float]:
    """Return the accuracy on each kind of tasks, sampled and greedy."""
    loaded = load_model(model)

    async def measure() -> dict[str, float]:
        found = {}
        async with EmbeddedEngine.sharing(loaded.module, loaded.tokenizer) as engine:
            for name, args in OTHERS.items():
                for how, temperature in (("sampled", 1.0), ("greedy", 0.0)):
                    sampling = Sampling(temperature=temperature, max_tokens=4, seed=0)
                    environment = Counting(held_out=tasks, **args)
                    measured = await evaluate(
                        environment, engine, split="test", tasks=tasks, sampling=sampling
                    )
                    assert measured.accuracy is not None
                    found[f"{name}, {how}"] = measured.accuracy.value
        return found

    return asyncio.run(measure())


if __name__ == "__main__":
    main(study)
