"""``quintain-code check``: run every reference, and list the rows that cannot be used."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click

from quintain.errors import EnvironmentFault, InfrastructureError, QuintainError
from quintain_sandbox import BestSandbox

from .data import fingerprint, load
from .grading import Grader
from .tasks import ENFORCE, CodeTask


@click.group()
def main() -> None:
    """Tools for data sets of programming tasks."""


@main.command()
@click.option("--data", required=True, metavar="FILE", help="Rows: JSON lines, a folder or a data set of the hub.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="File for the rows to leave out.")
@click.option("--slots", type=click.IntRange(1), default=2, show_default=True, help="References at one time.")
@click.option("--repeat", type=click.IntRange(1), default=1, show_default=True, help="Runs of each reference.")
def check(data: str, out: Path, slots: int, repeat: int) -> None:
    """Run the reference of every row, and write those that fail, with reasons, to OUT.

    Use the file with --arg left_out=OUT, or in a recipe args = { left_out = "OUT" }. The exit status is 1 if rows are
    left out.
    """
    try:
        tasks = [
            task for split in _splits(data) for task in load(data, split, "test" if Path(data).is_file() else "own")
        ]
        faults = asyncio.run(_faults(tasks, slots, repeat))
    except QuintainError as e:
        click.echo(str(e), err=True)
        sys.exit(2)
    out.write_text(json.dumps(faults, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    for fault in faults.values():
        click.echo(f"{fault['source']}: {fault['reason']}")
    kinds = Counter(fault["reason"].partition(":")[0] for fault in faults.values())
    counted = ", ".join(f"{n} {kind}" for kind, n in kinds.items())
    click.echo(f"{len(tasks)} rows, {len(faults)} left out{f' ({counted})' if counted else ''}: {out}")
    sys.exit(1 if faults else 0)


def _splits(data: str) -> Sequence[str]:
    return ("test",) if Path(data).is_file() else ("train", "dev", "test")


async def _faults(tasks: Sequence[CodeTask], slots: int, repeat: int) -> dict[str, dict[str, str]]:
    async with BestSandbox(slots=slots, enforce=ENFORCE) as sandbox:
        grader, room = Grader(sandbox), asyncio.Semaphore(2 * slots)
        done = 0

        async def reason(task: CodeTask) -> str:
            nonlocal done
            async with room:
                found = ""
                for _ in range(repeat):
                    found = found or await _reason(grader, task)
            done += 1
            if sys.stderr.isatty():
                click.echo(f"\r{done}/{len(tasks)}", err=True, nl=done == len(tasks))
            return found

        reasons = await asyncio.gather(*map(reason, tasks))
    return {
        fingerprint(task): {"source": task.source or task.id, "reason": why}
        for task, why in zip(tasks, reasons, strict=True)
        if why
    }


async def _reason(grader: Grader, task: CodeTask) -> str:
    """Why *task* cannot be used; empty if its reference passes."""
    if not task.solution:
        return "no reference"
    for attempt in (1, 2):
        try:
            grade = await grader.once(task, task.solution)
            return "" if grade.outcome == "passed" else f"{grade.outcome}: {grade.reason}"
        except EnvironmentFault as e:
            return f"fault: {e}"
        except InfrastructureError:
            if attempt == 2:
                raise
    return ""


if __name__ == "__main__":
    main()
