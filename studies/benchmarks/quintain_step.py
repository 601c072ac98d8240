"""Quintain's side of `step`: the real loop of `quintain train`, one step per question.

The run folder is written as always (metrics, and every rollout in Parquet); checkpoints and
held-out tasks are off, as on the other side.
"""

from __future__ import annotations

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

from .common import Door, step_arguments
from .shapes import lengths
from .task import ForcedEngine


class Finished(Exception):
    """The other end hung up."""


class Gate(Screen):
    """Waits for a question before each step, and answers when it is recorded."""

    def __init__(self, door: Door, samples: int, low: int, high: int) -> None:
        super().__init__()
        self.door, self.samples, self.low, self.high = door, samples, low, high
        self.began = self.burnt = 0.0

    def start(self, steps: int, done: int = 0, split: str = "held-out", **options: Any) -> None:
        super().start(steps, done, split, **options)
        self.await_question(done)

    def step(self, step: int, metrics: Mapping[str, Any], **options: Any) -> None:
        seconds, cpu = time.perf_counter() - self.began, time.process_time() - self.burnt
        phases = {key: value for key, value in metrics.items() if key.startswith("seconds")}
        tokens = metrics["tokens"]
        sampling = phases.get("seconds.rollouts", 0.0)
        self.door.say(seconds=seconds, cpu=cpu, sampling=sampling, tokens=tokens, phases=phases)
        self.await_question(step)

    def await_question(self, step: int) -> None:
        if self.door.hear() is None:
            raise Finished
        if self.low < self.high:
            ForcedEngine.lengths = iter(lengths(step, self.samples, self.low, self.high))
        self.began, self.burnt = time.perf_counter(), time.process_time()


RECIPE = """
[run]
steps = 100000
[model]
name = "{model}"
dtype = "{dtype}"
device = "{device}"
[engine]
use = "studies.benchmarks.task:ForcedEngine"
args = {{ {engine_args} }}
[[environments]]
use = "studies.benchmarks.task:Vowels"
args = {{ folder = "{model}" }}
[algorithm]
use = "dr_grpo"
[sampling]
max_tokens = {high}
[batch]
prompts = {groups}
group_size = {group_size}
[learner]
lr = {lr}
precision = "{precision}"
{learner_extra}
[evaluation]
every = 0
[evaluation.test]
tasks = 0
[checkpoint]
every = 0
"""


def main() -> None:
    parser = step_arguments()
    parser.add_argument("--slots", type=int, help="of the engine (default: its own)")
    parser.add_argument(
        "--budget", type=int, help="tokens of a micro-batch (default: the learner's own)"
    )
    args = parser.parse_args()
    door = Door()
    torch.set_num_threads(args.threads)
    half = args.precision == "bf16"
    text = RECIPE.format(
        **vars(args) | {"precision": "bf16" if half else "float32"},
        dtype="bfloat16" if half else "float32",
        engine_args=f"slots = {args.slots}" if args.slots else "",
        learner_extra=f"token_budget = {args.budget}" if args.budget else "",
    )
    door.say(
        side="Quintain",
        torch=torch.__version__,
        threads=torch.get_num_threads(),
        samples=args.groups * args.group_size,
    )
    gate = Gate(door, args.groups * args.group_size, args.low, args.high)
    with tempfile.TemporaryDirectory(prefix="quintain-benchmark-") as where:
        recipe = Recipe.parse(text)
        with RunFolder.create(Path(where) / "run", recipe.to_toml()) as folder:
            try:
                run_training(recipe, folder, gate)
            except Finished:
                return


if __name__ == "__main__":
    main()
