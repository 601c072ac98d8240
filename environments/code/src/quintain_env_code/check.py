"""``quintain-code check``: run every reference, and list the rows that cannot be used."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from quintain.errors import EnvironmentFault, InfrastructureError, QuintainError, UsageError
from quintain_sandbox import BestSandbox

from .contests import UnsupportedRow
from .data import SPLITS, checked, fingerprint, rows_of
from .grading import Grader
from .rows import task_of
from .tasks import ENFORCE, CodeTask


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Why a row cannot be used.

    Attributes:
        row: file and line, or data set and index.
        outcome: of the reference: ``failed``, ``timeout`` and so on; ``no reference``; ``fault`` of
            the tests; ``unsupported``, which every data set loads without; or ``unreadable``, which
            no list of rows to leave out can help.
        fingerprint: of the task; empty for an unsupported or unreadable row.
    """

    row: str
    source: str
    outcome: str
    reason: str
    fingerprint: str = ""


@click.group()
def main() -> None:
    """Tools for data sets of programming tasks: `quintain-code check --help`."""


@main.command()
@click.option(
    "--data",
    required=True,
    metavar="FILE",
    help="JSON lines, a folder with train.jsonl or test.jsonl, or a hub name.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the rows to leave out to this file.",
)
@click.option(
    "--slots", type=click.IntRange(1), default=2, show_default=True, help="References at one time."
)
@click.option(
    "--repeat", type=click.IntRange(1), default=1, show_default=True, help="Runs of each reference."
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object: rows, usable, left_out."
)
def check(data: str, out: Path | None, slots: int, repeat: int, as_json: bool) -> None:
    """Run the reference of every row, and list the rows that cannot be used, with file, line and
    reason.

    A row is listed if it is unreadable or not supported, has no reference, or its reference does
    not pass its own tests. References run in the best sandbox of this machine.

    \b
    quintain-code check --data rows.jsonl                      print a table
    quintain-code check --data rows.jsonl --json               the same for programs
    quintain-code check --data rows.jsonl --out left-out.json  and leave these rows out of an evaluation:
    quintain eval code --data rows.jsonl --arg left_out=left-out.json

    In a recipe: args = { data = "rows.jsonl", left_out = "left-out.json" }.

    Exit status: 0 all rows can be used, 1 some cannot, 2 the check did not run (no data, no
    sandbox).
    """
    try:
        if out is not None and not out.absolute().parent.is_dir():
            raise UsageError(
                f"--out {str(out)!r}: there is no folder {str(out.absolute().parent)!r}; make it "
                f"first"
            )
        tasks, faults = _read(data)
        faults += asyncio.run(_faults(tasks, slots, repeat)) if tasks else []
    except QuintainError as e:
        click.echo(f"error: {e}", err=True)
        sys.exit(2)
    total = len(tasks) + sum(not fault.fingerprint for fault in faults)
    if out is not None:
        listed = {
            f.fingerprint: {"source": f.source, "reason": _said(f)} for f in faults if f.fingerprint
        }
        out.write_text(json.dumps(listed, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    if as_json:
        rows = [fault.__dict__ for fault in faults]
        click.echo(
            json.dumps(
                {"data": data, "rows": total, "usable": total - len(faults), "left_out": rows},
                indent=2,
            )
        )
    else:
        _show(faults, total, out)
    sys.exit(1 if faults else 0)


def _said(fault: Fault) -> str:
    return f"{fault.outcome}: {fault.reason}" if fault.reason else fault.outcome


def _show(faults: Sequence[Fault], total: int, out: Path | None) -> None:
    if faults:
        head = ("row", "outcome", "source", "reason")
        lines = [
            head,
            *((f.row, f.outcome, f.source, " ".join(f.reason.split())[:200]) for f in faults),
        ]
        widths = [max(len(line[column]) for line in lines) for column in range(3)]
        for line in lines:
            cells = [cell.ljust(width) for cell, width in zip(line[:3], widths, strict=True)]
            click.echo("  ".join([*cells, line[3]]).rstrip())
        click.echo()
    counted = ", ".join(
        f"{n} {kind}" for kind, n in Counter(fault.outcome for fault in faults).items()
    )
    click.echo(
        f"{total} rows, {total - len(faults)} can be used, {len(faults)} left "
        f"out{counted and f' ({counted})'}"
    )
    unreadable = [fault for fault in faults if fault.outcome == "unreadable"]
    if unreadable:
        click.echo(
            f"correct or remove the {len(unreadable)} unreadable rows: no data set with them loads"
        )
    if out is not None:
        click.echo(f"written to {out}; use it with --arg left_out={out}")
    elif any(fault.fingerprint for fault in faults):
        click.echo(
            "leave the others out: --out FILE here, then --arg left_out=FILE with `quintain eval "
            "code`"
        )


def _read(data: str) -> tuple[list[tuple[CodeTask, str]], list[Fault]]:
    """Return the tasks with their places, and the rows that are none; a repeated task counts once.

    Raises:
        UsageError: there is no such data, or no row in it.
    """
    path = Path(checked(data))
    splits: Sequence[str] = ("test",) if path.is_file() else SPLITS
    if path.is_dir():
        splits = [split for split in SPLITS if (path / f"{split}.jsonl").is_file()]
        if not splits:
            raise UsageError(
                f"the folder {data!r} has none of {', '.join(f'{split}.jsonl' for split in SPLITS)}"
            )
    tasks: dict[str, tuple[CodeTask, str]] = {}
    faults = []
    for split in splits:
        for row, where in rows_of(data, split, "test" if path.is_file() else "own"):
            try:
                task = task_of(row, where, written=path.exists())
            except UsageError as e:
                reason = str(e).removeprefix(f"{where}: ").removeprefix(f"{where} ")
                outcome = "unsupported" if isinstance(e, UnsupportedRow) else "unreadable"
                faults.append(Fault(row=where, source="", outcome=outcome, reason=reason))
                continue
            tasks.setdefault(fingerprint(task), (task, where))
    if not tasks and not faults:
        raise UsageError(f"{data!r} has no rows")
    return list(tasks.values()), faults


async def _faults(tasks: Sequence[tuple[CodeTask, str]], slots: int, repeat: int) -> list[Fault]:
    """Return what is wrong with *tasks*, given with their places: each reference runs *repeat*
    times, or up to its first failure.
    """
    # Twice the slots, so that a task is prepared while others run.
    async with BestSandbox(slots=slots, enforce=ENFORCE) as sandbox:
        grader, room = Grader(sandbox), asyncio.Semaphore(2 * slots)
        done = 0

        async def fault(task: CodeTask, where: str) -> Fault | None:
            nonlocal done
            outcome, reason = "", ""
            async with room:
                for _ in range(repeat):
                    if not outcome:
                        outcome, reason = await _outcome(grader, task)
            done += 1
            if sys.stderr.isatty():
                click.echo(f"\r{done}/{len(tasks)}", err=True, nl=done == len(tasks))
            if not outcome:
                return None
            source = task.source or task.id
            return Fault(
                row=where,
                source=source,
                outcome=outcome,
                reason=reason,
                fingerprint=fingerprint(task),
            )

        return [
            found
            for found in await asyncio.gather(*(fault(*task) for task in tasks))
            if found is not None
        ]


async def _outcome(grader: Grader, task: CodeTask) -> tuple[str, str]:
    """Return why *task* cannot be used, as outcome and reason; empty if its reference passes."""
    if not task.solution:
        return "no reference", ""
    for attempt in (1, 2):
        try:
            grade = await grader.once(task, task.solution)
            if grade.outcome == "passed":
                return "", ""
            await grader.check_sandbox(task)
            return grade.outcome, grade.reason
        except EnvironmentFault as e:
            return "fault", str(e)
        except InfrastructureError:
            if attempt == 2:
                raise
    return "", ""


if __name__ == "__main__":
    main()
