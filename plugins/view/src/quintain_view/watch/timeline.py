"""`quintain timeline`: what a step of a run waited for, and its spans for trace viewers."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path

import click

from quintain.cli import Count, folder_option, json_option
from quintain.errors import UsageError
from quintain.store import find_run

from .otlp import Exporter
from .trace import path_of, read_trace, steps_of
from .waits import Resource, StepWaits, resources_of, waits_of

SHOWN = 12
"""Lines of each table."""


@click.command()
@click.argument("run", metavar="RUN")
@click.option("--step", type=Count(0), help="This step (default: the last; 0: before step 1).")
@click.option("--slowest", is_flag=True, help="The step that took longest, of those that are kept.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Copy the spans to FILE, for ui.perfetto.dev or chrome://tracing.",
)
@click.option("--otlp", metavar="URL", help="Send the spans to a collector (.../v1/traces).")
@folder_option
@json_option
def timeline(
    run: str,
    step: int | None,
    slowest: bool,
    out: Path | None,
    otlp: str | None,
    folder: str,
    as_json: bool,
) -> None:
    """Say what a step of RUN waited for, in seconds and percent.

    The lines add up to the step: at each moment, the one thing without which the step could not
    have ended. Each run keeps the timelines of its last 50 steps in its folder; QUINTAIN_TIMELINE
    is another number, all, or off.

    \b
    quintain timeline arithmetic-1
    quintain timeline arithmetic-1 --step 12 --out step-12.json
    quintain timeline arithmetic-1 --slowest --otlp http://localhost:4318/v1/traces
    """
    path = find_run(run, folder)
    steps = steps_of(path)
    if not steps:
        raise UsageError(
            f"run {path.name!r} has no timelines; they are recorded while a run trains, unless "
            "QUINTAIN_TIMELINE is off"
        )
    if slowest:
        step = max(steps, key=lambda number: read_trace(path, number).whole.seconds)
    spans = read_trace(path, steps[-1] if step is None else step)
    waits, resources = waits_of(spans), resources_of(spans)
    if out is not None:
        shutil.copyfile(path_of(path, spans.step), out)
        click.echo(
            f"wrote {out} ({len(spans.spans):,} spans); open it in ui.perfetto.dev", err=True
        )
    if otlp is not None:
        Exporter(otlp).post(spans)
        click.echo(f"sent {len(spans.spans):,} spans to {otlp}", err=True)
    if as_json:
        chain = [(p.label, p.began, p.ended) for p in waits.pieces]
        record = asdict(waits) | {"pieces": chain, "resources": [asdict(r) for r in resources]}
        click.echo(json.dumps(record))
        return
    click.echo("\n".join(text_of_waits(waits, resources)))


def text_of_waits(waits: StepWaits, resources: list[Resource]) -> list[str]:
    """Return the lines that the command prints."""
    lines = [f"step {waits.step}: {waits.seconds:.3f} s. It waited for"]
    for wait in waits.waits[:SHOWN]:
        several = [f"{wait.count} x, the longest {wait.longest:.3f} s"] if wait.count > 1 else []
        details = ", ".join([*several, *([f"in {wait.example}"] if wait.example else [])])
        in_brackets = f"  ({details})" if details else ""
        lines.append(f"  {wait.seconds:9.3f} s  {wait.share:6.1%}  {wait.label}{in_brackets}")
    if rest := waits.waits[SHOWN:]:
        seconds = sum(wait.seconds for wait in rest)
        lines.append(f"  {seconds:9.3f} s  {seconds / waits.seconds:6.1%}  {len(rest)} others")
    if resources:
        lines.append("all of the step, side by side:")
    for each in resources[:SHOWN]:
        unit = f", {1e3 * each.unit:.2f} ms a token" if each.unit is not None else ""
        lines.append(
            f"  {each.seconds:9.3f} s  {each.count:5} x  {each.label} "
            f"(median {each.median:.3f} s, longest {each.longest:.3f} s{unit})"
        )
    return lines
