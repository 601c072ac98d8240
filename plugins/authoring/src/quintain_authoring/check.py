"""`quintain check`: the conformance suite of a component on the command line."""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from quintain.cli import Count, json_option
from quintain.errors import UnknownNameError, UsageError
from quintain.registry import KINDS as GROUPS
from quintain.registry import Component, current, other_signature, without_components
from quintain.tracebacks import defined_at

from .options import service_options, services_of

KINDS = ("environment", "reward", "algorithm", "hooks", "service")
OTHER_KINDS = tuple(kind for kind in GROUPS.values() if kind not in KINDS)
"""Kinds of which the import and the manifest are checked. A name that also has one of `KINDS` is of
that kind.
"""
COLOURS = {"ok": "green", "failed": "red", "skipped": "dim", "warning": "magenta"}


@click.command()
@click.argument("name")
@click.option(
    "--kind", type=click.Choice([*KINDS, *OTHER_KINDS]), help="Kind of NAME, if it has several."
)
@click.option(
    "--arg",
    "-a",
    "args",
    multiple=True,
    metavar="KEY=VALUE",
    help="Field of the component (repeatable).",
)
@service_options
@click.option(
    "--env",
    "-e",
    help="For a reward: the environment whose rollouts it scores.  [default: invented rollouts]",
)
@click.option(
    "--tasks",
    type=Count(1),
    default=100,
    show_default=True,
    help="Tasks of each split that are read.",
)
@click.option(
    "--episodes",
    type=Count(1),
    default=32,
    show_default=True,
    help="Tasks that are played; two at once each.",
)
@click.option(
    "--seconds",
    type=float,
    default=60.0,
    show_default=True,
    help="Longest time that one call of the code may block.",
)
@click.option(
    "--stateful", is_flag=True, help="The scores of a reward change from call to call, on purpose."
)
@click.option(
    "--audit",
    "audit_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Instead of the suite: try each task of an environment; a line of this file for each.",
)
@click.option("--jobs", type=Count(1), default=1, show_default=True, help="Audit: tasks at once.")
@click.option(
    "--repeats", type=Count(1), default=5, show_default=True, help="Audit: runs of each solution."
)
@click.option("--split", default="train", show_default=True, help="Audit: the tasks' split.")
@click.option("--by", default="", metavar="FIELD", help="Audit: field of a task to count by.")
@json_option
def check(
    name: str,
    kind: str | None,
    args: Sequence[str],
    services: Sequence[str],
    service_args: Sequence[str],
    env: str | None,
    tasks: int,
    episodes: int,
    seconds: float,
    stateful: bool,
    audit_file: Path | None,
    jobs: int,
    repeats: int,
    split: str,
    by: str,
    as_json: bool,
) -> int:
    """Check the component NAME: an installed one, module:Attribute or path/to/file.py:Attribute.

    Of each kind: its manifest, and descriptions that are stale. Of an environment: its class, tasks
    (repeatable, also in another process, unique, disjoint, stored unchanged), controls, odd
    replies, stored rollouts, repeatable episodes, 64 concurrent episodes, demonstrations,
    replies that may exploit its reward, what one reply earns on all tasks, and a shaping that
    repeats the outcome. Of a reward: scores that repeat and stay in range. Of an
    algorithm: finite advantages and gradients. Of hooks: signatures. Of a service: it starts, and
    its state survives a checkpoint. What the code prints is counted, and a call that does not
    return is ended.

    With --audit each of the first --tasks tasks of an environment is tried on its own: its
    solution, five times; an empty reply; the prompt; replies that do not look at the task; the
    solution of another task. The file has a line for each, and a second call goes on where the
    first one ended. `plan.difficulty_file` of a recipe leaves out what is not sound.

    Exit status: 0 if all checks pass, 1 if one fails, 2 if there is nothing to check.

    \b
    quintain check arithmetic
    quintain check mine.py:Mine --arg letters=5
    quintain check math_equal --env arithmetic
    quintain check reasoning_gym --arg data_sets=all --audit audit.jsonl --tasks 1000 --by data_set
    """
    from rich.console import Console

    from .checks import Check
    from .guard import Output, Stuck, ended_after

    if audit_file is not None:
        from .audit_command import audited

        component = find(name, kind)
        return audited(
            component,
            fields(args),
            services_of(services, service_args),
            audit_file,
            split=split,
            tasks=tasks,
            jobs=jobs,
            repeats=repeats,
            by=by,
            seconds=seconds,
            as_json=as_json,
        )
    console, output = Console(file=sys.stdout, soft_wrap=True, highlight=False), Output()
    done: list[Check] = []
    kind_found = kind or ""

    def add(row: Check) -> None:
        done.append(row)
        if not as_json:
            show(console, row)

    with redirect_stdout(output):
        try:
            with ended_after(seconds):
                component = find(name, kind)
                kind_found = component.kind
                refuse_options(component, args, env, stateful)
                if not as_json:
                    console.print(Text(f"{component.kind} {name}", style="bold"))
                for row in rows_of(
                    component,
                    args,
                    services_of(services, service_args),
                    env,
                    tasks,
                    episodes,
                    stateful,
                ):
                    add(row)
        except Stuck as e:
            add(Check(name=e.row, status="failed", message=str(e)))
            add(
                Check(
                    name="all other checks",
                    status="skipped",
                    message="the code has to return first",
                )
            )
        if printed := output.report():
            add(Check(name="output", status="warning", message=printed))
    failed = any(row.status == "failed" for row in done)
    if as_json:
        report = {
            "ok": not failed,
            "kind": kind_found,
            "name": name,
            "checks": [asdict(row) for row in done],
        }
        click.echo(json.dumps(report, indent=2))
    else:
        counts = (
            (s, sum(row.status == s for row in done))
            for s in ("ok", "failed", "warning", "skipped")
        )
        console.print(", ".join(f"{n} {status}" for status, n in counts if n))
    return 1 if failed else 0


