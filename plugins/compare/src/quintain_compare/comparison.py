"""Several recipes on equal tasks, seeds and budgets: which runs there are, and how they are done.

Each recipe and seed is an ordinary run in a folder of its own, so what is finished is kept and what was interrupted
goes on. Runs with the same seed start from the same model, see the same tasks in the same order and are measured on
the same held-out tasks: differences are taken seed by seed, see `quintain_compare.results`.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from quintain.errors import Interrupted, QuintainError, UsageError
from quintain.training import Recipe, RunFolder, Screen, distinct

if TYPE_CHECKING:
    from quintain import Row

Kind = Literal["steps", "samples", "tokens", "seconds"]
ENDLESS = 1_000_000
MEASURED = (
    "set the key for all with --set (where sampling.max_tokens is to differ, evaluation.max_tokens; "
    "algorithm.args.plan.interrupt=none takes an interruption away)"
)


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
        UsageError: fewer than one recipe or seed, a seed twice, recipes whose tasks, starting models, measurements or
            budgets differ, or a plan that has to know the number of steps where the budget is in something else.
    """
    if not recipes or not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise UsageError(f"compare: {len(recipes)} recipes, seeds {list(seeds)}; expected some of each, no seed twice")
    named = dict(zip(distinct((name for name, _ in recipes), "."), (recipe for _, recipe in recipes), strict=True))
    _check_equal(named, _tasks, "tasks")
    _check_equal(named, lambda r: r.model.model_dump(include={"name", "start"}), "starting models ([model])")
    rows = {name: _row(name, recipe) for name, recipe in named.items()}
    measured = {name: _measured(recipe, rows[name]) for name, recipe in named.items()}
    _check_same(measured, "measurements ([evaluation], with what [sampling] and the plan do to it)", MEASURED)
    if budget is not None and budget.kind != "steps" and steps is None:
        for name, row in rows.items():
            _refuse_unknown_end(name, row, budget)
    if budget is None:
        ends = lambda r: (steps or r.run.steps, r.batch.groups * r.batch.members, r.stop)  # noqa: E731
        _check_equal(
            named, ends, "budgets (steps, samples a step, [stop])", "give all a --budget, such as samples=10000"
        )
        held = {n: r.but({"run.steps": steps}) if steps else r for n, r in named.items()}
    else:
        held = {name: budget.of(recipe, steps) for name, recipe in named.items()}
        _check_equal(held, lambda r: r.stop.model_dump(), "ends ([stop], which hold besides the --budget)")
    return Comparison(folder=Path(folder), recipes=held, seeds=tuple(seeds))


