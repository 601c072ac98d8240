"""Several recipes on equal tasks, seeds and budgets: which runs there are, the checks for equal
terms, running them.

Each recipe and seed is an ordinary run in its own folder, so finished runs are kept and interrupted
ones resume. Runs with the same seed start from the same model, see the same tasks in the same order
and are evaluated on the same held-out tasks: `quintain_view.compare.results` pairs them by seed.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from quintain.console import Screen, distinct_names
from quintain.errors import Interrupted, QuintainError, UsageError
from quintain.recipe import Recipe
from quintain.store import RunFolder

if TYPE_CHECKING:
    from quintain import Algorithm

BudgetKind = Literal["steps", "samples", "tokens", "seconds"]
ENDLESS = 1_000_000
"""Steps of a run that ends after a number of seconds."""
SET_FOR_ALL = "set the key for all with --set"


@dataclass(frozen=True, kw_only=True)
class RunBudget:
    """How long each run trains: *amount* steps, or until the first step after which that much was
    used.
    """

    kind: BudgetKind
    amount: float

    @classmethod
    def parse(cls, text: str) -> RunBudget:
        """Read ``tokens=200000``.

        Raises:
            UsageError: another form, or no positive number.
        """
        kind, _, number = text.partition("=")
        try:
            amount = float(number.replace("_", ""))
        except ValueError:
            amount = math.nan
        if kind not in get_args(BudgetKind) or not 0 < amount < math.inf:
            raise UsageError(
                f"budget {text!r}; expected tokens=N, samples=N, seconds=N or steps=N, N above 0"
            )
        return cls(
            kind=cast(BudgetKind, kind), amount=amount if kind == "seconds" else math.ceil(amount)
        )

    def limit(self, recipe: Recipe, steps: int | None) -> Recipe:
        """Return *recipe* with this budget as its end, or *steps* if these come first."""
        if self.kind == "steps":
            return recipe.replace({"run.steps": min(int(self.amount), steps or int(self.amount))})
        samples = recipe.batch.prompts * recipe.batch.group_size
        step_limit = ENDLESS if self.kind == "seconds" else math.ceil(self.amount / samples)
        amount = self.amount if self.kind == "seconds" else int(self.amount)
        return recipe.replace({"run.steps": steps or step_limit, f"stop.{self.kind}": amount})


@dataclass(frozen=True, kw_only=True)
class RecipeComparison:
    """Named recipes to be run with each of *seeds*, in run folders inside *folder*."""

    folder: Path
    recipes: Mapping[str, Recipe]
    seeds: tuple[int, ...]

    def runs(self) -> list[tuple[str, int]]:
        """Name and seed of each run; seed by seed, so that what has finished is always
        comparable.
        """
        return [(name, seed) for seed in self.seeds for name in self.recipes]

    def recipe(self, name: str, seed: int) -> Recipe:
        """Return the recipe of one run."""
        place = {"run.name": f"{name}-seed{seed}", "run.folder": str(self.folder), "run.seed": seed}
        return self.recipes[name].replace(place)

    def path(self, name: str, seed: int) -> Path:
        """Return the folder of one run."""
        return self.folder / f"{name}-seed{seed}"


def build_comparison(
    recipes: Sequence[tuple[str, Recipe]],
    *,
    seeds: Sequence[int],
    folder: str | Path,
    steps: int | None = None,
    budget: RunBudget | None = None,
) -> RecipeComparison:
    """Check that *recipes* are comparable, and give all the same budget.

    Args:
        recipes: names and recipes; equal names are numbered.
        steps: optimizer steps of each run at most; by default those of the recipes.

    Raises:
        UsageError: no recipe or seed, a seed twice, recipes whose tasks, starting models,
            measurements or budgets differ, or a sampling plan that depends on the number of steps
            where the budget leaves that open.
    """
    from quintain.recipe import resolve_algorithm

    if not recipes or not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise UsageError(
            f"compare: {len(recipes)} recipes, seeds {list(seeds)}; expected some of each, no seed "
            f"twice"
        )
    named = dict(
        zip(
            distinct_names((name for name, _ in recipes), "."),
            (recipe for _, recipe in recipes),
            strict=True,
        )
    )
    # What decides the tasks and the right answers; `shaping` may differ, and `check_comparison`
    # checks limits.
    tasks = {"use", "args", "weight", "reward", "system"}
    _check_equal(
        "tasks",
        {n: [e.model_dump(include=tasks) for e in r.environments] for n, r in named.items()},
    )
    models = {n: r.model.model_dump(include={"name", "start"}) for n, r in named.items()}
    _check_equal("starting models ([model])", models)
    algorithms: dict[str, Algorithm] = {}
    for name, recipe in named.items():
        with _named_in_errors(name):
            algorithms[name] = resolve_algorithm(recipe)
    _check_equal(
        "measurements ([evaluation], with what [sampling] and the plan do to it)",
        {name: _evaluation(recipe, algorithms[name]) for name, recipe in named.items()},
        f"{SET_FOR_ALL} (where sampling.max_tokens is to differ, evaluation.max_tokens; "
        "algorithm.args.plan.thinking_budget=none takes a thinking budget away)",
    )
    if budget is None:
        ends = {
            n: (steps or r.run.steps, r.batch.prompts * r.batch.group_size, r.stop)
            for n, r in named.items()
        }
        _check_equal(
            "budgets (steps, samples a step, [stop])",
            ends,
            "give all a --budget, such as samples=10000",
        )
        limited = {n: r.replace({"run.steps": steps}) if steps else r for n, r in named.items()}
    else:
        if budget.kind != "steps" and steps is None:
            for name, algorithm in algorithms.items():
                _check_plan(name, algorithm, budget)
        limited = {name: budget.limit(recipe, steps) for name, recipe in named.items()}
        stops = {name: recipe.stop.model_dump() for name, recipe in limited.items()}
        _check_equal("ends ([stop], which hold besides the --budget)", stops)
    return RecipeComparison(folder=Path(folder), recipes=limited, seeds=tuple(seeds))


@contextmanager
def _named_in_errors(name: str) -> Iterator[None]:
    """Begin the message of any error inside with the *name* of the recipe."""
    try:
        yield
    except QuintainError as e:
        e.args = (f"{name}: {e}", *e.args[1:])
        raise


def _evaluation(recipe: Recipe, algorithm: Algorithm) -> dict[str, Any]:
    """Return when held-out tasks are tried, which, and how: as a run of *recipe* tries them."""
    table = recipe.evaluation
    sampling = asdict(
        table.to_sampling(recipe.sampling).replace(thinking_budget=algorithm.plan.thinking_budget)
    )
    return {**table.model_dump(exclude={"temperature", "max_tokens"}), **sampling}


def _check_plan(name: str, algorithm: Algorithm, budget: RunBudget) -> None:
    plan = algorithm.plan
    keys = ['order = "easy_to_hard"'] if plan.order == "easy_to_hard" else []
    if plan.difficulty_samples:
        keys.append(f"difficulty_samples = {plan.difficulty_samples}")
    if keys:
        raise UsageError(
            f"{name}: plan.{' and plan.'.join(keys)} of algorithm {algorithm.name!r} depends on "
            f"how many steps the run has, which a budget of {budget.kind} leaves open; give "
            "--steps besides, or --budget steps=N"
        )


def _check_equal(what: str, parts: Mapping[str, Any], fix: str = SET_FOR_ALL) -> None:
    """Raise a `UsageError` where a recipe's part differs from that of the first."""
    (first, expected), *others = parts.items()
    for name, part in others:
        if part == expected:
            continue
        pair = expected, part
        if isinstance(expected, dict):
            keys = [key for key in {**expected, **part} if expected.get(key) != part.get(key)]
            pair = {k: expected.get(k) for k in keys}, {k: part.get(k) for k in keys}
        raise UsageError(
            f"the {what} of {first!r} and {name!r} differ: {pair[0]} and {pair[1]}; {fix}, or "
            f"compare others"
        )


