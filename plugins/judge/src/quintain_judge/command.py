"""`quintain grading`: measure a judge before its verdicts train anything, and write rubrics with
one.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from quintain.cli import Count, arg_option, json_option
from quintain.errors import InfrastructureError, UsageError

if TYPE_CHECKING:
    from .calibration import Calibration
    from .canaries import CanaryReport
    from .rubrics import Prompted, Written
    from .service import JudgeService

EPILOG = """
\b
Lines of LABELS, one JSON object each:
  {"prompt": "...", "reply": "...", "rubric": "Is kind.", "label": 0.5}
  {"prompt": "...", "reply": "...", "reference": "1932", "label": true}
  {"prompt": "...", "a": "...", "b": "...", "criteria": ["Is kind."], "label": "A"}

\b
Examples:
  quintain grading calibrate labels.jsonl --url http://127.0.0.1:8000/v1 --canaries
  quintain grading calibrate labels.jsonl --recipe chat.toml --json
"""


RUBRICS_EPILOG = """
\b
Examples:
  quintain grading rubrics prompts.jsonl --search articles/ --url http://127.0.0.1:8000/v1 --out rubrics.jsonl
  quintain grading rubrics search --tasks 100 --search "uvx some-search-server" --recipe chat.toml --out rubrics.jsonl
"""


@click.group()
def grading() -> None:
    """Measure judges, and write rubrics with them."""


@grading.command(epilog=EPILOG)
@click.argument("labels", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--url", default="", metavar="URL", help="The judge's server, up to /v1 (default: rules judge)."
)
@click.option("--model", default="", help="As the server calls it.")
@click.option(
    "--recipe",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The judge of [services.judge] in FILE.",
)
@click.option("--canaries", is_flag=True, help="Also judge the answers with known verdicts.")
@json_option
def calibrate(
    labels: Path, url: str, model: str, recipe: Path | None, canaries: bool, as_json: bool
) -> None:
    """Compare a judge with LABELS: agreement, bias of position, bias of length.

    Verdicts come from the judge's cache where it has them. A row without a verdict is counted and
    left out.
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
    from quintain.console import for_terminal

    from .calibration import calibrate

    async with service as running:
        if canaries and running.offline:
            click.echo("canaries are for models: rules decide alike at any time", err=True)
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
        for kind, shares in report.kinds.items():
            accepted = f"{shares['accepted']:.1%} wrong accepted, " if "accepted" in shares else ""
            click.echo(f"canaries, {kind}: {accepted}{shares['rejected']:.1%} right rejected")
        for what, answer in (("accepted", report.fooled), ("rejected", report.refused)):
            if answer:
                click.echo(f"  {what}: {answer!r}")


@grading.command(epilog=RUBRICS_EPILOG)
@click.argument("source")
@click.option(
    "--search",
    required=True,
    metavar="WHERE",
    help="A folder or file of passages, or an MCP server's command.",
)
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="File of JSON lines.",
)
@click.option("--url", default="", metavar="URL", help="The judge's server, up to /v1.")
@click.option("--model", default="", help="As the server calls it.")
@click.option(
    "--recipe",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The judge of [services.judge] in FILE.",
)
@click.option("--split", default="train", show_default=True, help="Of an environment.")
@click.option("--tasks", type=Count(1), help="Maximum number of tasks.")
@click.option("--criteria", type=Count(1), default=5, show_default=True, help="Maximum per task.")
@click.option("--queries", type=Count(1), default=3, show_default=True, help="Maximum per task.")
@arg_option
@click.option("--quiet", "-q", is_flag=True, help="Show no progress.")
def rubrics(
    source: str,
    search: str,
    out: Path,
    url: str,
    model: str,
    recipe: Path | None,
    split: str,
    tasks: int | None,
    criteria: int,
    queries: int,
    args: Sequence[str],
    quiet: bool,
) -> None:
    """Write a rubric for each task of SOURCE from what a search finds about it.

    SOURCE is an environment, or a file of JSON lines with the key prompt. The judge writes queries,
    reads the passages, and writes criteria that rest on them. OUT is data of the environment chat.
    The same command continues an OUT that lacks tasks; a task without a rubric is reported, and has
    no row.
    """
    from quintain.process import run_stoppable

    from .naming import judge_named
    from .rubrics import read_prompts

    service = judge_named(url, model, recipe)
    if source.endswith(".jsonl"):
        if args:
            raise UsageError(f"--arg sets a field of an environment; {source} is a file")
        prompts = read_prompts(Path(source))[:tasks]
    else:
        prompts = run_stoppable(_prompts(source, args, split, tasks))
    result = run_stoppable(_written(service, prompts, search, out, queries, criteria, quiet))
    click.echo(
        f"{out}: {result.tasks:,} tasks with {result.criteria:,} criteria, {result.skipped:,} were "
        f"there"
    )
    for failure in result.failures[:10]:
        click.echo(f"  no rubric for {failure}", err=True)
    if result.failures:
        raise InfrastructureError(
            f"{len(result.failures):,} of {len(prompts):,} tasks have no rubric; the same command "
            f"tries them again"
        )


async def _prompts(use: str, args: Sequence[str], split: str, count: int | None) -> list[Prompted]:
    from quintain.evaluation import tasks_of
    from quintain.recipe import EnvironmentSpec, EnvironmentTable, opened_environments
    from quintain.services import BY_OPTION

    from .rubrics import prompts_of

    spec = EnvironmentSpec.of(EnvironmentTable(use=use, args=dict(_field(text) for text in args)))
    async with opened_environments([spec], {}, fix=BY_OPTION) as ((environment,), _):
        return list(prompts_of(tasks_of(environment, split, count, name=use), split))


def _field(text: str) -> tuple[str, Any]:
    from quintain.recipe import parsed_override

    path, value, _ = parsed_override(text)
    return ".".join(path), value


async def _written(
    service: JudgeService,
    prompts: Sequence[Prompted],
    search: str,
    out: Path,
    max_queries: int,
    max_criteria: int,
    quiet: bool,
) -> Written:
    from quintain.console import for_terminal

    from .rubrics import search_of, write_rubrics

    async with service as running, search_of(search) as find:
        with for_terminal(quiet=quiet) as screen:
            screen.phase("writing rubrics", len(prompts))
            return await write_rubrics(
                running,
                prompts,
                find,
                out,
                max_queries=max_queries,
                max_criteria=max_criteria,
                on_task=lambda: screen.advance(None),
            )
