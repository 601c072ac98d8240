"""What the runs of a comparison came to: curves, means and differences over seeds, fits."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, get_args

from quintain.errors import UsageError
from quintain.training import TRAINING, RunFolder, plain, write_atomically

from .comparison import Comparison
from .fits import NoFit, RepeatedSampling, Sigmoid, repeated_sampling, sigmoid
from .intervals import Interval, t_interval

Axis = Literal["samples", "tokens", "seconds"]
AXES: tuple[Axis, ...] = get_args(Axis)
FORMAT = 1
GRID = 60


@dataclass(frozen=True, kw_only=True)
class Result:
    """One run as far as it came.

    Attributes:
        before, after: accuracy on the tasks of ``[evaluation.test]``, else on those of ``[evaluation]``; ``None`` where
            neither was measured.
        used: samples, tokens and seconds of training, and steps.
        points: of each step: samples, tokens and seconds used so far, and mean verdict.
        measured: held-out accuracy during training: samples, tokens and seconds used so far, and accuracy.
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
    points: Sequence[Mapping[str, float]] = ()
    measured: Sequence[Mapping[str, float]] = ()
    coverage: Mapping[int, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain data, without the curves."""
        return {
            "seed": self.seed,
            "folder": self.folder.name,
            "finished": self.finished,
            "failure": self.failure,
            "before": self.before,
            "after": self.after,
            **self.used,
        }


def read(comparison: Comparison, failures: Mapping[str, str]) -> dict[str, list[Result]]:
    """The runs of each recipe, finished or not, in the order of the seeds."""
    return {
        name: [_result(name, seed, path, failures.get(path.name, ""))
               for seed in comparison.seeds
               if (path := comparison.path(name, seed)).is_dir() or path.name in failures]
        for name in comparison.recipes
    }  # fmt: skip


def _result(name: str, seed: int, path: Path, failure: str) -> Result:
    folder = RunFolder(path, lock=False)
    records, summary = folder.metrics(), folder.summary()
    steps = [m for m in records if m["step"] > 0]
    before = [m for m in records if m["step"] == 0]  # probing, where the plan asks for it
    spent: dict[str, list[float]] = {
        axis: list(accumulate((_spent(m, axis) for m in steps), initial=math.fsum(_spent(m, axis) for m in before)))
        for axis in AXES
    }
    at = {m["step"]: i for i, m in enumerate(steps, 1)}
    curve = [
        {**{axis: spent[axis][i] for axis in AXES}, "reward": m["reward.verdict.mean"]}
        for i, m in enumerate(steps, 1)
        if m.get("reward.verdict.mean") is not None
    ]
    measured = [
        {**{axis: spent[axis][at.get(m["step"], 0)] for axis in AXES}, "accuracy": m["held_out.accuracy"]}
        for m in records
        if m.get("held_out.accuracy") is not None
    ]
    ends = (summary or {}).get("held_out", {})
    start, end = (ends.get(when, {}).get("accuracy") for when in ("before", "after"))
    if summary and start is None and end is None and measured:
        start, end = measured[0]["accuracy"], measured[-1]["accuracy"]
    return Result(
        name=name,
        seed=seed,
        folder=path,
        finished=summary is not None,
        failure=failure,
        before=start,
        after=end,
        used={"steps": len(steps), **{axis: spent[axis][-1] for axis in AXES}},
        points=curve,
        measured=measured,
        coverage=_coverage(ends.get("after", {})),
    )


def _coverage(measured: Mapping[str, Any]) -> dict[int, float]:
    """pass@k by k, where there were several samples a task; pass@1 is the accuracy."""
    found = {int(k[5:]): float(v) for k, v in measured.items() if k.startswith("pass@") and v is not None}
    return {1: float(measured["accuracy"]), **found} if found and measured.get("accuracy") is not None else found


def _spent(record: Mapping[str, Any], axis: Axis) -> float:
    if axis == "seconds":
        return math.fsum(record.get(f"seconds.{phase}") or 0.0 for phase in TRAINING)
    return float(record.get(axis) or 0.0)


@dataclass(frozen=True, kw_only=True)
class Band:
    """A mean over seeds with its 95 % t interval along an axis; no interval from one seed."""

    x: Sequence[float]
    mean: Sequence[float]
    low: Sequence[float] | None
    high: Sequence[float] | None


@dataclass(frozen=True, kw_only=True)
class Standing:
    """One recipe over its seeds. Intervals are over seeds; *difference* is to the first recipe, seed by seed.

    *used* is the mean over the seeds that have finished; while none has, over those that have begun.
    """

    name: str
    algorithm: str
    runs: Sequence[Result]
    before: Interval | None
    after: Interval | None
    gain: Interval | None
    difference: Interval | None
    used: Mapping[str, float]

    @cached_property
    def compute(self) -> Sigmoid | NoFit:
        """ScaleRL's curve of held-out accuracy against sampled tokens, over the seeds that `band` covers."""
        points = [(m["tokens"], m["accuracy"]) for r in _counted(self.runs) for m in r.measured]
        if not points:
            return NoFit(law="sigmoid", reason="no held-out accuracy during training; see evaluation.every")
        return sigmoid([c for c, _ in points], [r for _, r in points])

    @cached_property
    def attempts(self) -> RepeatedSampling | NoFit:
        """Coverage against attempts after training, mean over seeds."""
        curves = [r.coverage for r in self.runs if r.coverage]
        if not curves:
            return NoFit(law="repeated_sampling", reason="no pass@k was measured; see evaluation.samples")
        shared = set(curves[0]).intersection(*curves)
        return repeated_sampling({k: math.fsum(c[k] for c in curves) / len(curves) for k in shared})

    def band(self, axis: Axis, value: Literal["reward", "accuracy"] = "reward") -> Band | None:
        """*value* along *axis*, where every seed has been; ``None`` where that is nowhere.

        Seeds are those that have finished; while none has, those that have begun. Lines are drawn between the steps of
        each seed; nothing is smoothed.
        """
        import numpy as np

        curves = [r.points if value == "reward" else r.measured for r in _counted(self.runs)]
        curves = [c for c in curves if c]
        if not curves:
            return None
        low, high = max(c[0][axis] for c in curves), min(c[-1][axis] for c in curves)
        if low > high:
            return None
        x = np.linspace(low, high, GRID) if high > low else np.array([low])
        lines = [np.interp(x, [p[axis] for p in c], [p[value] for p in c]) for c in curves]
        found = [t_interval([float(line[i]) for line in lines]) for i in range(len(x))]
        if value == "accuracy":
            found = [f.within(0.0, 1.0) for f in found]
        sure = len(lines) > 1
        return Band(
            x=x.tolist(),
            mean=[f.value for f in found],
            low=[f.low for f in found if f.low is not None] if sure else None,
            high=[f.high for f in found if f.high is not None] if sure else None,
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        means = {name: getattr(self, name) for name in ("before", "after", "gain", "difference")}
        return {
            "algorithm": self.algorithm,
            **{name: found.to_json() if found else None for name, found in means.items()},
            "used": dict(self.used),
            "runs": [r.to_json() for r in self.runs],
            "fits": {"compute": self.compute.to_json(), "attempts": self.attempts.to_json()},
        }


def standings(comparison: Comparison, failures: Mapping[str, str] | None = None) -> list[Standing]:
    """What the runs came to, recipe by recipe. Once a run of a recipe has finished, its others count when they have."""
    found = read(comparison, failures or {})
    first = next(iter(found))
    counted = {name: _counted(runs) for name, runs in found.items()}
    return [
        Standing(
            name=name,
            algorithm=comparison.recipes[name].algorithm.use,
            runs=runs,
            before=_accuracy([r.before for r in runs]),
            after=_accuracy([r.after for r in runs]),
            gain=_paired(runs, runs, "before"),
            difference=_paired(runs, found[first], "after") if name != first else None,
            used={k: fmean(r.used[k] for r in counted[name]) for k in ("steps", *AXES)} if runs else {},
        )
        for name, runs in found.items()
    ]


def _counted(runs: Sequence[Result]) -> Sequence[Result]:
    """Those that have finished; all while none has, so that there is something to see."""
    return [r for r in runs if r.finished] or runs


def _accuracy(values: Sequence[float | None]) -> Interval | None:
    found = _mean(values)
    return found and found.within(0.0, 1.0)


def _mean(values: Sequence[float | None]) -> Interval | None:
    known = [v for v in values if v is not None]
    return t_interval(known) if known else None


def _paired(runs: Sequence[Result], others: Sequence[Result], when: Literal["before", "after"]) -> Interval | None:
    """Mean over the common seeds of accuracy after training less what the others have *when*."""
    base = {r.seed: getattr(r, when) for r in others}
    pairs = [(r.after, base.get(r.seed)) for r in runs]
    return _mean([after - other for after, other in pairs if after is not None and other is not None])


def failed(comparison: Comparison) -> dict[str, str]:
    """Why runs failed according to ``compare.json``, by the names of their folders; nothing where there is none."""
    path = comparison.folder / "compare.json"
    if not path.is_file():
        return {}
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        found = {r["folder"]: r["failure"] for s in told["recipes"].values() for r in s["runs"] if r["failure"]}
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise UsageError(
            f"{path} is no result of `quintain compare` ({e}); remove it, or choose another --folder"
        ) from e
    return {name: found[name] for name in (comparison.path(*run).name for run in comparison.runs()) if name in found}


def save(comparison: Comparison, found: Sequence[Standing]) -> dict[str, Any]:
    """Write ``compare.json`` into the folder; what it holds.

    Raises:
        StorageError: it cannot be written.
    """
    told = {
        "format": FORMAT,
        "folder": str(comparison.folder),
        "seeds": list(comparison.seeds),
        "finished": all(len(s.runs) == len(comparison.seeds) and all(r.finished for r in s.runs) for s in found),
        "recipes": {s.name: s.to_json() for s in found},
        "curves": {s.name: {axis: _curve(s.band(axis)) for axis in AXES} for s in found},
    }
    text = json.dumps(plain(told), indent=1, allow_nan=False) + "\n"
    write_atomically(comparison.folder / "compare.json", text.encode())
    return told


def _curve(band: Band | None) -> dict[str, Any] | None:
    return None if band is None else {k: getattr(band, k) for k in ("x", "mean", "low", "high")}
