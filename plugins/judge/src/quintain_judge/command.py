"""`quintain judge`: measure a judge before its verdicts train anything."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from .calibration import Calibration
    from .canaries import CanaryReport
    from .service import JudgeService

EPILOG = """
\b
Lines of LABELS, one JSON object each:
  {"prompt": "...", "reply": "...", "rubric": "Is kind.", "label": 0.5}
  {"prompt": "...", "reply": "...", "reference": "1932", "label": true}
  {"prompt": "...", "a": "...", "b": "...", "criteria": ["Is kind."], "label": "A"}

\b
Examples:
  quintain judge calibrate labels.jsonl --url http://127.0.0.1:8000/v1 --canaries
  quintain judge calibrate labels.jsonl --recipe chat.toml --json
"""


@click.group()
def judge() -> None:
    """Measure judges."""


@judge.command(epilog=EPILOG)
@click.argument("labels", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--url", default="", metavar="URL", help="The judge's server, up to /v1 (default: rules judge).")
@click.option("--model", default="", help="As the server calls it.")
@click.option(
    "--recipe", type=click.Path(path_type=Path, dir_okay=False), help="The judge of [services.judge] in FILE."
)
@click.option("--canaries", is_flag=True, help="Also judge the answers with known verdicts.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def calibrate(labels: Path, url: str, model: str, recipe: Path | None, canaries: bool, as_json: bool) -> None:
    """Compare a judge with LABELS: agreement, bias of position, bias of length.

    Verdicts come from the judge's cache where it has them. A row without a verdict is counted and left out.
    """
    from .calibration import read_labels
    from .naming import judge_named

    service = judge_named(url, model, recipe)
    rows = read_labels(labels)
    result, report = asyncio.run(_measured(service, rows, canaries, quiet=as_json))
    if as_json:
        data = {**vars(result), "canaries": asdict(report) if report else None}
        click.echo(json.dumps(data))
        return
    _show(result, report)


async def _measured(
    service: JudgeService, rows: Sequence[Any], canaries: bool, *, quiet: bool
) -> tuple[Calibration, CanaryReport | None]:
    from quintain.training import for_terminal

    from .calibration import calibrate

    async with service as running:
        with for_terminal(quiet=quiet) as screen:
            screen.phase("judging", len(rows))
            result = await calibrate(running, rows, lambda: screen.advance(None))
        return result, await running.judge_canaries() if canaries and not running.offline else None


def _show(result: Calibration, report: CanaryReport | None) -> None:
    for kind, count in sorted(result.rows.items()):
        click.echo(f"{kind}: {count} rows, {result.failed[kind]} without a verdict")
    for name, m in result.measures.items():
        interval = f"  [{m['low']:.3f}, {m['high']:.3f}]" if "low" in m else ""
        click.echo(f"  {name:38} {m['value']:7.3f}{interval}  ({m['rows']:.0f} rows)")
    if report is not None:
        fooled = f"; accepted: {report.fooled!r}" if report.fooled else ""
        click.echo(f"canaries: {report.accepted:.1%} wrong accepted, {report.rejected:.1%} right rejected{fooled}")
