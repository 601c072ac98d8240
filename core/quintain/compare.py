"""Several recipes on equal tasks, seeds and budgets: which runs there are, how they are done, what they come to.

Each recipe and seed is an ordinary run in a folder of its own, so what is finished is kept and what was interrupted
goes on. Runs with the same seed start from the same model, see the same tasks in the same order and are measured on
the same held-out tasks: differences are taken seed by seed.
"""

from __future__ import annotations

import gc
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, cast, get_args

from .errors import PluginError, QuintainError, RunError, UsageError
from .fits import NoFit, RepeatedSampling, Sigmoid, repeated_sampling, sigmoid
from .intervals import Interval, t_interval
from .recipe import Recipe
from .report.screen import Screen
from .store import RunFolder, plain, write_atomically

Kind = Literal["steps", "samples", "tokens", "seconds"]
Axis = Literal["samples", "tokens", "seconds"]
AXES: tuple[Axis, ...] = get_args(Axis)
TRAINING = ("rollouts", "update", "publish")
"""Phases whose time counts; measuring and saving are the same for all."""
FORMAT = 1
GRID = 60
ENDLESS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How long each run goes on: *amount* steps, or the first step after which so much was used."""

    kind: Kind
    amount: float

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Read ``tokens=200000``.

        Raises:
            UsageError: another form, or no positive number.
        """
        kind, _, number = text.partition("=")
        try:
            amount = float(number.replace("_", ""))
        except ValueError:
            amount = math.nan
        if kind not in get_args(Kind) or not 0 < amount < math.inf:
            raise UsageError(f"budget {text!r}; expected tokens=N, samples=N, seconds=N or steps=N, N above 0")
        return cls(kind=cast(Kind, kind), amount=amount if kind == "seconds" else math.ceil(amount))

    def of(self, recipe: Recipe, steps: int | None) -> Recipe:
        """*recipe* that ends with this budget, or after *steps* if that comes first."""
        if self.kind == "steps":
            return recipe.but({"run.steps": min(int(self.amount), steps or int(self.amount))})
        samples = recipe.batch.groups * recipe.batch.members
        most = ENDLESS if self.kind == "seconds" else math.ceil(self.amount / samples)
        amount = self.amount if self.kind == "seconds" else int(self.amount)
        return recipe.but({"run.steps": steps or most, f"stop.{self.kind}": amount})


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Named recipes to be run with each of *seeds*, in run folders inside *folder*."""

    folder: Path
    recipes: Mapping[str, Recipe]
    seeds: tuple[int, ...]

    def runs(self) -> list[tuple[str, int]]:
        """Seed by seed, so that what is done is always comparable."""
        return [(name, seed) for seed in self.seeds for name in self.recipes]

    def recipe(self, name: str, seed: int) -> Recipe:
        """Of one run."""
        place = {"run.name": f"{name}-seed{seed}", "run.folder": str(self.folder), "run.seed": seed}
        return self.recipes[name].but(place)

    def path(self, name: str, seed: int) -> Path:
        """The folder of one run."""
        return self.folder / f"{name}-seed{seed}"


def compared(
    recipes: Sequence[tuple[str, Recipe]],
    *,
    seeds: Sequence[int],
    folder: str | Path,
    steps: int | None = None,
    budget: Budget | None = None,
) -> Comparison:
    """Check that *recipes* can be compared, and give all the same budget.

    Args:
        recipes: names and recipes; equal names are told apart by a number.
        steps: optimizer steps of each run at most; by default what the recipes say.

    Raises:
        UsageError: fewer than one recipe or seed, a seed twice, or recipes whose tasks, starting models, measurements
            or budgets differ.
    """
    if not recipes or not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise UsageError(f"compare: {len(recipes)} recipes, seeds {list(seeds)}; expected some of each, no seed twice")
    named = dict(zip(_distinct([name for name, _ in recipes]), (recipe for _, recipe in recipes), strict=True))
    _check_equal(named, _tasks, "tasks")
    _check_equal(named, lambda r: r.model.model_dump(include={"name", "start"}), "starting models ([model])")
    _check_equal(named, lambda r: r.evaluation.model_dump(), "measurements ([evaluation])")
    if budget is None:
        ends = lambda r: (steps or r.run.steps, r.batch.groups * r.batch.members, r.stop)  # noqa: E731
        _check_equal(
            named, ends, "budgets (steps, samples a step, [stop])", "give all a --budget, such as samples=10000"
        )
        held = {n: r.but({"run.steps": steps}) if steps else r for n, r in named.items()}
    else:
        held = {name: budget.of(recipe, steps) for name, recipe in named.items()}
    return Comparison(folder=Path(folder), recipes=held, seeds=tuple(seeds))


def _tasks(recipe: Recipe) -> list[dict[str, Any]]:
    """What decides which tasks there are and what a right answer is; shaping and limits may differ."""
    return [e.model_dump(include={"use", "args", "weight", "reward", "system"}) for e in recipe.environments]


def _ends(recipe: Recipe, steps: int | None) -> tuple[Any, ...]:
    return (steps or recipe.run.steps, recipe.batch.groups * recipe.batch.members, recipe.stop.model_dump())


def _check_equal(
    named: Mapping[str, Recipe],
    part: Callable[[Recipe], Any],
    what: str,
    fix: str = "set the key for all with --set, or compare others",
) -> None:
    (first, recipe), *others = named.items()
    for name, other in others:
        if part(other) != part(recipe):
            raise UsageError(f"the {what} of {first!r} and {name!r} differ: {part(recipe)} and {part(other)}; {fix}")


def _distinct(names: Sequence[str]) -> list[str]:
    seen: Counter[str] = Counter()
    out = []
    for name in names:
        seen[name] += 1
        out.append(name if seen[name] == 1 else f"{name}.{seen[name]}")
    return out


def check(comparison: Comparison) -> None:
    """Find out what can be known before the first run starts.

    Raises:
        UsageError: a recipe does not fit what is installed, or a run in the folder has another recipe.
    """
    from .conduct import check as check_recipe

    for name, recipe in comparison.recipes.items():
        try:
            check_recipe(recipe)
        except QuintainError as e:
            e.args = (f"{name}: {e}", *e.args[1:])
            raise
    for name, seed in comparison.runs():
        path = comparison.path(name, seed)
        if (path / "recipe.toml").is_file():
            held = Recipe.parse(RunFolder(path, lock=False).recipe(), source=str(path / "recipe.toml"))
            if held != comparison.recipe(name, seed):
                raise UsageError(f"{path} is a run of another recipe; choose another --folder, or remove it")


def run(
    comparison: Comparison,
    screen: Callable[[], AbstractContextManager[Screen]],
    record: Callable[[Mapping[str, str]], object] = lambda failures: None,
) -> dict[str, str]:
    """Do every run that is not finished, one after another; why some failed, by the names of their folders.

    Args:
        screen: makes one for each run.
        record: called after each run with the failures so far.

    Raises:
        Interrupted: the user asked to stop; what was complete is saved.
    """
    from .conduct import conduct

    failures: dict[str, str] = {}
    for at, (name, seed) in enumerate(comparison.runs(), 1):
        path, recipe = comparison.path(name, seed), comparison.recipe(name, seed)
        with screen() as shown:
            if (path / "summary.json").exists():
                shown.note(f"run {at} of {len(comparison.runs())}: {path.name} is finished")
                continue
            shown.note(f"run {at} of {len(comparison.runs())}: {path.name}")
            exists = (path / "recipe.toml").is_file()
            with RunFolder.open(path) if exists else RunFolder.create(path, recipe.to_toml()) as folder:
                try:
                    conduct(recipe, folder, shown)
                except (RunError, PluginError) as e:
                    failures[path.name] = str(e)
                    shown.warn(f"{path.name} failed: {e}")
        gc.collect()  # the next model must not wait for the memory of this one
        record(failures)
    return failures


# ---------------------------------------------------------------------------------------------- what came of them


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
               for seed in comparison.seeds if (path := comparison.path(name, seed)).is_dir()]
        for name in comparison.recipes
    }  # fmt: skip


def _result(name: str, seed: int, path: Path, failure: str) -> Result:
    folder = RunFolder(path, lock=False)
    records, summary = folder.metrics(), folder.summary()
    steps = [m for m in records if m["step"] > 0]
    spent: dict[str, list[float]] = {
        axis: list(accumulate((_spent(m, axis) for m in steps), initial=0.0)) for axis in AXES
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
    before, after = (ends.get(when, {}).get("accuracy") for when in ("before", "after"))
    if summary and before is None and after is None and measured:
        before, after = measured[0]["accuracy"], measured[-1]["accuracy"]
    return Result(
        name=name,
        seed=seed,
        folder=path,
        finished=summary is not None,
        failure=failure,
        before=before,
        after=after,
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
    """One recipe over its seeds. Intervals are over seeds; *difference* is to the first recipe, seed by seed."""

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
        """ScaleRL's curve of held-out accuracy against sampled tokens, over all seeds."""
        points = [(m["tokens"], m["accuracy"]) for r in self.runs for m in r.measured]
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

        Lines are drawn between the steps of each seed; nothing is smoothed.
        """
        import numpy as np

        curves = [r.points if value == "reward" else r.measured for r in self.runs]
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
    """What the runs came to, recipe by recipe; unfinished ones give curves, but count in no mean."""
    found = read(comparison, failures or {})
    first = next(iter(found))
    return [
        Standing(
            name=name,
            algorithm=comparison.recipes[name].algorithm.use,
            runs=runs,
            before=_accuracy([r.before for r in runs]),
            after=_accuracy([r.after for r in runs]),
            gain=_paired(runs, runs, "before"),
            difference=_paired(runs, found[first], "after") if name != first else None,
            used={k: math.fsum(r.used[k] for r in runs) / len(runs) for k in ("steps", *AXES)} if runs else {},
        )
        for name, runs in found.items()
    ]


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
