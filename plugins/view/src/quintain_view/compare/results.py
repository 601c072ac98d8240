"""What the runs of a comparison reached: curves, means and differences over seeds, fits."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, get_args

import numpy as np

from quintain.console import TRAINING
from quintain.errors import UsageError
from quintain.store import RunFolder, plain_data, write_atomically

from .comparison import RecipeComparison
from .fits import NoFit, RepeatedSampling, Sigmoid, repeated_sampling, sigmoid
from .intervals import Interval, t_interval

Axis = Literal["samples", "tokens", "seconds"]
AXES: tuple[Axis, ...] = get_args(Axis)
FORMAT = 1
GRID = 60
"""Points of a mean curve."""


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """What one run has reached so far.

    Attributes:
        before, after: accuracy on the tasks of ``[evaluation.test]``, else on those of
            ``[evaluation]``; ``None`` where neither was measured.
        used: samples, tokens and seconds of training, and steps.
        rewards: for each step samples, tokens and seconds used so far, and mean outcome.
        accuracies: for each evaluation during training samples, tokens and seconds used so far, and
            held-out accuracy.
        coverage: pass@k after training, by k.
    """

    name: str
    seed: int
    folder: Path
    finished: bool
    failure: str = ""
    before: float | None = None
    after: float | None = None
    used: Mapping[str, float] = field(default_factory=dict)
    rewards: Sequence[Mapping[str, float]] = ()
    accuracies: Sequence[Mapping[str, float]] = ()
    coverage: Mapping[int, float] = field(default_factory=dict)

    @classmethod
    def read(cls, name: str, seed: int, path: Path, failure: str = "") -> RunResult:
        """Read the folder of a run, whether it has finished or not."""
        folder = RunFolder(path, lock=False)
        used: dict[str, float] = dict.fromkeys(("steps", *AXES), 0.0)
        rewards, accuracies = [], []
        for record in folder.metrics():
            # step 0 is before training; its rollouts, where there are any, count
            used["steps"] += record["step"] > 0
            used["samples"] += float(record.get("samples") or 0.0)
            used["tokens"] += float(record.get("tokens") or 0.0)
            used["seconds"] += math.fsum(
                record.get(f"seconds.{phase}") or 0.0 for phase in TRAINING
            )
            place: dict[str, float] = {axis: used[axis] for axis in AXES}
            if record["step"] > 0 and record.get("reward.outcome.mean") is not None:
                rewards.append({**place, "reward": record["reward.outcome.mean"]})
            if record.get("held_out.accuracy") is not None:
                accuracies.append({**place, "accuracy": record["held_out.accuracy"]})
        summary = folder.summary()
        final = (summary or {}).get("held_out", {})
        before, after = (final.get(when, {}).get("accuracy") for when in ("before", "after"))
        if summary and before is None and after is None and accuracies:
            before, after = accuracies[0]["accuracy"], accuracies[-1]["accuracy"]
        measured = final.get("after", {})
        coverage = {
            int(k[5:]): float(v)
            for k, v in measured.items()
            if k.startswith("pass@") and v is not None
        }
        if coverage and measured.get("accuracy") is not None:
            coverage = {1: float(measured["accuracy"]), **coverage}  # pass@1 is the accuracy
        return cls(
            name=name,
            seed=seed,
            folder=path,
            finished=summary is not None,
            failure=failure,
            before=before,
            after=after,
            used={**used, "steps": int(used["steps"])},
            rewards=rewards,
            accuracies=accuracies,
            coverage=coverage,
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain data, without the curves."""
        names = ("seed", "finished", "failure", "before", "after")
        return {
            "folder": self.folder.name,
            **{name: getattr(self, name) for name in names},
            **self.used,
        }


@dataclass(frozen=True, kw_only=True)
class MeanCurve:
    """A mean over seeds with its 95 % t interval along an axis; no interval from one seed."""

    x: Sequence[float]
    mean: Sequence[float]
    low: Sequence[float] | None
    high: Sequence[float] | None


