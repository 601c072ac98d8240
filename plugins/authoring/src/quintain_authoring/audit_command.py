"""`quintain check NAME --audit FILE`: the audit of an environment's tasks on the command line."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, redirect_stdout
from itertools import islice
from pathlib import Path
from typing import Any

import click

from quintain import Environment, Task
from quintain.errors import UsageError
from quintain.interfaces import yielded
from quintain.recipe import EnvironmentSpec, EnvironmentTable
from quintain.registry import Component, bind, current, signature_of
from quintain.services import Choice

from .audit import Audited, audit, by_field
from .checks import opened_for_check
from .guard import Output, ended_after
from .options import services_of
from .task_record import TaskRecord, record_file, summary, table

EPISODE = 10
"""Calls of the longest allowed length after which an episode is ended."""


def audited(
    component: Component,
    args: Mapping[str, Any],
    services: Mapping[str, Choice],
    file: Path,
    *,
    split: str,
    tasks: int,
    jobs: int,
    repeats: int,
    by: str,
    seconds: float,
    as_json: bool,
) -> int:
    """Audit the first *tasks* tasks of *split*, add to *file* what it does not have, and print a
    table; 0 if all tasks are sound, else 1.

    Raises:
        UsageError: it is no environment, *file* is no file of an audit, or the split has no task.
    """
    loaded = current().resolve(component)
    if not (isinstance(loaded, type) and issubclass(loaded, Environment)):
        raise UsageError(f"--audit is for environments; {component.name!r} is {component.kind}")
    spec = EnvironmentSpec.of(
        EnvironmentTable(use=component.name if ":" in component.name else component.id)
    )
    slots = {need.slot for need in signature_of(loaded).needs} | spec.slots
    if current().matching("workers", "service"):
        services = {**services_of(["workers=workers"], []), **services}

    def build(started: Mapping[str, Any]) -> Environment[Any, Any]:
        built: Environment[Any, Any] = bind(loaded, args, started, who="the environment")
        return built

    def opened() -> AbstractAsyncContextManager[Mapping[str, Any]]:
        return opened_for_check(services, slots)

    lines = record_file(file)
    records = lines.go_on()

    def write(record: TaskRecord) -> None:
        records[record.task] = record
        lines.append(record)
        if not as_json and not record.sound:
            said = "; ".join(f"{kind}: {seen}" for kind, seen in record.defects.items())
            click.echo(f"{record.group} {record.task}: {said}".strip(), file=screen)

    screen = sys.stdout
    with redirect_stdout(Output()):
        chosen = _tasks(build, opened, split, tasks)
    with redirect_stdout(Output()), ended_after(seconds):
        audit(
            Audited(
                name=component.name.rpartition(":")[2],
                build=build,
                services=opened,
                tasks=chosen,
                groups=by_field(chosen.values(), by),
                repeats=repeats,
                args=args,
                seconds=EPISODE * seconds,
            ),
            records,
            write,
            jobs=jobs,
        )
    rows = [records[name] for name in chosen]
    groups = summary(rows)
    click.echo(json.dumps(groups) if as_json else table(groups), nl=as_json)
    return 0 if all(row.sound for row in rows) else 1


def _tasks(
    build: Callable[[Mapping[str, Any]], Environment[Any, Any]],
    opened: Callable[[], AbstractAsyncContextManager[Mapping[str, Any]]],
    split: str,
    count: int,
) -> dict[str, Task]:
    async def read() -> list[Task]:
        async with opened() as started:
            return list(islice(yielded(build(started), "tasks", split), count))

    found = asyncio.run(read())
    if not found:
        raise UsageError(f"the split {split!r} has no tasks; choose another with --split")
    return {task.id: task for task in found}
