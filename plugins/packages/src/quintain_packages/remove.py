"""`quintain remove`: take a plugin out again."""

from __future__ import annotations

import json
import sys

import click

from quintain.errors import UnknownNameError, UsageError


@click.command()
@click.argument("plugin", metavar="NAME")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def remove(plugin: str, yes: bool, as_json: bool) -> int:
    """Remove the plugin NAME, what `quintain add` installed for it and nothing else needs, and its
    own virtual environment, unless another plugin has it, too.

    NAME is a distribution or one of its components. A plugin that others need stays.

    Exit status: 0 removed, 1 failed or declined, 2 a wrong name, or others need it.

    \b
    quintain remove quintain-orchard
    """
    from .installer import needed_by, uninstall
    from .ledger import Added, drop_environment, read_ledger, write_ledger

    if as_json and not yes:
        raise UsageError("--json asks nothing: add --yes")
    name = distribution_of(plugin)
    if users := needed_by(name):
        raise UsageError(f"{name} is needed by {', '.join(users)}; remove these first")
    ledger = read_ledger()
    added = ledger.pop(name, Added())
    going, before = [name], 0
    while len(going) > before:  # what goes may have been the last that needed another one
        before = len(going)
        going += [
            other
            for other in added.brought
            if other not in going and not set(needed_by(other)) - {*going}
        ]
    if not as_json:
        click.echo(f"removes {', '.join(going)}")
        if added.environment:
            click.echo(
                f"and its virtual environment {added.environment}, if no other plugin has it"
            )
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError("nobody can be asked here: add --yes")
        if not click.confirm("Remove it?"):
            click.echo("nothing was removed", err=True)
            return 1
    uninstall(going)
    environment = drop_environment(added.environment, ledger)
    write_ledger(ledger)
    report = {"removed": going, "environment": environment}
    click.echo(json.dumps(report) if as_json else f"removed {', '.join(going)}")
    return 0


def distribution_of(name: str) -> str:
    """Return the installed distribution that *name* is, or that has a component of this name.

    Raises:
        UnknownNameError: there is none that has components or that `quintain add` installed.
        UsageError: it is Quintain itself, or several have it.
    """
    from quintain.registry import current, normalise

    from .ledger import read_ledger

    components = [c for c in current().components() if c.origin in ("installed", "editable")]
    # A plugin may have no component, such as one that others import.
    plugins = {c.distribution for c in components} | read_ledger().keys()
    if normalise(name) in plugins:
        return normalise(name)
    owners = sorted({c.distribution for c in components if c.name == name})
    if len(owners) > 1:
        raise UsageError(f"{name!r} is in {', '.join(owners)}; name one of them")
    if not owners:
        raise UnknownNameError.of(
            "plugin", name, plugins, "`quintain list` shows what is installed"
        )
    return owners[0]
