"""`quintain pass-rates`: the pass rate of each task from rollouts, for the difficulty filter."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

from quintain.cli import json_option


@click.command("pass-rates")
@click.argument("rollouts", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), help="Write the rates to FILE.jsonl."
)
@json_option
def pass_rates(rollouts: Sequence[Path], out: Path | None, as_json: bool) -> None:
    """Count how often each task was solved in ROLLOUTS: files of `quintain eval --out`, or folders
    of runs.

    It prints the number of tasks by pass rate and level. A file of rates keeps easy and hopeless
    tasks out:

    \b
    quintain eval arithmetic --model RUN --split train --tasks 500 --samples 8 --out rollouts.parquet
    quintain pass-rates rollouts.parquet --out rates.jsonl
    quintain train --model RUN --set 'algorithm.args.plan={difficulty_file="rates.jsonl", difficulty_range=[0.1, 0.9]}'
    """
    from quintain.console import printable
    from quintain.store import write_atomically

    from .pass_rates import count_rollouts, histogram, write_pass_rates

    rates = list(count_rollouts(rollouts).values())
    if out is not None:
        write_atomically(out, write_pass_rates(rates))
    levels = sorted({rate.level for rate in rates if rate.level is not None})
    by_level = {
        f"level {level:g}": [rate for rate in rates if rate.level == level] for level in levels
    }
    groups = {"all": rates, **(by_level if len(levels) > 1 else {})}
    summary = {
        name: {
            "tasks": len(some),
            "samples": sum(rate.tried for rate in some),
            "pass@1": sum(rate.rate for rate in some) / len(some),
            "solved once": sum(rate.right > 0 for rate in some) / len(some),
            "by pass rate": histogram(some),
        }
        for name, some in groups.items()
    }
    if as_json:
        click.echo(json.dumps(summary))
        return
    for name, row in summary.items():
        counts = ", ".join(f"{n} {bin_name}" for bin_name, n in histogram(groups[name]).items())
        click.echo(
            f"{name}: {row['tasks']} tasks, {row['samples']} samples, pass@1 {row['pass@1']:.1%}, "
            f"solved at least once {row['solved once']:.1%}; tasks by pass rate: {counts}"
        )
    if out is not None:
        click.echo(printable(f"rates: {out}"))
