"""`quintain start`: grow the default model on an environment's demonstrations."""

from __future__ import annotations

import json
import shlex

import click

from .options import Count


@click.command()
@click.argument("environment")
@click.option("--seed", type=Count(0), default=0, show_default=True, help="Of weights and order of examples.")
@click.option(
    "--arg", "-a", "args", multiple=True, metavar="KEY=VALUE", help="A field of the environment (repeatable)."
)
@click.option(
    "--start-arg", "start_args", multiple=True, metavar="KEY=VALUE", help="A setting of the growing (repeatable)."
)
@click.option("--quiet", "-q", is_flag=True, help="Show warnings only.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object.")
def start(
    environment: str, seed: int, args: tuple[str, ...], start_args: tuple[str, ...], quiet: bool, as_json: bool
) -> None:
    """Grow the small default model on the worked examples of ENVIRONMENT until it is right at times, and cache it.

    `quintain train` does this by itself where it has to; after this it need not, and begins at once. The model is kept
    for this environment, its arguments, the seed and the settings of growing (by default those of the quickstart), and
    `train` uses it where all of them are the same. Ctrl-C saves how far it came; the same command goes on from there.
    """
    from ..training.nursery import grown
    from ..training.recipe.load import bundled
    from ..training.recipe.tables import Recipe
    from ..training.resolve import cast_table
    from ..training.screen import for_terminal, program
    from .train import sigterm_as_ctrl_c

    chosen = [f"environments.0.args.{pair}" for pair in args] + [f"model.start.args.{pair}" for pair in start_args]
    sets = [f"environments=[{{use={json.dumps(environment)}}}]", f"run.seed={seed}", *chosen]
    recipe = Recipe.parse(bundled("quickstart"), sets, source="quickstart.toml")  # what `quintain train` begins with
    with for_terminal(quiet=quiet or as_json) as screen, sigterm_as_ctrl_c():
        folder = grown([cast_table(table) for table in recipe.environments], recipe, screen)
    report = json.loads((folder / "grown.json").read_text(encoding="utf-8"))
    if as_json:
        click.echo(json.dumps({**report, "path": str(folder)}))
        return
    click.echo(f"{folder}: {report['parameters']:,} parameters")
    click.echo(f"{report['accuracy']:.1%} right on dev after {report['steps']} updates")
    words = ["train", "--env", environment, *(["--seed", str(seed)] if seed else [])]
    words += [word for pair in chosen for word in ("--set", pair)]
    click.echo(f"next: {program()} {shlex.join(words)}, or: {program()} chat {folder}")
