"""`quintain compare`: several recipes on equal tasks, seeds and budgets."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from quintain.cli import Count, arg_option, quiet_option, sigterm_as_ctrl_c
from quintain.errors import Interrupted, UsageError
from quintain.recipe import Recipe, is_model_source, parsed_override
from quintain.store import model_named

if TYPE_CHECKING:
    from quintain.console import Screen

EPILOG = """
\b
Examples:
  quintain compare --algorithms dr_grpo grpo rloo --seeds 0 1 2 --steps 40
  quintain compare ours.toml theirs.toml --seeds 0 1 2 --budget tokens=500000
  quintain compare ours.toml --sweep learner.lr=1e-5,3e-5,1e-4 --seeds 0 1
"""

RESERVED = {
    (
        "run",
    ): "a comparison gives its runs names, seeds and folders itself; say --seeds and --folder",
    ("run", "seed"): "a comparison has several seeds; say --seeds 0 1 2",
    ("run", "folder"): "the runs of a comparison are in its own folder; say --folder",
    (
        "run",
        "name",
    ): "the runs of a comparison are named by recipe and seed; name the recipe's file otherwise",
}
"""Keys that the command sets, and what to use in their place."""
LISTS = ("--seeds", "--algorithms")
"""Options that take several words."""


class ListsCommand(click.Command):
    """A command with options that take several words, ``--seeds 0 1 2``; click reads them as the
    option repeated.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, repeat_options(args))


def repeat_options(args: Sequence[str]) -> list[str]:
    """Turn ``--seeds 0 1,2`` into ``--seeds 0 --seeds 1 --seeds 2``. A list ends at an option or a
    recipe.
    """
    words: list[str] = []
    option = ""
    for word in args:
        name, equals, value = word.partition("=")
        if name in LISTS:
            option = name
            if not equals:
                continue
            word = value
        elif word.startswith("-") or word.endswith(".toml"):
            option = ""
        if not option:
            words.append(word)
            continue
        for part in word.split(","):
            if part:
                words += [option, part]
    return words


@click.command(cls=ListsCommand, epilog=EPILOG)
@click.argument("recipes", nargs=-1)
@click.option(
    "--algorithms", multiple=True, metavar="NAME...", help="Algorithms to compare, in one RECIPE."
)
@click.option(
    "--seeds",
    multiple=True,
    type=Count(0),
    metavar="N...",
    help="Seeds of the runs.  [default: 0 1 2]",
)
@click.option("--env", "-e", help="Environment of every recipe, replaces its own.")
@click.option("--model", "-m", help="Model of every recipe, as in `quintain train`.")
@arg_option
@click.option("--steps", type=Count(1), help="Maximum number of optimizer steps of each run.")
@click.option(
    "--budget", metavar="KIND=N", help="End each run after N tokens, samples, seconds or steps."
)
@click.option(
    "--set",
    "-s",
    "overrides",
    multiple=True,
    metavar="A.B=VALUE",
    help="Change a key of every recipe (repeatable).",
)
@click.option(
    "--sweep",
    multiple=True,
    metavar="A.B=V,V...",
    help="Values of a key to compare, in one RECIPE (repeatable: all combinations).",
)
@click.option("--folder", help="Folder of the runs and the result.  [default: compare/ENVIRONMENT]")
@quiet_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def compare(
    recipes: Sequence[str],
    algorithms: Sequence[str],
    seeds: Sequence[int],
    env: str | None,
    model: str | None,
    args: Sequence[str],
    steps: int | None,
    budget: str | None,
    overrides: Sequence[str],
    sweep: Sequence[str],
    folder: str | None,
    quiet: bool,
    as_json: bool,
) -> int | None:
    """Compare RECIPES on equal tasks, seeds and budgets; without one, the quickstart with several
    --algorithms.

    Runs with the same seed start from the same model and see the same tasks. Ctrl-C saves; the same
    command resumes.
    """
    from quintain.console import for_terminal

    from .comparison import RunBudget, build_comparison, check_comparison, run_comparison
    from .report import draw, show
    from .results import earlier_failures, recipe_results, save

    changes = [*_choices(env, model, args), *overrides]
    named = swept(recipes, sweep, changes) if sweep else _recipes(recipes, algorithms, changes)
    if sweep and algorithms:
        raise UsageError(
            "--sweep algorithm.use=dr_grpo,rloo varies the algorithm, too: leave out --algorithms"
        )
    environment = named[0][1].environments[0].use.rpartition(":")[2]
    comparison = build_comparison(
        named,
        seeds=seeds or (0, 1, 2),
        folder=folder or Path("compare") / Path(environment).stem.lower(),
        steps=steps,
        budget=RunBudget.parse(budget) if budget else None,
    )
    check_comparison(comparison)

    @contextmanager
    def screen() -> Iterator[Screen]:
        # Again for each run: a run that has handled signals itself leaves SIGTERM as the system has
        # it.
        with sigterm_as_ctrl_c(), for_terminal(quiet=quiet or as_json) as shown:
            yield shown

    def record(failures: Mapping[str, str]) -> None:
        save(comparison, recipe_results(comparison, failures))

    try:
        with sigterm_as_ctrl_c():
            failures = run_comparison(
                comparison, screen, record, failed=earlier_failures(comparison)
            )
    except (Interrupted, KeyboardInterrupt) as e:
        raise click.Abort(
            f"{str(e) or 'stopped'}; the same command resumes in {comparison.folder}"
        ) from e
    results = recipe_results(comparison, failures)
    content = save(comparison, results)
    plot = draw(comparison.folder, results)
    if as_json:
        click.echo(json.dumps({**content, "plot": str(plot)}))
    elif not quiet:
        show(results, comparison.folder, plot)
    return 1 if failures else None


