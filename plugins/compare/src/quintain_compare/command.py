"""`quintain compare`: several recipes on equal tasks, seeds and budgets."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from quintain.cli import Count, sigterm_as_ctrl_c
from quintain.errors import Interrupted, UsageError
from quintain.training import Recipe, bundled, override

if TYPE_CHECKING:
    from quintain.training import Screen

EPILOG = """
\b
Examples:
  quintain compare --algorithms dr_grpo grpo rloo --seeds 0 1 2 --steps 40
  quintain compare ours.toml theirs.toml --seeds 0 1 2 --budget tokens=500000
"""

_TABLE = "a comparison gives its runs names, seeds and folders itself; say --seeds and --folder"
PLACED = {
    ("run",): _TABLE,
    ("run", "seed"): "a comparison has several seeds; say --seeds 0 1 2",
    ("run", "folder"): "the runs of a comparison are in its own folder; say --folder",
    ("run", "name"): "the runs of a comparison are named by recipe and seed; name the recipe's file otherwise",
}
"""Keys that the command sets, and what to say in their place."""


class Lists(click.Command):
    """A command whose options may take several words: ``--seeds 0 1 2``. Click reads them as the option repeated."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, repeated(args))


def repeated(args: Sequence[str]) -> list[str]:
    """``--seeds 0 1,2`` becomes ``--seeds 0 --seeds 1 --seeds 2``. A list ends at an option, or at a recipe."""
    out: list[str] = []
    option = ""
    for word in args:
        if word.startswith("-"):
            name, equals, value = word.partition("=")
            option = name if name in ("--seeds", "--algorithms") else ""
            if not option:
                out.append(word)
                continue
            word = value
            if not equals:
                continue
        if option and not word.endswith(".toml"):
            for part in filter(None, word.split(",")):
                out += [option, part]
        else:
            option = ""
            out.append(word)
    return out


@click.command(cls=Lists, epilog=EPILOG)
@click.argument("recipes", nargs=-1, type=click.Path(dir_okay=False))
@click.option("--algorithms", multiple=True, metavar="NAME...", help="Compare these rows, all else as in one RECIPE.")
@click.option("--seeds", multiple=True, type=Count(0), metavar="N...", help="Of the runs.  [default: 0 1 2]")
@click.option("--steps", type=Count(1), help="Optimizer steps of each run at most.")
@click.option("--budget", metavar="KIND=N", help="End each run after so many tokens, samples, seconds or steps.")
@click.option(
    "--set", "-s", "overrides", multiple=True, metavar="A.B=VALUE", help="Change a key of every recipe (repeatable)."
)
@click.option("--folder", help="Where the runs and the result go.  [default: compare/ENVIRONMENT]")
@click.option("--quiet", "-q", is_flag=True, help="Show warnings only.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def compare(
    recipes: Sequence[str],
    algorithms: Sequence[str],
    seeds: Sequence[int],
    steps: int | None,
    budget: str | None,
    overrides: Sequence[str],
    folder: str | None,
    quiet: bool,
    as_json: bool,
) -> int | None:
    """Compare RECIPES on equal tasks, seeds and budgets; without one, the quickstart with several --algorithms.

    Runs with the same seed start from the same model and see the same tasks. Ctrl-C saves; the same command goes on.
    """
    from quintain.training import for_terminal

    from .comparison import Budget, check, compared, run
    from .report import draw, show
    from .results import failed, save, standings

    found = _recipes(recipes, algorithms, overrides)
    comparison = compared(
        found,
        seeds=seeds or (0, 1, 2),
        folder=folder or Path("compare") / Path(found[0][1].environments[0].use.rpartition(":")[2]).stem.lower(),
        steps=steps,
        budget=Budget.parse(budget) if budget else None,
    )
    check(comparison)

    @contextmanager
    def screen() -> Iterator[Screen]:
        # Each time anew: a run that has listened itself leaves SIGTERM as the system has it.
        with sigterm_as_ctrl_c(), for_terminal(quiet=quiet or as_json) as shown:
            yield shown

    def record(failures: Mapping[str, str]) -> None:
        save(comparison, standings(comparison, failures))

    try:
        with sigterm_as_ctrl_c():
            failures = run(comparison, screen, record, failed=failed(comparison))
    except (Interrupted, KeyboardInterrupt) as e:
        message = f"{str(e) or 'stopped'}; the same command goes on in {comparison.folder}"
        click.echo(message, err=True)
        raise click.Abort(message) from e
    result = standings(comparison, failures)
    told = save(comparison, result)
    plot = draw(comparison.folder, result)
    if as_json:
        click.echo(json.dumps({**told, "plot": str(plot)}))
    elif not quiet:
        show(result, comparison.folder, plot)
    return 1 if failures else None


def _recipes(paths: Sequence[str], algorithms: Sequence[str], overrides: Sequence[str]) -> list[tuple[str, Recipe]]:
    """Names and recipes: the files, or one file (the quickstart by default) with each of *algorithms*.

    Raises:
        UsageError: nothing to compare, several recipes with --algorithms, or a key that the command sets itself.
    """
    _check_overrides(overrides)
    if not algorithms:
        if not paths:
            raise UsageError("nothing to compare: give recipes, or --algorithms such as dr_grpo rloo")
        return [(Path(path).stem, _recipe(path, overrides)) for path in paths]
    if len(paths) > 1:
        raise UsageError("--algorithms varies one recipe; give one, or leave --algorithms out")
    path = paths[0] if paths else None
    own = _recipe(path, []).algorithm
    if own.args:
        raise UsageError(
            f"[algorithm.args] of {path} are for {own.use!r}: {dict(own.args)}; take them out "
            "(--set algorithm.args.KEY sets one for all), or write a recipe for each"
        )
    return [
        (name.rpartition("/")[2], _recipe(path, [f"algorithm.use={json.dumps(name)}", *overrides]))
        for name in algorithms
    ]


def _check_overrides(overrides: Sequence[str]) -> None:
    for pair in overrides:
        if fix := PLACED.get(override(pair)[0]):
            raise UsageError(f"--set {pair!r}: {fix}")


def _recipe(path: str | None, overrides: Sequence[str]) -> Recipe:
    if path is not None:
        return Recipe.load(path, overrides)
    return Recipe.parse(bundled("quickstart"), overrides, source="quickstart.toml")