def refuse_options(
    component: Component, args: Sequence[str], env: str | None, stateful: bool
) -> None:
    """Refuse options that the kind of *component* has no use for."""
    of_kind = f"{component.name!r} is of the kind {component.kind}"
    if component.kind != "reward" and (env is not None or stateful):
        raise UsageError(f"--env and --stateful are for rewards; {of_kind}")
    if component.kind not in ("environment", "reward", "service") and args:
        raise UsageError(f"--arg is for environments, rewards and services; {of_kind}")


def rows_of(
    component: Component,
    args: Sequence[str],
    services: Mapping[str, Any],
    env: str | None,
    tasks: int,
    episodes: int,
    stateful: bool,
) -> Iterator[Any]:
    """Yield the results of the checks of *component*, each as soon as it is known."""
    from .checks import (
        check_algorithm,
        check_environment,
        check_hooks,
        check_manifest,
        check_reward,
    )
    from .service_checks import check_service

    settings = fields(args)
    yield from check_manifest(component)
    if component.kind == "environment":
        yield from check_environment(component, settings, services, tasks=tasks, episodes=episodes)
    elif component.kind == "reward":
        yield from check_reward(
            component, settings, services, environment=env, episodes=episodes, stateful=stateful
        )
    elif component.kind == "algorithm":
        yield from check_algorithm(component)
    elif component.kind == "hooks":
        yield from check_hooks(component)
    elif component.kind == "service":
        yield from check_service(component, args, services)


def find(name: str, kind: str | None) -> Component:
    """Return the component called *name*; the kind of one in a file or module follows from its
    object.

    Raises:
        UnknownNameError: there is none.
        UsageError: several kinds have the name, or the object is none that can be checked.
    """
    registry = current()
    if ":" in name:
        component = registry.find(kind or "environment", name)
        return Component(
            kind=kind or kind_of(registry.resolve(component), name),
            name=name,
            target=name,
            origin="local",
        )
    for kinds in (KINDS[:4], (*KINDS[4:], *OTHER_KINDS)) if kind is None else ((kind,),):
        matches = [k for k in kinds if registry.matching(name, k)]
        if len(matches) > 1:
            raise UsageError(f"{name!r} is of the kinds {', '.join(matches)}; choose with --kind")
        if matches or kind:
            return registry.find(kind or matches[0], name)
    if undeclared := without_components(name):
        raise UnknownNameError(undeclared)
    if name.endswith(".py") and Path(name).is_file():
        tree = ast.parse(Path(name).read_text(encoding="utf-8"))
        defined = [
            f"{name}:{node.name}"
            for node in tree.body
            if isinstance(node, ast.ClassDef)
            or (isinstance(node, ast.FunctionDef) and node.decorator_list)
        ]
        inside = f": {', '.join(defined)}" if defined else f", such as {name}:NAME"
        raise UsageError(f"{name} is a file; name the component in it{inside}")
    known = [c.name for c in registry.components()]
    hint = (
        "Install its distribution first (pip install -e .); `quintain doctor` names faults in one"
    )
    raise UnknownNameError.of("component", name, known, hint)


def kind_of(value: Any, name: str) -> str:
    """Return the kind of an object in a file or module."""
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
    fix = ""
    if isinstance(value, FunctionType):
        other = other_signature(value)
        fix = (
            f"; {other}"
            if other
            else (
                f"; if it is a reward, write `@reward` above its `def`, or use it as it is: --reward "
                f"{name}"
            )
        )
    elif isinstance(value, type):
        fix = f"; if it is an environment, write `class {value.__name__}(Environment)`"
    kinds = "an environment, a reward, an algorithm, a service or hooks"
    raise UsageError(
        f"{name!r} ({defined_at(value)}) is a {type(value).__name__}; expected {kinds}{fix}"
    )


def fields(pairs: Sequence[str]) -> dict[str, Any]:
    """Parse ``key=value`` options; a value is TOML, or plain text."""
    from quintain.recipe import parsed_override

    values: dict[str, Any] = {}
    for pair in pairs:
        (key, *rest), value, _ = parsed_override(pair)
        if rest:
            raise UsageError(f"--arg {pair!r}: expected KEY=VALUE without a dot in the key")
        values[key] = value
    return values


def show(console: Any, row: Any) -> None:
    """Print the line of a check, and its message if it did not pass."""
    line = Text.assemble((f"{row.status:8}", COLOURS[row.status]), f" {row.name}")
    if row.seconds >= 0.1:
        line.append(f"  {row.seconds:.1f} s", style="dim")
    console.print(line)
    for text in row.message.splitlines():
        console.print(Text(f"         {text}", style=COLOURS[row.status]))