@dataclass(frozen=True, kw_only=True)
class RecipeResult:
    """What one recipe reached over its seeds; *difference* is to the first recipe, paired by seed.

    Attributes:
        counted: the runs that results are of: those that have finished; all while none has, so that
            there is something to see.
        used: mean over the counted runs.
    """

    name: str
    algorithm: str
    runs: Sequence[RunResult]
    before: Interval | None
    after: Interval | None
    gain: Interval | None
    difference: Interval | None

    @property
    def counted(self) -> Sequence[RunResult]:
        return [r for r in self.runs if r.finished] or self.runs

    @property
    def used(self) -> dict[str, float]:
        return (
            {k: fmean(r.used[k] for r in self.counted) for k in ("steps", *AXES)}
            if self.runs
            else {}
        )

    @cached_property
    def compute_fit(self) -> Sigmoid | NoFit:
        """ScaleRL's curve of held-out accuracy against sampled tokens, over the counted runs."""
        points = [
            (point["tokens"], point["accuracy"]) for run in self.counted for point in run.accuracies
        ]
        if not points:
            return NoFit(
                law="sigmoid", reason="no held-out accuracy during training; see evaluation.every"
            )
        return sigmoid(*zip(*points, strict=True))

    @cached_property
    def attempts_fit(self) -> RepeatedSampling | NoFit:
        """Coverage against attempts after training, mean over seeds."""
        curves = [r.coverage for r in self.runs if r.coverage]
        if not curves:
            return NoFit(
                law="repeated_sampling", reason="no pass@k was measured; see evaluation.samples"
            )
        shared = set(curves[0]).intersection(*curves)
        return repeated_sampling({k: math.fsum(c[k] for c in curves) / len(curves) for k in shared})

    def curve(
        self, axis: Axis, value: Literal["reward", "accuracy"] = "reward"
    ) -> MeanCurve | None:
        """Compute the mean of *value* over the counted runs, where along *axis* all of them have
        been; else ``None``.

        Runs are interpolated between their steps; nothing is smoothed. Intervals of values that lie
        between 0 and 1, or -1 and 1, end there.
        """
        curves = [r.rewards if value == "reward" else r.accuracies for r in self.counted]
        curves = [c for c in curves if c]
        if not curves:
            return None
        first, last = max(c[0][axis] for c in curves), min(c[-1][axis] for c in curves)
        if first > last:
            return None
        x = np.linspace(first, last, GRID) if last > first else np.array([first])
        lines = [np.interp(x, [p[axis] for p in c], [p[value] for p in c]).tolist() for c in curves]
        intervals = [t_interval(values) for values in zip(*lines, strict=True)]
        values = [v for line in lines for v in line]
        # A t interval over few seeds is wider than any accuracy, or any reward of a bounded kind,
        # can be.
        least = 0.0 if value == "accuracy" or min(values) >= 0 else -1.0
        if -1 <= min(values) <= max(values) <= 1:
            intervals = [interval.within(least, 1.0) for interval in intervals]
        several = len(lines) > 1
        return MeanCurve(
            x=x.tolist(),
            mean=[interval.value for interval in intervals],
            low=[interval.low for interval in intervals if interval.low is not None]
            if several
            else None,
            high=[interval.high for interval in intervals if interval.high is not None]
            if several
            else None,
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        intervals = {
            name: getattr(self, name) for name in ("before", "after", "gain", "difference")
        }
        return {
            "algorithm": self.algorithm,
            **{
                name: interval.to_json() if interval else None
                for name, interval in intervals.items()
            },
            "used": self.used,
            "runs": [r.to_json() for r in self.runs],
            "fits": {
                "compute": self.compute_fit.to_json(),
                "attempts": self.attempts_fit.to_json(),
            },
        }


def recipe_results(
    comparison: RecipeComparison, failures: Mapping[str, str] | None = None
) -> list[RecipeResult]:
    """Read the runs of each recipe, finished or not, and compare them with those of the first
    recipe.
    """
    failures = failures or {}
    results: list[RecipeResult] = []
    for name, recipe in comparison.recipes.items():
        paths = {seed: comparison.path(name, seed) for seed in comparison.seeds}
        runs = [
            RunResult.read(name, seed, path, failures.get(path.name, ""))
            for seed, path in paths.items()
            if path.is_dir() or path.name in failures
        ]
        results.append(
            RecipeResult(
                name=name,
                algorithm=recipe.algorithm.label,
                runs=runs,
                before=_accuracy([r.before for r in runs]),
                after=_accuracy([r.after for r in runs]),
                gain=_paired(runs, {r.seed: r.before for r in runs}),
                difference=_paired(runs, {r.seed: r.after for r in results[0].runs})
                if results
                else None,
            )
        )
    return results


def _accuracy(values: Sequence[float | None]) -> Interval | None:
    present = [v for v in values if v is not None]
    return t_interval(present).within(0.0, 1.0) if present else None


def _paired(runs: Sequence[RunResult], others: Mapping[int, float | None]) -> Interval | None:
    """Return the mean over common seeds of the accuracy after training minus that of *others* by
    seed.
    """
    differences = [
        run.after - other
        for run in runs
        if run.after is not None and (other := others.get(run.seed)) is not None
    ]
    return t_interval(differences).within(-1.0, 1.0) if differences else None


def earlier_failures(comparison: RecipeComparison) -> dict[str, str]:
    """Read from ``compare.json`` why runs failed, by name of their folder; nothing where there is
    no such file.

    Raises:
        UsageError: the file is something else.
    """
    path = comparison.folder / "compare.json"
    if not path.is_file():
        return {}
    try:
        recipes = json.loads(path.read_text(encoding="utf-8"))["recipes"]
        failures = {
            run["folder"]: run["failure"] for result in recipes.values() for run in result["runs"]
        }
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise UsageError(
            f"{path} is no result of `quintain compare` ({e}); remove it, or choose another "
            f"--folder"
        ) from e
    names = [comparison.path(*run).name for run in comparison.runs()]
    return {name: failures[name] for name in names if failures.get(name)}


def save(comparison: RecipeComparison, results: Sequence[RecipeResult]) -> dict[str, Any]:
    """Write ``compare.json`` into the folder and return its content.

    Raises:
        StorageError: it cannot be written.
    """
    content: dict[str, Any] = {
        "format": FORMAT,
        "folder": str(comparison.folder),
        "seeds": list(comparison.seeds),
        "finished": all(
            len(s.runs) == len(comparison.seeds) and all(r.finished for r in s.runs)
            for s in results
        ),
        "recipes": {s.name: s.to_json() for s in results},
        "curves": {
            s.name: {axis: (curve := s.curve(axis)) and vars(curve) for axis in AXES}
            for s in results
        },
    }
    content = plain_data(content)
    text = json.dumps(content, indent=1, allow_nan=False) + "\n"
    write_atomically(comparison.folder / "compare.json", text.encode())
    return content
