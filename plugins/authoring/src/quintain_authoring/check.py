"""`quintain check`: the conformance suite of a component on the command line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from quintain.cli import Component, Count, current, services_of
from quintain.errors import UnknownNameError, UsageError

KINDS = ("environment", "reward", "algorithm", "hooks", "service")
OTHER_KINDS = ("engine", "learner", "curriculum", "model", "schedule", "tool_format", "command")
"""Kinds of which the import and the manifest are checked. A name that also has one of `KINDS` is of that kind."""
COLOURS = {"ok": "green", "failed": "red", "skipped": "dim", "warning": "magenta"}


class Checker(click.Command):
    """The command; Quintain calls `check_class` for each environment that a command uses."""

    @staticmethod
    def check_class(component: Any) -> None:
        """See `class_checks.check_class`."""
        from .class_checks import check_class

        check_class(component)


@click.command(cls=Checker)
@click.argument("name")
@click.option("--kind", type=click.Choice([*KINDS, *OTHER_KINDS]), help="Kind of NAME, if it has several.")
@click.option("--arg", "-a", "args", multiple=True, metavar="KEY=VALUE", help="Field of the component (repeatable).")
@click.option("--service", "services", multiple=True, metavar="SLOT=NAME", help="Service of a slot (repeatable).")
@click.option("--service-arg", "service_args", multiple=True, metavar="SLOT.KEY=VALUE", help="Setting of a service.")
@click.option(
    "--env", "-e", help="For a reward: the environment whose rollouts it scores.  [default: invented rollouts]"
)
@click.option("--tasks", type=Count(1), default=100, show_default=True, help="Tasks of each split that are read.")
@click.option(
    "--episodes", type=Count(1), default=32, show_default=True, help="Tasks that are played; two at once each."
)
@click.option("--stateful", is_flag=True, help="The scores of a reward change from call to call, on purpose.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def check(
    name: str,
    kind: str | None,
    args: Sequence[str],
    services: Sequence[str],
    service_args: Sequence[str],
    env: str | None,
    tasks: int,
    episodes: int,
    stateful: bool,
    as_json: bool,
) -> int:
    """Check the component NAME: an installed one, module:Attribute or path/to/file.py:Attribute.

    Of each kind: its manifest, and descriptions that are stale. Of an environment: its class, tasks (repeatable, also
    in another process, unique, disjoint, stored unchanged), controls, odd replies, stored rollouts, repeatable
    episodes, 64 concurrent episodes, demonstrations, and replies that may exploit its reward. Of a reward: scores that
    repeat and stay in range. Of an algorithm: finite advantages and gradients. Of hooks: signatures. Of a service: it
    starts, and its state survives a checkpoint. Exit status: 0 if all checks pass, 1 if one fails, 2 if there is
    nothing to check.

    \b
    quintain check arithmetic
    quintain check mine.py:Mine --arg letters=5
    quintain check math_equal --env arithmetic
    """
    from .checks import check_algorithm, check_environment, check_hooks, check_manifest, check_reward
    from .service_checks import check_service

    component = find(name, kind)
    settings = fields(args)
    if component.kind != "reward" and (env is not None or stateful):
        raise UsageError(f"--env and --stateful are for rewards; {name!r} is of the kind {component.kind}")
    if component.kind not in ("environment", "reward", "service") and settings:
        raise UsageError(f"--arg is for environments, rewards and services; {name!r} is of the kind {component.kind}")
    rows = check_manifest(component)
    chosen = services_of(services, service_args)
    if component.kind == "environment":
        rows += check_environment(component, settings, chosen, tasks=tasks, episodes=episodes)
    elif component.kind == "reward":
        rows += check_reward(component, settings, chosen, environment=env, episodes=episodes, stateful=stateful)
    elif component.kind == "algorithm":
        rows += check_algorithm(component)
    elif component.kind == "hooks":
        rows += check_hooks(component)
    elif component.kind == "service":
        rows += check_service(component, args, chosen)
    failed = [row for row in rows if row.status == "failed"]
    if as_json:
        report = {"ok": not failed, "kind": component.kind, "name": name, "checks": [asdict(row) for row in rows]}
        click.echo(json.dumps(report, indent=2))
    else:
        show(f"{component.kind} {name}", rows)
    return 1 if failed else 0


def find(name: str, kind: str | None) -> Component:
    """The component called *name*; the kind of one in a file or module follows from its object.

    Raises:
        UnknownNameError: there is none.
        UsageError: several kinds have the name, or the object is none that can be checked.
    """
    registry = current()
    if ":" in name:
        found = registry.find(kind or "environment", name)
        return Component(kind=kind or kind_of(registry.resolve(found), name), name=name, target=name, origin="local")
    for kinds in (KINDS[:4], (*KINDS[4:], *OTHER_KINDS)) if kind is None else ((kind,),):
        matches = [k for k in kinds if registry.matching(name, k)]
        if len(matches) > 1:
            raise UsageError(f"{name!r} is of the kinds {', '.join(matches)}; choose with --kind")
        if matches or kind:
            return registry.find(kind or matches[0], name)
    known = [c.name for c in registry.components()]
    hint = "Install its distribution first (pip install -e .); `quintain doctor` names faults in one"
    raise UnknownNameError.of("component", name, known, hint)


def kind_of(value: Any, name: str) -> str:
    """The kind of an object in a file or module."""
    from types import FunctionType, ModuleType

    from quintain import Algorithm, Environment, Reward, Service

    for kind, base in (("environment", Environment), ("service", Service)):
        if isinstance(value, type) and issubclass(value, base):
            return kind
    for kind, types in (("reward", Reward), ("algorithm", Algorithm), ("hooks", ModuleType)):
        if isinstance(value, types):
            return kind
    if any(name.startswith("quintain_on_") for name in dir(value)):  # a tracker
        return "hooks"
    fix = "; if it is a reward, write `@reward` above its `def`" if isinstance(value, FunctionType) else ""
    kinds = "an environment, a reward, an algorithm, a service or hooks"
    raise UsageError(f"{name!r} is a {type(value).__name__}; expected {kinds}{fix}")


def fields(pairs: Sequence[str]) -> dict[str, Any]:
    """Parse ``key=value`` options; a value is TOML, or plain text."""
    from quintain.training import override

    values: dict[str, Any] = {}
    for pair in pairs:
        (key, *rest), value, _ = override(pair)
        if rest:
            raise UsageError(f"--arg {pair!r}: expected KEY=VALUE without a dot in the key")
        values[key] = value
    return values


def show(title: str, rows: Sequence[Any]) -> None:
    """Print a line per check, and the message of each that did not pass."""
    from rich.console import Console
    from rich.text import Text

    console = Console(soft_wrap=True, highlight=False)
    console.print(Text(title, style="bold"))
    for row in rows:
        line = Text.assemble((f"{row.status:8}", COLOURS[row.status]), f" {row.name}")
        if row.seconds >= 0.1:
            line.append(f"  {row.seconds:.1f} s", style="dim")
        console.print(line)
        for text in row.message.splitlines():
            console.print(Text(f"         {text}", style=COLOURS[row.status]))
    counts = ((status, sum(row.status == status for row in rows)) for status in ("ok", "failed", "warning", "skipped"))
    console.print(", ".join(f"{n} {status}" for status, n in counts if n))
