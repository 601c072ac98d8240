"""`quintain start`: train the default model on an environment's demonstrations, and cache it."""

from __future__ import annotations

import json
import shlex

import click

from quintain.cli import Count, arg_option, json_option, quiet_option, sigterm_as_ctrl_c


@click.command()
@click.argument("environment")
@click.option(
    "--seed",
    type=Count(0),
    default=0,
    show_default=True,
    help="Seed of weights and order of examples.",
)
@arg_option
@click.option(
    "--start-arg",
    "start_args",
    multiple=True,
    metavar="KEY=VALUE",
    help="Setting of the warm start (repeatable).",
)
@click.option(
    "--fresh",
    "--again",
    "again",
    is_flag=True,
    help="Train also if the model is there already; cache the new one.",
)
@quiet_option
@json_option
def start(
    environment: str,
    seed: int,
    args: tuple[str, ...],
    start_args: tuple[str, ...],
    again: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Train the small default model on the demonstrations of ENVIRONMENT to a target accuracy, and
    cache it.

    `quintain train` does this automatically; running it first makes training start immediately. The
    model is cached for this environment with its arguments and code and the settings of the warm
    start (by default those of the quickstart); `train` uses it if all of them are the same.
    `quintain info default` lists the settings. Interrupted training begins again.
    """
    from quintain.cli import recipe_for
    from quintain.console import for_terminal, program_name
    from quintain.recipe import ModelRequest, ModelSource

    from .source import DefaultModel

    start_args = (*([f"seed={seed}"] if seed else []), *start_args)
    chosen = [f"environments.0.args.{pair}" for pair in args] + [
        f"model.start.args.{pair}" for pair in start_args
    ]
    recipe = recipe_for(environment, chosen)
    source = ModelSource.of(recipe)
    assert isinstance(source, DefaultModel), source
    with for_terminal(quiet=quiet or as_json) as screen, sigterm_as_ctrl_c():
        folder = source.train_once(ModelRequest.of(recipe, screen), again=again)
    report = json.loads((folder / "quintain.json").read_text(encoding="utf-8"))["warm_start"]
    if as_json:
        click.echo(json.dumps({**report, "path": str(folder)}))
        return
    click.echo(f"{folder}: {report['parameters']:,} parameters")
    click.echo(f"{report['accuracy']:.1%} right on dev after {report['steps']} updates")
    words = ["train", "--env", environment, *(word for pair in chosen for word in ("--set", pair))]
    click.echo(f"next: {program_name()} {shlex.join(words)}, or: {program_name()} chat {folder}")
