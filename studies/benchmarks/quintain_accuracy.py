"""Quintain's side of `time_to_accuracy`: `quintain train`'s own loop, one learning rate,
one seed.

The clock stands still while held-out tasks are answered, as on the other side; all else that a run
does, records included, counts.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from quintain.console.screen import Screen
from quintain.recipe.tables import Recipe
from quintain.run.build import run_training
from quintain.store.run_folder import RunFolder

from .common import Door, trial_arguments


class Watch(Screen):
    """Notes when steps end, and how long held-out tasks took."""

    def __init__(self) -> None:
        super().__init__()
        self.curve: list[dict[str, float]] = []
        self.spent = 0.0
        self.began = self.paused = self.resumed = 0.0
        self.measuring = False

    def start(self, steps: int, done: int = 0, split: str = "held-out", **options: Any) -> None:
        super().start(steps, done, split, **options)
        self.began = time.perf_counter()

    def phase(self, name: str, total: int | None = None) -> None:
        self.measuring = name.startswith("held-out")
        if self.measuring:
            self.paused = self.resumed = time.perf_counter()
        elif name.startswith("step 1:"):
            self.began = self.paused = self.resumed = time.perf_counter()

    def advance(self, piece: object = None) -> None:
        if self.measuring:
            self.resumed = time.perf_counter()

    def step(self, step: int, metrics: Mapping[str, Any], **options: Any) -> None:
        super().step(step, metrics, **options)
        now = time.perf_counter()
        self.spent += now - self.began - (self.resumed - self.paused)
        self.began, self.paused, self.resumed = now, 0.0, 0.0
        if metrics.get("held_out.accuracy") is not None:
            self.curve.append(
                {"step": step, "seconds": self.spent, "accuracy": metrics["held_out.accuracy"]}
            )


def recipe(args: argparse.Namespace) -> Recipe:
    """Return what the other side is told, as a recipe."""
    tables: dict[str, Any] = {
        "run": {"steps": args.steps, "seed": args.seed},
        "model": {"name": args.model, "device": args.device},
        "environments": [{"use": args.environment, "args": args.environment_args}],
        "algorithm": {"use": "dr_grpo"},
        "sampling": {"max_tokens": args.max_tokens},
        "batch": {"prompts": args.groups, "group_size": args.group_size},
        "learner": {"lr": args.lr},
        "evaluation": {"every": args.every, "tasks": args.tasks, "test": {"tasks": 0}},
        "checkpoint": {"every": 0},
        "stop": {"accuracy": args.target},
    }
    return Recipe.of(tables)


def main() -> None:
    args = trial_arguments().parse_args()
    door = Door()
    torch.set_num_threads(args.threads)
    watch = Watch()
    with tempfile.TemporaryDirectory(prefix="quintain-benchmark-") as where:
        checked = recipe(args)
        with RunFolder.create(Path(where) / "run", checked.to_toml()) as folder:
            run_training(checked, folder, watch)
    door.say(curve=watch.curve)


if __name__ == "__main__":
    main()
