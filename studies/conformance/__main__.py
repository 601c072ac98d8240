"""`python -m studies.conformance`: whether a capture layer trains what was sampled."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import click

from quintain.errors import QuintainError, UnknownNameError, UsageError
from quintain.registry import current

from .case import CaptureCase
from .dialects import DIALECTS
from .layer import CaptureLayer, GatewayLayer, ServeLayer
from .suite import Result, run_cases

LAYERS = {layer.name: layer for layer in (GatewayLayer, ServeLayer)}
MARKS = {"pass": "pass", "fail": "FAIL", "not offered": "-"}
MOST_REASONS = 3


@click.command()
@click.option(
    "--layer",
    "-l",
    default="gateway",
    show_default=True,
    metavar="NAME|MODULE:ATTR",
    help=f"Capture layer: {', '.join(LAYERS)}, or a class of a module or file of yours.",
)
@click.option("--case", "-c", "names", multiple=True, metavar="NAME", help="Run this case; repeat.")
@click.option("--group", "-g", help="Run the cases of one group.")
@click.option(
    "--dialect", "-d", type=click.Choice([*DIALECTS]), default=None, help="Run this API alone."
)
@click.option("--list", "listed", is_flag=True, help="List the cases; run nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each result.")
@click.option("--verbose", "-v", is_flag=True, help="Print every difference.")
@click.pass_context
def conformance(
    ctx: click.Context,
    layer: str,
    names: tuple[str, ...],
    group: str | None,
    dialect: str | None,
    listed: bool,
    as_json: bool,
    verbose: bool,
) -> None:
    """Check whether a capture layer trains exactly what was sampled.

    A capture layer stands between agents and an engine, and keeps the tokens that train. Each case
    plays an agent against it: parallel calls, a retry, a cut stream, a summary in place of the
    history. The engine behind it is scripted and logs what it samples. The layer passes if each
    sampled token trains exactly once, after the tokens that it was sampled after, with its
    log-prob and weight version, and if the agent read what the engine said.

    \b
    python -m studies.conformance                       # the gateway, in all APIs
    python -m studies.conformance -c edited-call -v     # one case, with every difference
    python -m studies.conformance -l mine.py:MyLayer    # your layer: docs/conformance.md

    Exit status: 0 if no case fails, else 1. What a layer does not offer is no failure.
    """
    log = logging.getLogger("quintain.gateway")  # it warns of what cases do
    ctx.call_on_close(partial(log.setLevel, log.level))
    log.setLevel(logging.ERROR)
    cases = _chosen(names, group)
    if listed:
        for one in cases:
            click.echo(json.dumps(_row(one)) if as_json else f"{one.name:44} {one.summary}")
        return
    results = run_cases(cases, _layer(layer), dialect or "")
    failed = 0
    totals = dict.fromkeys(MARKS, 0)
    for _, of_case in groupby(results, key=lambda result: result.case):
        rows = []
        for result in of_case:
            rows.append(result)
            totals[result.outcome] += 1
            if as_json:
                click.echo(json.dumps(result.to_json()))
        failed += any(row.outcome == "fail" for row in rows)
        if not as_json:
            _print(rows, None if verbose else MOST_REASONS)
    if not as_json:
        passed, fails, missing = totals.values()
        click.echo(
            f"\n{passed + fails} runs of {len(cases)} cases: {passed} pass, {fails} fail, "
            f"{missing} not offered"
        )
    ctx.exit(1 if failed else 0)


def _chosen(names: Sequence[str], group: str | None) -> list[CaptureCase]:
    """Return the cases to run.

    Raises:
        UsageError: a name is unknown.
    """
    from .cases import CASES

    for name in names:
        if name not in CASES:
            raise UnknownNameError.of(
                "case", name, [*CASES], "`python -m studies.conformance --list`"
            )
    groups = dict.fromkeys(one.group for one in CASES.values())
    if group is not None and group not in groups:
        raise UnknownNameError.of("group", group, [*groups], f"they are {', '.join(groups)}")
    chosen = [one for one in CASES.values() if one.name in (names or CASES)]
    return [one for one in chosen if group in (None, one.group)]


def _layer(name: str) -> CaptureLayer:
    """Return the layer that *name* means.

    Raises:
        UsageError: it lacks what a layer has.
    """
    if name in LAYERS:
        return LAYERS[name]()
    if ":" not in name:
        raise UnknownNameError.of("layer", name, [*LAYERS], "or MODULE:ATTR, a class of yours")
    found: Any = current().load("layer", name)
    layer: CaptureLayer = found() if callable(found) else found
    wanted = ("name", "version", "plays", "dialects", "features", "columns", "capture")
    missing = [attribute for attribute in wanted if not hasattr(layer, attribute)]
    if missing:
        raise UsageError(
            f"layer {name} has no {', '.join(missing)}; docs/conformance.md has the protocol"
        )
    return layer


def _row(one: CaptureCase) -> dict[str, Any]:
    return {
        "case": one.name,
        "group": one.group,
        "summary": one.summary,
        "dialects": list(one.dialects),
        "needs": sorted(one.needs),
    }


def _print(rows: Sequence[Result], most: int | None) -> None:
    """Print the results of one case, one line for each outcome."""
    for outcome, mark in MARKS.items():
        of_outcome = [row for row in rows if row.outcome == outcome]
        if not of_outcome:
            continue
        apis = ", ".join(_api(row) for row in of_outcome)
        click.echo(f"{mark:5} {rows[0].case:46} {apis}")
        if outcome == "fail":
            for row in of_outcome:
                _print_reasons(row, most)


def _api(row: Result) -> str:
    return f"{row.dialect} ({', '.join(row.columns)})" if row.columns else row.dialect


def _print_reasons(row: Result, most: int | None) -> None:
    shown: Iterable[str] = row.reasons[:most]
    for reason in shown:
        click.echo(f"        {row.dialect}: {reason}")
    if most is not None and len(row.reasons) > most:
        click.echo(f"        {row.dialect}: and {len(row.reasons) - most} more (--verbose)")


if __name__ == "__main__":
    try:
        conformance(prog_name="python -m studies.conformance")
    except QuintainError as error:
        sys.exit(f"error: {error}")
