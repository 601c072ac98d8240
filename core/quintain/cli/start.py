"""`quintain start`: grow the default model on an environment's demonstrations."""

from __future__ import annotations

import json

import click


@click.command()
@click.argument("environment")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of weights and order of examples.")
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

    `quintain train` does this by itself; here it can be seen alone.
    """
    from ..recipe import Recipe
    from ..report.screen import for_terminal
    from ..stage import cast_table
    from ..starter import grown

    sets = [f"environments.0.use={json.dumps(environment)}", f"run.seed={seed}"]
    sets += [f"environments.0.args.{pair}" for pair in args]
    sets += [f"model.start.args.{pair}" for pair in start_args]
    recipe = Recipe.parse("", sets, source="quintain start")
    with for_terminal(quiet=quiet or as_json) as screen:
        folder = grown([cast_table(table) for table in recipe.environments], recipe, screen)
    report = json.loads((folder / "grown.json").read_text(encoding="utf-8"))
    if as_json:
        click.echo(json.dumps({**report, "path": str(folder)}))
        return
    click.echo(f"{folder}: {report['parameters']:,} parameters")
    click.echo(f"{report['accuracy']:.1%} right on dev after {report['steps']} updates")
    click.echo(f"next: quintain train --env {environment}, or: quintain chat {folder}")
