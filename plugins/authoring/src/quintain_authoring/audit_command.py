"""`quintain check NAME --audit FILE`: the audit of an environment's tasks on the command line."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, redirect_stdout
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import click

from quintain import Environment, Task
from quintain.errors import UsageError
from quintain.interfaces import yielded
from quintain.registry import Component, bind, current
from quintain.services import Choice

from .audit import Audited, audit, by_field
from .checks import opened_for_environment, spec_of
from .guard import Output, Stuck, ended_after
from .source_digest import source_digest
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
    opened = partial(opened_for_environment, loaded, spec_of(component), services)

    def build(started: Mapping[str, Any]) -> Environment[Any, Any]:
        built: Environment[Any, Any] = bind(loaded, args, started, who="the environment")
        return built

    lines = record_file(file)
    records = lines.go_on()

    def write(record: TaskRecord) -> None:
        records[record.task] = record
        lines.append(record)
        if not as_json and not record.sound:
            said = "; ".join(f"{kind}: {seen}" for kind, seen in record.defects.items())
            click.echo(f"{record.group} {record.task}: {said}".strip(), file=screen)

    screen = sys.stdout
    with redirect_stdout(Output()), ended_after(seconds):
        chosen = _tasks(build, opened, split, tasks)
        groups = by_field(chosen.values(), by)
        audit(
            Audited(
                name=component.name.rpartition(":")[2],
                build=build,
                services=opened,
                tasks=chosen,
                groups=groups,
                repeats=repeats,
                args=args,
                code=source_digest(loaded),
                seconds=EPISODE * seconds,
            ),
            records,
            write,
            jobs=jobs,
        )
    # A record that was there may be of another --by.
    rows = [replace(records[name], group=group) for name, group in groups.items()]
    counts = summary(rows)
    click.echo(json.dumps(counts) if as_json else table(counts), nl=as_json)
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

    try:
        found = asyncio.run(read())
    except Stuck as e:
        raise UsageError(f"the tasks of {split!r} cannot be read: {e}") from e
    if not found:
        raise UsageError(f"the split {split!r} has no tasks; choose another with --split")
    return {task.id: task for task in found}