def check_comparison(comparison: RecipeComparison) -> None:
    """Find mistakes before the first run starts.

    Raises:
        UsageError: a recipe does not fit what is installed, or a run in the folder has another
            recipe.
    """
    from quintain.recipe import check_recipe, pinned_recipe

    for name, recipe in comparison.recipes.items():
        with _named_in_errors(name):
            check_recipe(recipe)
    resources = {name: _limits_and_services(recipe) for name, recipe in comparison.recipes.items()}
    _check_equal("measurements (limits and services of the environments)", resources)
    for name, seed in comparison.runs():
        path = comparison.path(name, seed)
        if (path / "recipe.toml").is_file():
            existing = Recipe.parse(
                RunFolder(path, lock=False).recipe(), source=str(path / "recipe.toml")
            )
            expected = comparison.recipe(name, seed)
            if existing.replace({"run.folder": expected.run.folder}) != pinned_recipe(
                expected
            ):  # one folder has many spellings
                raise UsageError(
                    f"{path} is a run of another recipe; choose another --folder, or remove it"
                )


def _limits_and_services(recipe: Recipe) -> dict[str, Any]:
    """Return what an evaluation takes from a recipe besides `[evaluation]`: limits of episodes,
    services of environments.
    """
    from quintain.recipe import EnvironmentSpec, EvaluationPlan, resolve_algorithm

    services = EvaluationPlan.of(recipe, resolve_algorithm(recipe)).services
    resources: dict[str, Any] = {}
    for table in recipe.environments:
        environment = EnvironmentSpec.of(table)
        resources[f"limits of {table.use}"] = asdict(
            table.limits.over(environment.component.limits)
        )
        resources |= {
            f"services.{s}": services[s].model_dump()
            for s in sorted(environment.slots)
            if s in services
        }
    return resources


def run_comparison(
    comparison: RecipeComparison,
    screen: Callable[[], AbstractContextManager[Screen]],
    record: Callable[[Mapping[str, str]], object] = lambda failures: None,
    *,
    failed: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Do every run that has not finished, one after another; return reasons of failures by name of
    the run folder.

    Args:
        screen: makes one for each run.
        record: called after each run, however it ended, with the failures so far.
        failed: failures of an earlier call, which stand until their runs have been tried again.

    Raises:
        Interrupted: the user asked to stop; what was complete is saved.
    """
    failures = dict(failed or {})
    runs = comparison.runs()
    for number, (name, seed) in enumerate(runs, 1):
        path = comparison.path(name, seed)
        title = f"run {number} of {len(runs)}: {path.name}"
        if (path / "summary.json").exists():
            failures.pop(path.name, None)
            with screen() as shown:
                shown.note(f"{title} is finished")
            continue
        try:
            with screen() as shown:
                shown.note(title)
                try:
                    _train(comparison.recipe(name, seed), path, shown)
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


def _train(recipe: Recipe, path: Path, screen: Screen) -> None:
    """Start the run at *path*, or resume it."""
    from quintain.recipe import pinned_recipe
    from quintain.run import run_training

    exists = (path / "recipe.toml").is_file()
    recipe = pinned_recipe(recipe)
    with RunFolder.open(path) if exists else RunFolder.create(path, recipe.to_toml()) as folder:
        run_training(recipe, folder, screen)
