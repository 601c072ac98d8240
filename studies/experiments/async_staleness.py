"""What does a staleness of 0, 1, 2, 4 or 8 versions cost the quickstart, and which correction gives
it back?

Whole runs of the recipe `quickstart`: `algorithm.args.plan.staleness` holds the sampler exactly
that many versions behind, and runs with real schedules stand beside them. A finished run is kept in
``runs/async_staleness``, so that an interrupted study continues; delete the folder to run
everything again.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from quintain.console import Screen
from quintain.recipe import Recipe
from quintain.run import run_training
from quintain.store import RunFolder

from .common import ROOT, Line, Panel, Report, differences, main

STALENESS = (0, 1, 2, 4, 8)
STEPS, EVERY, TASKS, RATE, GOAL = 32, 2, 200, 6e-5, 0.9
LEAST_SEEDS = 2
"""Of a full study, instead of five: each seed trains many models."""
CORRECTIONS: dict[str, tuple[str, ...]] = {
    "no correction": ('algorithm.args.ratio_to="prox"',),  # under a staleness the default is mu
    "decoupled, TIS": ('algorithm.args.correction="tis"',),
    "PPO clip to mu": ('algorithm.args.ratio_to="mu"',),
}
SCHEDULES = ("one_step_off", "areal")
TINY = "{hidden=32, layers=1, heads=2, kv_heads=1, head_dim=16, intermediate=32}"


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One run: held-out success on `dev` by step and on `test` after training, and mean
    staleness.
    """

    steps: list[int]
    held_out: list[float]
    test: dict[str, Any]
    staleness: float


def study(seeds: Sequence[int], quick: bool) -> Report:
    """Held-out success by step for each staleness and correction, and with real schedules for the
    first seed.
    """
    lags = STALENESS[:2] if quick else STALENESS
    corrections = list(CORRECTIONS)[:1] if quick else list(CORRECTIONS)
    schedules = SCHEDULES[:1] if quick else SCHEDULES
    with tempfile.TemporaryDirectory() as temporary:
        store = Path(temporary) if quick else ROOT / "runs" / "async_staleness"
        simulated = {
            (c, lag): [trained(store, c, lag, seed, quick) for seed in seeds]
            for c in corrections
            for lag in lags
        }
        pairs = [(c, schedule) for c in corrections[1:] or corrections for schedule in schedules]
        real = {(c, s): [trained(store, c, s, seed, quick) for seed in seeds[:1]] for c, s in pairs}
    return Report(
        panels=panels_of(simulated, real, corrections, lags, seeds),
        contrasts=contrasts_of(mean_success(simulated, corrections, lags), lags),
        settings={
            "steps": simulated[corrections[0], 0][0].steps[-1],
            "lr": RATE,
            "held_out_tasks": TASKS,
            "corrections": CORRECTIONS,
        },
        notes=notes_of({**simulated, **real}, seeds),
    )


def panels_of(
    simulated: Mapping[tuple[str, int], Sequence[Curve]],
    real: Mapping[tuple[str, str], Sequence[Curve]],
    corrections: Sequence[str],
    lags: Sequence[int],
    seeds: Sequence[int],
) -> list[Panel]:
    """Success by step for each correction and seed and for the real schedules; the step that
    reaches `GOAL`.
    """
    steps = simulated[corrections[0], 0][0].steps

    def line(label: str, curve: Curve) -> Line:
        return Line(label=label, x=steps, values=[curve.held_out])

    # A panel per seed: an interval over few runs, of which some collapse, would hide all curves.
    numbered = [(c, i, seed) for c in corrections for i, seed in enumerate(seeds)]
    return [
        *(
            Panel(
                title=f"dev, {c}, seed {seed}",
                xlabel="step",
                lines=[line(f"staleness {lag}", simulated[c, lag][i]) for lag in lags],
            )
            for c, i, seed in numbered
        ),
        Panel(
            title=f"dev, real schedules, seed {seeds[0]}",
            xlabel="step",
            lines=[line(f"{s}, {c}", curve) for (c, s), (curve,) in real.items()],
        ),
        Panel(
            title=f"first measured step with {GOAL:.0%} on dev ({steps[-1]} if never)",
            xlabel="staleness (versions)",
            lines=[
                Line(
                    label=f"{c}, seed {seed}",
                    x=lags,
                    values=[[first(simulated[c, lag][i], GOAL) for lag in lags]],
                )
                for c, i, seed in numbered
            ],
        ),
    ]