def _row(name: str, recipe: Recipe) -> Row:
    from quintain.training import algorithm

    with _naming(name):
        return algorithm(recipe)


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Whatever is wrong inside is said of the recipe *name*."""
    try:
        yield
    except QuintainError as e:
        e.args = (f"{name}: {e}", *e.args[1:])
        raise


def _tasks(recipe: Recipe) -> list[dict[str, Any]]:
    """What decides which tasks there are and what a right answer is; shaping may differ, `check` sees to limits."""
    return [e.model_dump(include={"use", "args", "weight", "reward", "system"}) for e in recipe.environments]


def _measured(recipe: Recipe, row: Row) -> dict[str, Any]:
    """When held-out tasks are tried, which, and how: just as a run tries them."""
    table = recipe.evaluation
    how = asdict(table.how(recipe.sampling).but(interrupt=row.plan.interrupt))
    return {**table.model_dump(exclude={"temperature", "max_tokens"}), **how}


def _refuse_unknown_end(name: str, row: Row, budget: Budget) -> None:
    plan = row.plan
    asks = [f'order = "{plan.order}"'] * (plan.order == "level") + [f"probe = {plan.probe}"] * (plan.probe > 0)
    if asks:
        raise UsageError(
            f"{name}: plan.{' and plan.'.join(asks)} of algorithm {row.name!r} depends on how many steps the run has, "
            f"which a budget of {budget.kind} leaves open; give --steps besides, or --budget steps=N"
        )


def _check_equal(
    named: Mapping[str, Recipe], part: Callable[[Recipe], Any], what: str, fix: str = "set the key for all with --set"
) -> None:
    _check_same({name: part(recipe) for name, recipe in named.items()}, what, fix)


def _check_same(parts: Mapping[str, Any], what: str, fix: str) -> None:
    (first, wanted), *others = parts.items()
    for name, found in others:
        if found != wanted:
            pair = _difference(wanted, found)
            raise UsageError(
                f"the {what} of {first!r} and {name!r} differ: {pair[0]} and {pair[1]}; {fix}, or compare others"
            )


def _difference(one: Any, other: Any) -> tuple[Any, Any]:
    """Of two tables what differs, of other things all."""
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return one, other
    keys = [key for key in {**one, **other} if one.get(key) != other.get(key)]
    return {k: one.get(k) for k in keys}, {k: other.get(k) for k in keys}


def check(comparison: Comparison) -> None:
    """Find out what can be known before the first run starts.

    Raises:
        UsageError: a recipe does not fit what is installed, or a run in the folder has another recipe.
    """
    from quintain.training import check_recipe

    for name, recipe in comparison.recipes.items():
        with _naming(name):
            check_recipe(recipe)
    held = {name: _held(recipe) for name, recipe in comparison.recipes.items()}
    _check_same(held, "measurements (limits and services of the environments)", "set the key for all with --set")
    for name, seed in comparison.runs():
        path = comparison.path(name, seed)
        if (path / "recipe.toml").is_file():
            found = Recipe.parse(RunFolder(path, lock=False).recipe(), source=str(path / "recipe.toml"))
            wanted = comparison.recipe(name, seed)
            if found.but({"run.folder": wanted.run.folder}) != wanted:  # one folder has many spellings
                raise UsageError(f"{path} is a run of another recipe; choose another --folder, or remove it")


def _held(recipe: Recipe) -> dict[str, Any]:
    """What else measuring takes from a recipe: how far an episode may go, and the services that answer and judge."""
    from quintain.training import algorithm, cast_table, chosen

    services = chosen(recipe, algorithm(recipe))
    found: dict[str, Any] = {}
    for table in recipe.environments:
        casting = cast_table(table)
        found[f"limits of {table.use}"] = asdict(table.limits.over(casting.component.limits))
        found |= {f"services.{s}": services[s].model_dump() for s in sorted(casting.slots) if s in services}
    return found


def run(
    comparison: Comparison,
    screen: Callable[[], AbstractContextManager[Screen]],
    record: Callable[[Mapping[str, str]], object] = lambda failures: None,
    *,
    failed: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Do every run that is not finished, one after another; why some failed, by the names of their folders.

    Args:
        screen: makes one for each run.
        record: called after each run, however it ended, with the failures so far.
        failed: failures of an earlier call, which stand until their runs have been tried again.

    Raises:
        Interrupted: the user asked to stop; what was complete is saved.
    """
    failures = dict(failed or {})
    runs = comparison.runs()
    for at, (name, seed) in enumerate(runs, 1):
        path = comparison.path(name, seed)
        title = f"run {at} of {len(runs)}: {path.name}"
        if (path / "summary.json").exists():
            failures.pop(path.name, None)
            with screen() as shown:
                shown.note(f"{title} is finished")
            continue
        try:
            with screen() as shown:
                shown.note(title)
                try:
                    _conducted(comparison, name, seed, shown)
                    failures.pop(path.name, None)
                except Interrupted:
                    raise
                except QuintainError as e:
                    failures[path.name] = str(e)
                    shown.warn(f"{path.name} failed: {e}")
        finally:
            gc.collect()  # the next model must not wait for the memory of this one
            record(failures)
    return failures


def _conducted(comparison: Comparison, name: str, seed: int, screen: Screen) -> None:
    from quintain.training import conduct

    path, recipe = comparison.path(name, seed), comparison.recipe(name, seed)
    exists = (path / "recipe.toml").is_file()
    with RunFolder.open(path) if exists else RunFolder.create(path, recipe.to_toml()) as folder:
        conduct(recipe, folder, screen)
