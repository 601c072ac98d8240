"""`quintain tasks`: audit, build and convert task folders."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import click

from quintain.cli import json_option
from quintain.errors import UsageError

from .audit_record import SHORTCUTS

TABLE = click.option(
    "--image",
    "images",
    multiple=True,
    metavar="NAME=LOCAL",
    help="Local image for those that tasks name, such as 'python:3.*=my-python' (repeatable).",
)
BUILD_NETWORK = click.option(
    "--build-network",
    default="none",
    show_default=True,
    help="Network of the commands of Dockerfiles: none, host, or one of the engine.",
)
PULL = click.option("--pull", is_flag=True, help="The engine may fetch images from registries.")
LIMIT = click.option("--tasks", type=click.IntRange(1), help="At most so many tasks.")
DATA = click.argument("data", type=click.Path(path_type=Path))


@click.group()
def tasks() -> None:
    """Audit, build and convert task folders of Harbor and Terminal-Bench."""


@tasks.command()
@DATA
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), help="File of records (JSON lines)."
)
@click.option("--jobs", type=click.IntRange(1), default=2, show_default=True, help="Tasks at once.")
@click.option(
    "--repeats", type=click.IntRange(1), default=1, show_default=True, help="Runs of each solution."
)
@click.option(
    "--without",
    multiple=True,
    type=click.Choice(sorted(SHORTCUTS)),
    help="A way to a reward that is not tried (repeatable).",
)
@click.option(
    "--offline",
    is_flag=True,
    help="Run each solution without a network, too; one that fails and declares none, with one.",
)
@click.option("--network", default="", help="Engine's network for tasks that ask for one.")
@click.option(
    "--keep-processes",
    is_flag=True,
    help="What was left running goes on beside a verifier in the same container.",
)
@click.option(
    "--variable",
    "variables",
    multiple=True,
    metavar="NAME=VALUE",
    help="Value for ${NAME} in task files (repeatable).",
)
@click.option("--key", default="reward", show_default=True, help="Reward that counts.")
@LIMIT
@TABLE
@BUILD_NETWORK
@PULL
@json_option
def audit(
    data: Path,
    out: Path | None,
    jobs: int,
    repeats: int,
    without: Sequence[str],
    offline: bool,
    network: str,
    keep_processes: bool,
    variables: Sequence[str],
    key: str,
    tasks: int | None,
    images: Sequence[str],
    build_network: str,
    pull: bool,
    as_json: bool,
) -> int:
    """Run the solution of each task of DATA, nothing, and shortcuts; say what is wrong with it.

    DATA is a task folder, a tree of them, an archive, or a Parquet file with archives. No model
    takes part. Shortcuts are: a program that writes the reward file, tests that were edited before
    the verifier runs, the instruction or a 1 as the answer, and another task's solution. With --out
    each task has a record in a file, and a second run goes on with those that have none, that have
    changed, that were tried with other settings, or of which not all was tried. The field `audit`
    of the environment `harbor` reads the file and leaves out the tasks that are not sound.

    \b
    quintain tasks audit tasks --out audit.jsonl --image 'ubuntu:*=my-debian'
    quintain tasks audit tasks --tasks 10 --network bridge --build-network bridge

    Exit status: 0 all tasks are sound, 1 some are not, 2 the audit did not run.
    """
    from quintain_sandbox import Containers

    from .audit import Plan
    from .audit import audit as examine
    from .audit_record import AuditRecord, record_file, summary
    from .environment import tasks_folder
    from .trial import TrialSettings

    file = record_file(out) if out is not None else None
    records = file.go_on() if file else {}
    names = set()

    def found() -> Iterator[Any]:
        for folder in _folders(data, tasks_folder(""), tasks):
            names.add(folder.name)
            yield folder

    containers = Containers(
        slots=jobs,
        builds=jobs,
        images=_table("--image", images),
        pull=pull,
        build_network=build_network,
        network=network or "bridge",
    )
    plan = Plan(
        settings=TrialSettings(
            network=bool(network),
            keep_processes=keep_processes,
            variables=_table("--variable", variables),
        ),
        repeats=repeats,
        shortcuts=frozenset(SHORTCUTS) - set(without),
        offline=offline,
        key=key,
    )

    def write(record: AuditRecord) -> None:
        records[record.task] = record
        if file:
            file.append(record)
        if not as_json:
            click.echo(_line(record))

    async def run() -> None:
        # What the engine failed at may go well the next time.
        known = {name: row for name, row in records.items() if row.status != "failed"}
        async with containers:
            await examine(found(), containers, plan, write, jobs=jobs, known=known)

    asyncio.run(run())
    rows = [row for name, row in records.items() if name in names]
    counts = summary(rows)
    if as_json:
        click.echo(json.dumps(counts))
    else:
        _show(counts)
    return 0 if all(row.sound for row in rows) else 1


@tasks.command()
@DATA
@click.option(
    "--jobs", type=click.IntRange(1), default=2, show_default=True, help="Builds at once."
)
@LIMIT
@TABLE
@BUILD_NETWORK
@PULL
def build(
    data: Path,
    jobs: int,
    tasks: int | None,
    images: Sequence[str],
    build_network: str,
    pull: bool,
) -> int:
    """Build the images of all tasks of DATA, so that no episode waits for one.

    Exit status: 0 all are built, 1 some cannot be, 2 nothing ran.
    """
    from quintain_sandbox import BuildError, Containers

    from .environment import tasks_folder

    failed = 0

    async def run() -> None:
        nonlocal failed
        waiting = _folders(data, tasks_folder(""), tasks)
        async with Containers(
            builds=jobs, images=_table("--image", images), pull=pull, build_network=build_network
        ) as containers:

            async def work() -> None:
                nonlocal failed
                for folder in waiting:
                    try:
                        folder.check()
                        await containers.image(folder.image())
                    except (UsageError, BuildError) as e:
                        failed += 1
                        click.echo(f"{folder.name}: {e}", err=True)

            await asyncio.gather(*(work() for _ in range(jobs)))
            click.echo(f"{containers.built} images built, {failed} tasks without one")

    asyncio.run(run())
    return 1 if failed else 0


@tasks.command()
@click.argument("old", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("new", type=click.Path(path_type=Path))
def convert(old: Path, new: Path) -> int:
    """Write the tasks of the first Terminal-Bench at and below OLD as folders of Harbor below NEW.

    Exit status: 0 all are written, 1 some cannot be, 2 nothing ran.
    """
    from .folder import OLD_CONFIG, folders
    from .terminal_bench import convert as write

    if new.exists():
        raise UsageError(f"{new} exists; name a new folder")
    written = failed = 0
    for folder in folders(old):
        if not (folder.path / OLD_CONFIG).is_file():
            continue
        try:
            write(folder.path, new if folder.path == old else new / folder.name)
            written += 1
        except UsageError as e:
            failed += 1
            click.echo(f"{folder.name}: {e}", err=True)
    click.echo(f"{written} tasks written to {new}, {failed} not")
    return 1 if failed else 0


FIELDS = click.option(
    "--arg",
    "-a",
    "args",
    multiple=True,
    metavar="KEY=VALUE",
    help="Field of the environment (repeatable).",
)
SPLIT = click.option("--split", default="train", show_default=True, help="Split of the tasks.")


@tasks.command()
@click.argument("environment")
@click.argument("out", metavar="DIR", type=click.Path(path_type=Path))
@FIELDS
@SPLIT
@LIMIT
@click.option("--image", default="", help="Image that has Python and what the reward needs.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def export(
    environment: str,
    out: Path,
    args: Sequence[str],
    split: str,
    tasks: int | None,
    image: str,
    as_json: bool,
) -> None:
    """Write the tasks of ENVIRONMENT, which has one turn, as folders of Harbor's format in DIR.

    Each folder has an instruction, a Dockerfile, a solution, and a verifier that is the
    environment's own reward. Every reader of the format runs them.

    \b
    quintain tasks export arithmetic tasks --split test --tasks 100
    """
    from .export import export_tasks

    _check_out(out)
    report = export_tasks(
        environment, out, args=_fields(args), split=split, tasks=tasks, image=image
    )
    _show_export(report, out, "images install", as_json)


@tasks.command()
@click.argument("environment")
@click.argument("out", metavar="DIR", type=click.Path(path_type=Path))
@FIELDS
@SPLIT
@LIMIT
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def lines(
    environment: str,
    out: Path,
    args: Sequence[str],
    split: str,
    tasks: int | None,
    as_json: bool,
) -> None:
    """Write the tasks of ENVIRONMENT to tasks.jsonl in DIR, with the scorer that its lines name.

    \b
    quintain tasks lines arithmetic tasks --split test
    """
    from .lines import export_lines

    _check_out(out)
    report = export_lines(environment, out, args=_fields(args), split=split, tasks=tasks)
    _show_export(report, out, "scorer needs", as_json)


def _fields(pairs: Sequence[str]) -> dict[str, Any]:
    """Return the fields that ``KEY=VALUE`` set."""
    from quintain.recipe import parsed_override

    overrides = [parsed_override(pair) for pair in pairs]
    return {override.path[0]: override.value for override in overrides}


def _check_out(out: Path) -> None:
    """Check that a folder can be written at *out*.

    Raises:
        UsageError: there is something.
    """
    if out.is_symlink() or (out.exists() and not (out.is_dir() and not any(out.iterdir()))):
        raise UsageError(f"{out} exists; name a new folder, or remove it first")


def _show_export(report: dict[str, Any], out: Path, user: str, as_json: bool) -> None:
    needs = ", ".join(report["requirements"]) or "nothing"
    text = f"wrote {report['tasks']} tasks to {out}; their {user} {needs}"
    click.echo(json.dumps(report) if as_json else text)


def _folders(data: Path, cache: Path, tasks: int | None) -> Iterator[Any]:
    from .archives import task_folders

    return islice(task_folders(data, cache), tasks)


def _table(option: str, pairs: Sequence[str]) -> dict[str, str]:
    table = {}
    for text in pairs:
        name, sign, value = text.partition("=")
        if not (name and sign and value):
            raise UsageError(f"{option} {text!r}: expected NAME=VALUE")
        table[name] = value
    return table


def _line(record: Any) -> str:
    if record.status != "played":
        return f"{record.task}: {record.status}: {record.reason}"
    state = {True: "sound", None: "no solution", False: "not sound"}[record.sound]
    rewards = f"solution {record.oracle}, nothing {record.nop}"
    return f"{record.task}: {state}; {rewards}" + "".join(
        f"\n  {kind}: {' '.join(seen.split())[:200]}" for kind, seen in record.defects.items()
    )


def _show(counts: dict[str, Any]) -> None:
    click.echo(
        f"{counts['tasks']} tasks, {counts['sound']} sound; {counts['with_solution']} with a "
        f"solution that ran, {counts['oracle_1']} of them with reward 1; nothing has 0 in "
        f"{counts['nop_0']}"
    )
    for kind, number in {**counts["status"], **counts["defects"]}.items():
        click.echo(f"{number:6} {kind}")