def _choices(env: str | None, model: str | None, args: Sequence[str]) -> list[str]:
    """Return the keys that --env, --model and --arg set, as in `quintain train`."""
    changes = [] if env is None else [f"environments=[{{use={json.dumps(env)}}}]"]
    if model is not None:
        path = model if is_model_source(model) else model_named(model).path
        changes.append(f"model.name={json.dumps(path)}")
    return [*changes, *(f"environments.0.args.{pair}" for pair in args)]


def _recipes(
    paths: Sequence[str], algorithms: Sequence[str], overrides: Sequence[str]
) -> list[tuple[str, Recipe]]:
    """Return names and recipes: those of the files, or one file (the quickstart by default) with
    each of *algorithms*.

    Raises:
        UsageError: nothing to compare, several recipes with --algorithms, or a key that the command
            sets itself.
    """
    for pair in overrides:
        fix = RESERVED.get(parsed_override(pair)[0])
        if fix:
            raise UsageError(f"--set {pair!r}: {fix}")
    if not algorithms:
        if not paths:
            raise UsageError(
                "nothing to compare: give recipes, or --algorithms such as dr_grpo rloo"
            )
        return [(Path(path).stem, _recipe(path, overrides)) for path in paths]
    if len(paths) > 1:
        raise UsageError("--algorithms varies one recipe; give one, or leave --algorithms out")
    path = paths[0] if paths else None
    algorithm = _recipe(path, []).algorithm
    if algorithm.args:
        raise UsageError(
            f"[algorithm.args] of {path} are for {algorithm.use!r}: {dict(algorithm.args)}; take "
            "them out (--set algorithm.args.KEY sets one for all), or write a recipe for each"
        )
    return [
        (name.rpartition("/")[2], _recipe(path, [f"algorithm.use={json.dumps(name)}", *overrides]))
        for name in algorithms
    ]


def swept(
    paths: Sequence[str], sweep: Sequence[str], overrides: Sequence[str]
) -> list[tuple[str, Recipe]]:
    """Return the recipe of one file, the quickstart by default, with each combination of values.

    Raises:
        UsageError: several recipes, a key twice or that the command sets itself, or a value that is
            a table.
    """
    if len(paths) > 1:
        raise UsageError("--sweep varies one recipe; give one, or leave --sweep out")
    values_of: dict[tuple[str, ...], list[Any]] = {}
    for text in sweep:
        key, _, values = text.partition("=")
        path = parsed_override(f"{key}=0").path
        try:
            listed = tomllib.loads(f"values = [{values}]")["values"]
        except tomllib.TOMLDecodeError:  # words without quotation marks
            listed = [word.strip() for word in values.split(",") if word.strip()]
        if not listed or path in values_of or any(isinstance(v, dict) for v in listed):
            raise UsageError(
                f"--sweep {text!r}; expected a key once, with numbers or words and commas between "
                "them: learner.lr=1e-5,3e-5"
            )
        if fix := RESERVED.get(path):
            raise UsageError(f"--sweep {text!r}: {fix}")
        values_of[path] = listed
    file = paths[0] if paths else None
    named = []
    for combination in product(*values_of.values()):
        words, chosen = [], []
        for path, value in zip(values_of, combination, strict=True):
            shown = re.sub("[^0-9a-zA-Z._+-]+", "-", str(value)).strip("-")
            words.append(f"{path[-1]}={shown}")
            chosen.append(f"{'.'.join(path)}={json.dumps(value)}")
        named.append((",".join(words), _recipe(file, [*overrides, *chosen])))
    return named


def _recipe(path: str | None, overrides: Sequence[str]) -> Recipe:
    if path is not None:
        return Recipe.load(path, overrides)
    return Recipe.load("quickstart", overrides)
