"""`quintain add`: install a plugin from a registry."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from quintain.errors import PluginError, UsageError
from quintain.registry import normalise

if TYPE_CHECKING:
    from .installer import Sources
    from .plan import Installation

REGISTRY = click.option(
    "--registry", default="", metavar="FILE|URL", help="Another registry; #sha256=HEX pins it."
)
PROBE = """
import json, sys
from quintain.registry import current
found = [c for c in current().components() if c.distribution == sys.argv[1]]
for component in found:
    current().manifest(component)
    if component.kind == "environment" and sys.argv[2] == "import":
        current().resolve(component)
print(json.dumps(sorted([c.kind, c.name] for c in found)))
"""
"""Prints the components of a distribution, in a process that has never seen another state."""


@click.command()
@click.argument("plugin", metavar="NAME")
@REGISTRY
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Show what would be installed, and end.")
@click.option(
    "--find-links",
    "-f",
    multiple=True,
    metavar="FOLDER|URL",
    help="Look for wheels there, too (repeatable).",
)
@click.option("--no-index", is_flag=True, help="Look for wheels nowhere else.")
@click.option(
    "--build", is_flag=True, help="Take source archives, too: their code runs when they are built."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def add(
    plugin: str,
    registry: str,
    yes: bool,
    dry_run: bool,
    find_links: Sequence[str],
    no_index: bool,
    build: bool,
    as_json: bool,
) -> int:
    """Install the plugin NAME from a registry, after showing what it is.

    NAME is a distribution or one of its components; NAME==VERSION pins it, and 'NAME @ FILE' takes
    a wheel. What is shown: the file and its hash, licence, components, what of it runs although
    nobody names it, needs, checks, and all that is installed with it. No code of the plugin runs
    before you agree.

    What is installed keeps its version. A plugin that needs another one gets a virtual environment
    of its own, and the lines for the recipe are printed. A wheel that is not what the registry
    says is refused, and an installation that fails is undone.

    Exit status: 0 installed, 1 refused, failed or declined, 2 a wrong name, registry or option.

    \b
    quintain add quintain-env-math --dry-run
    quintain add quintain-orchard --registry https://example.org/registry.toml
    quintain add 'quintain-orchard @ dist/quintain_orchard-0.1.0-py3-none-any.whl'
    """
    from .installer import Sources, installed
    from .plan import make_plan, record_of_wanted
    from .records import read_registry
    from .wanted import Wanted

    if as_json and not (yes or dry_run):
        raise UsageError("--json asks nothing: add --yes or --dry-run")
    wanted = Wanted.parse(plugin)
    listed = record_of_wanted(wanted, read_registry(registry))
    name = normalise(listed.name if listed else wanted.name)
    if (here := installed().get(name)) and here == (wanted.version or here) and not wanted.url:
        said = {"name": name, "version": here, "installed": False}
        click.echo(json.dumps(said) if as_json else f"{name} {here} is installed; nothing to do")
        return 0
    if here:
        raise UsageError(f"{name} {here} is installed; `quintain remove {name}` first")
    with tempfile.TemporaryDirectory(prefix="quintain-add-") as folder:
        scratch = Path(folder)
        sources = Sources(find_links=find_links, no_index=no_index, build=build)
        plan = make_plan(wanted, listed, sources, scratch)
        if not as_json:
            click.echo("\n".join(plan.lines()))
        if dry_run:
            if as_json:
                click.echo(json.dumps({**plan.as_data(), "installed": False}))
            return 0
        if not yes and not _agreed():
            click.echo("nothing was installed", err=True)
            return 1
        environment = carry_out(plan, sources, scratch)
    report = {**plan.as_data(), "installed": True, "environment": environment}
    click.echo(json.dumps(report) if as_json else "\n".join(_after(plan, environment)))
    return 0


def _agreed() -> bool:
    if not sys.stdin.isatty():
        raise UsageError("nobody can be asked here: add --yes or --dry-run")
    return click.confirm("Install it?")


def _after(plan: Installation, environment: str) -> list[str]:
    """Return what a person reads at the end."""
    first = plan.record.provides[0].partition(":")[2] if plan.record.provides else plan.wheel.name
    lines = [f"installed {plan.wheel.name} {plan.wheel.version}; next: quintain check {first}"]
    if environment:
        lines += [
            f"its packages are in {environment}; write into the recipe:",
            "",
            plan.recipe(),
        ]
    return lines


def carry_out(plan: Installation, sources: Sources, scratch: Path) -> str:
    """Install what a plan says, and look at it in a new process. What fails is undone.

    Returns:
        The folder of its virtual environment; empty where it needs none.

    Raises:
        InfrastructureError: pip cannot, or the virtual environment cannot be made.
        PluginError: what was installed has not the components of the plan.
    """
    from dataclasses import replace

    from .installer import install, uninstall
    from .ledger import Added, drop_environment, read_ledger, write_ledger

    near = replace(sources, find_links=(*sources.find_links, str(plan.wheel.path.parent)))
    lines = [item.pinned() for item in plan.brought]
    # A wheel that was built here from a source archive has a hash of its own.
    lines.append(plan.plugin.pinned(plan.wheel.sha256))
    environment = ""
    try:
        install(lines, near, scratch)
        _look(plan)
        if plan.requirements:
            environment = str(_own_environment(plan.requirements, sources))
        added = read_ledger()
        brought = tuple(item.name for item in plan.brought)
        added[plan.wheel.name] = Added(brought=brought, environment=environment)
        write_ledger(added)
    except BaseException:
        uninstall([item.name for item in plan.items])
        drop_environment(environment, read_ledger())
        raise
    return environment


def _own_environment(requirements: Sequence[str], sources: Sources) -> Path:
    from quintain_workers import python_with

    importlib.invalidate_caches()  # the plugin is new, and belongs to what is shared
    return python_with(requirements, options=sources.options()).parent.parent


def _look(plan: Installation) -> None:
    """Check the components of the installed plugin.

    Raises:
        PluginError: they are not those of the plan, or an environment cannot be imported without
            the packages that it has apart.
    """
    words = [plan.wheel.name, "import" if plan.conflicts else "list"]
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *words],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    lines = done.stdout.strip().splitlines()
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        fix = (
            ". Its packages are not in this process: its author has to import them in `rollout`"
            if plan.conflicts
            else ""
        )
        raise PluginError(f"{plan.wheel.name} was removed again, since it fails here: {said}{fix}")
    found = {tuple(row) for row in json.loads(lines[-1])}
    if found != plan.wheel.components:
        raise PluginError(
            f"{plan.wheel.name} was removed again: installed, it has {sorted(found)}, and its wheel "
            f"{sorted(plan.wheel.components)}"
        )
