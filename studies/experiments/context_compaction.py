"""Is it worth training the summaries that an agent goes on from? Learned compaction against a frozen
summariser and against truncation.

Runs of the bundled recipe `notes`. The three arms of a seed begin with the same weights, those after
the warm start, and have the same tasks. The frozen summariser is that model, so that the arms differ
in whether the notes train, and in whether there are any. A finished run is kept in
``runs/context_compaction``, so that an interrupted study continues.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quintain.console import Screen
from quintain.recipe import ModelRequest, ModelSource, Recipe
from quintain.run import run_training
from quintain.store import RunFolder

from .common import ROOT, Line, Panel, Report, differences, main

STEPS, EVERY, TASKS = 16, 8, 100
DAYS, WINDOW, DIGITS = 6, 2, 10
ARMS: dict[str, tuple[str, ...]] = {
    "learned compaction": (),
    "frozen summariser": (
        'environments.0.args.mode="summariser"',
        'services.summariser={use="quintain-env-games/frozen", args={model="START"}}',
    ),
    "truncation": ('environments.0.args.mode="truncate"',),
}
LEARNED, FROZEN, TRUNCATED = ARMS
TINY = "{hidden=32, layers=1, heads=2, kv_heads=1, head_dim=16, intermediate=32}"
QUICK_START = f"model.start.args={{max_steps=1, check_every=1, batch=2, tasks=2, model={TINY}}}"
QUICK = (
    "run.steps=1",
    "sampling.max_tokens=4",
    "batch={prompts=2, group_size=2}",
    "evaluation={every=1, tasks=2, test={tasks=2}}",
)


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One run: sampled success on `dev` by step, on `test` before and after, and seconds."""

    steps: list[int]
    held_out: list[float]
    test: tuple[float, float]
    reward: list[float]
    seconds: float


def study(seeds: Sequence[int], quick: bool) -> Report:
    """Held-out success by step for each arm."""
    with tempfile.TemporaryDirectory() as temporary:
        store = Path(temporary) if quick else ROOT / "runs" / "context_compaction"
        starts: list[Path] = []
        runs: dict[str, list[Curve]] = {arm: [] for arm in ARMS}
        for seed in seeds:
            starts.append(warm_started(seed, quick))
            for arm, curves in runs.items():
                curves.append(trained(store, arm, seed, starts[-1], quick))
    held_out = lines_of(runs, lambda curve: (curve.steps, curve.held_out))
    test = lines_of(runs, lambda curve: ([0, curve.steps[-1]], list(curve.test)))
    paid = lines_of(runs, lambda curve: (range(1, len(curve.reward) + 1), curve.reward))
    learned, frozen, truncated = test
    return Report(
        panels=[
            Panel(
                title="success on dev",
                xlabel="step",
                lines=held_out,
                marks={"most that truncation can reach": truncation_ceiling()},
            ),
            Panel(title="success on test", xlabel="step", lines=test),
            Panel(title="mean reward of a step", xlabel="step", lines=paid),
        ],
        contrasts={
            f"{LEARNED} less {FROZEN}, test after training": differences(learned, frozen),
            f"{LEARNED} less {TRUNCATED}, test after training": differences(learned, truncated),
            **{f"{line.label}, test, after less before": gains(line) for line in test},
        },
        settings={
            "steps": learned.x[-1],
            "held_out_tasks": TASKS,
            "temperature": Recipe.load("notes").sampling.temperature,
            "arms": {arm: list(changes) for arm, changes in ARMS.items()},
            "warm_start_greedy_dev": [round(success_of(start), 3) for start in starts],
        },
        notes=[
            f"{arm}, seed {seed}: test {curve.test[0]:.1%} before, {curve.test[1]:.1%} after, "
            f"{curve.seconds:.0f} s"
            for arm, curves in runs.items()
            for seed, curve in zip(seeds, curves, strict=True)
        ],
    )


def lines_of(runs: Mapping[str, Sequence[Curve]], columns: Any) -> list[Line]:
    """Return a line for each arm, a row for each seed; *columns* gives x and values of a curve."""
    return [
        Line(label=arm, x=columns(curves[0])[0], values=[columns(curve)[1] for curve in curves])
        for arm, curves in runs.items()
    ]


def gains(line: Line) -> list[float]:
    """After training less before, seed by seed."""
    return [after - before for before, after in line.values]


def truncation_ceiling() -> float:
    """Return the success of a policy that knows what its context holds and guesses the rest: two of
    `DAYS` days are asked for, `WINDOW` of them are seen, and a code is one of `DIGITS`.
    """
    total = 0.0
    pairs = [(a, b) for a in range(DAYS) for b in range(a)]
    for pair in pairs:
        total += DIGITS ** -float(sum(day < DAYS - WINDOW for day in pair))
    return total / len(pairs)


def success_of(start: Path) -> float:
    """Return the greedy success on `dev` of a warm start."""
    report = json.loads((start / "quintain.json").read_text())["warm_start"]
    return float(report["accuracy"])


def warm_started(seed: int, quick: bool) -> Path:
    """Return the folder of the model that all arms of *seed* begin with."""
    changes = [*([QUICK_START] if quick else []), f"model.start.args.seed={seed}"]
    recipe = Recipe.load("notes", changes)
    source: Any = ModelSource.of(recipe)
    folder: Path = source.train_once(ModelRequest.of(recipe, Screen(quiet=True)))
    return folder


def trained(store: Path, arm: str, seed: int, start: Path, quick: bool) -> Curve:
    """Run one arm from *start*; a run that *store* has is not repeated."""
    place = store / f"{arm.replace(' ', '-')}-{seed}"
    if not (place / "summary.json").exists():
        shutil.rmtree(place, ignore_errors=True)
        options = [
            f"model.name={json.dumps(str(start))}",
            f"run.seed={seed}",
            f"run.steps={STEPS}",
            f"evaluation.every={EVERY}",
            f"evaluation.tasks={TASKS}",
            f"evaluation.test={{tasks={TASKS}, other_decoding=false}}",
            "checkpoint.every=1000",
            "stop={minutes=600}",
            *(change.replace("START", str(start)) for change in ARMS[arm]),
            *(QUICK if quick else ()),
        ]
        recipe = Recipe.load("notes", options)
        with RunFolder.create(place, recipe.to_toml()) as run:
            run_training(recipe, run, Screen(quiet=True))
    records = [json.loads(row) for row in (place / "metrics.jsonl").read_text().splitlines()]
    measured = [record for record in records if "held_out.accuracy" in record]
    summary = json.loads((place / "summary.json").read_text())
    before, after = (summary["held_out"][when]["accuracy"] for when in ("before", "after"))
    return Curve(
        steps=[record["step"] for record in measured],
        held_out=[record["held_out.accuracy"] for record in measured],
        test=(before, after),
        reward=[record["reward.mean"] for record in records if "reward.mean" in record],
        seconds=summary["seconds"]["total"],
    )


if __name__ == "__main__":
    main(study)