def mean_success(
    simulated: Mapping[tuple[str, int], Sequence[Curve]],
    corrections: Sequence[str],
    lags: Sequence[int],
) -> list[Line]:
    """Mean held-out success over a run by staleness, a line per correction with a row per seed."""
    lines = []
    for c in corrections:
        runs = zip(*(simulated[c, lag] for lag in lags), strict=True)  # of one seed, by staleness
        lines.append(
            Line(label=c, x=lags, values=[[fmean(curve.held_out) for curve in run] for run in runs])
        )
    return lines


def contrasts_of(means: Sequence[Line], lags: Sequence[int]) -> dict[str, list[float]]:
    """Each staleness less none, and each correction less no correction, seed by seed."""
    stale = [(column, lag) for column, lag in enumerate(lags) if lag]
    contrasts = {
        f"{of.label}, staleness {lag} less staleness 0: mean over the run": [
            row[column] - row[0] for row in of.values
        ]
        for of in means
        for column, lag in stale
    }
    return contrasts | {
        f"staleness {lag}, {of.label} less {means[0].label}: mean over the run": differences(
            of, means[0], column
        )
        for of in means[1:]
        for column, lag in stale
    }


def notes_of(
    runs: Mapping[tuple[str, int | str], Sequence[Curve]], seeds: Sequence[int]
) -> list[str]:
    """Success on `test` and mean staleness of each run; *runs* by correction and staleness or
    schedule.
    """
    return [
        f"{correction}, {f'staleness {s}' if isinstance(s, int) else s}, seed {seed}: "
        f"test {curve.test['accuracy']:.1%} ({curve.test['low']:.1%} to {curve.test['high']:.1%}), "
        f"mean staleness {curve.staleness:.2f}"
        for (correction, s), curves in runs.items()
        # real schedules have the first seed alone
        for seed, curve in zip(seeds, curves, strict=False)
    ]


def trained(store: Path, correction: str, schedule: int | str, seed: int, quick: bool) -> Curve:
    """Run the recipe with a simulated staleness or the schedule of a name; a run that *store* has
    is not repeated.
    """
    # Without staleness prox is mu and every correction is 1: one run serves all.
    if schedule == 0:
        correction = next(iter(CORRECTIONS))
    place = store / re.sub("[^a-z0-9_]+", "-", f"{correction} {schedule} seed {seed}".lower())
    if not (place / "summary.json").exists():
        shutil.rmtree(place, ignore_errors=True)
        options = [
            f"run.seed={seed}",
            f"run.steps={STEPS}",
            f"learner.lr={RATE}",
            "stop={minutes=600}",
        ]
        options += [
            f"evaluation={{every={EVERY}, tasks={TASKS}}}",
            "checkpoint.every=1000",
            'rollouts.keep="none"',
        ]
        options += [f"model.start.args.seed={seed}", "model.start.args.general=false"]
        options += CORRECTIONS[correction]
        options += [
            f"algorithm.args.plan.staleness={schedule}"
            if type(schedule) is int
            else f"schedule.use={schedule!r}"
        ]
        if quick:
            options += [
                f"model.start.args={{max_steps=1, check_every=1, batch=2, tasks=2, model={TINY}}}"
            ]
            options += ["run.steps=1", "sampling.max_tokens=4", "batch={prompts=2, group_size=2}"]
            options += ["evaluation={every=1, tasks=2, test={tasks=2}}"]
        recipe = Recipe.load("quickstart", options)
        with RunFolder.create(place, recipe.to_toml()) as run:
            run_training(recipe, run, Screen(quiet=True))
    records = [json.loads(row) for row in (place / "metrics.jsonl").read_text().splitlines()]
    measured = [record for record in records if "held_out.accuracy" in record]
    stale = [record["staleness.mean"] for record in records if "staleness.mean" in record]
    summary = json.loads((place / "summary.json").read_text())
    return Curve(
        steps=[record["step"] for record in measured],
        held_out=[record["held_out.accuracy"] for record in measured],
        test=summary["held_out"]["after"],
        staleness=sum(stale) / max(len(stale), 1),
    )


def first(curve: Curve, goal: float) -> int:
    """Return the first measured step whose held-out success is at least *goal*; the last step
    without one.
    """
    reached = (
        step for step, success in zip(curve.steps, curve.held_out, strict=True) if success >= goal
    )
    return next(reached, curve.steps[-1])


if __name__ == "__main__":
    main(study)
