"""`quintain rollouts`: the rollouts of a run in the terminal, as JSON, or as one HTML file."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import click

from quintain.cli import Count, folder_option
from quintain.errors import UsageError
from quintain.store import write_atomically

from .stored import Filter, StoredRollouts, TokenText

SHOWN = 5
"""Rollouts in the terminal by default."""
WRITTEN = 1_000
"""Rollouts in an HTML file by default; a browser opens ten times as many."""

Chosen = list[tuple[int, Path, list[int]]]


class Range(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic since click 8.4
    """``A..B``, ``A..`` or ``..B``."""

    name = "range"

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, float]:
        low, dots, high = value.partition("..")
        try:
            bounds = (float(low or -math.inf), float(high or math.inf) if dots else float(low))
        except ValueError:
            self.fail(f"{value!r}: expected a range such as 0.5..1, 0.5.. or ..0", param, ctx)
        return bounds


@click.command()
@click.argument("run", metavar="RUN")
@click.option("--step", "steps", type=Count(1), multiple=True, help="Only this step (repeatable).")
@click.option("--right", is_flag=True, help="Rollouts that solved their task.")
@click.option("--wrong", is_flag=True, help="Rollouts that did not.")
@click.option("--failed", is_flag=True, help="Rollouts left out because of an error.")
@click.option(
    "--cause",
    "causes",
    type=click.Choice(["policy", "environment", "infrastructure"]),
    multiple=True,
    help="Failures with this cause (repeatable).",
)
@click.option("--environment", default="", help="Only this environment of the recipe.")
@click.option(
    "--reward",
    type=Range(),
    metavar="A..B",
    help="Total reward in this range (0.5.. is 0.5 and more).",
)
@click.option(
    "--contains",
    default="",
    metavar="TEXT",
    help="TEXT in the prompt or the conversation, in any case.",
)
@click.option(
    "--limit",
    "-n",
    type=Count(1),
    help=f"At most N rollouts (default: {SHOWN}; with --html {WRITTEN:,}).",
)
@click.option("--tokens", is_flag=True, help="Show each token with log-prob, source and advantage.")
@click.option(
    "--html",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write one self-contained page to FILE.",
)
@folder_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per rollout and line.")
def rollouts(
    run: str,
    steps: Sequence[int],
    right: bool,
    wrong: bool,
    failed: bool,
    causes: Sequence[str],
    environment: str,
    reward: tuple[float, float] | None,
    contains: str,
    limit: int | None,
    tokens: bool,
    html: Path | None,
    folder: str,
    as_json: bool,
) -> None:
    """Show the training rollouts of RUN: prompt, turns, tools, reward parts, advantage and how each
    ended.

    RUN is a run, its folder, or a Parquet file of `quintain eval --out`. The newest step comes
    first. Filters are combined; of --right, --wrong and --failed, each that is given is shown.

    \b
    quintain rollouts arithmetic-1 --wrong -n 3
    quintain rollouts arithmetic-1 --step 30 --tokens -n 1
    quintain rollouts arithmetic-1 --html rollouts.html
    """
    if html is not None and as_json:
        raise click.UsageError("--html writes a page and --json prints objects; leave one out")
    store = StoredRollouts(run, folder)
    if store.lost:
        more = f" and {len(store.lost) - 1} more" if len(store.lost) > 1 else ""
        click.echo(f"the file of step {store.lost[0]}{more} is missing", err=True)
    results = frozenset(
        n for n, chosen in (("right", right), ("wrong", wrong), ("failed", failed)) if chosen
    )
    known = frozenset(steps) if steps else None
    if known and (unknown := known - {step for step, _ in store.files}):
        first, last = store.files[0][0], store.files[-1][0]
        raise UsageError(
            f"no rollouts of step {min(unknown)} in {run!r}; it has steps {first} to {last}"
        )
    wanted = Filter(
        steps=known,
        results=results,
        causes=frozenset(causes),
        environment=environment,
        reward=reward,
        contains=contains,
    )
    stored: Chosen = list(store.matching(wanted))[::-1]
    total = sum(len(numbers) for *_, numbers in stored)
    if not total:
        message = f"no rollout of {store.name} matches; {len(store.files):,} steps were searched"
        click.echo(message, err=True)
        return
    if html is not None:
        chosen = spread(stored, limit or WRITTEN)
        why = whole_steps(chosen, stored, limit or WRITTEN)
        _write_page(html, store, chosen, total=total, every_token=tokens, why=why)
    elif as_json:
        chosen = newest(stored, limit or total)
        _print_json(store, chosen, tokens=tokens)
    else:
        from .terminal import show

        chosen = newest(stored, limit or SHOWN)
        decode = TokenText(store.path)
        rows = (
            view
            for _, path, numbers in chosen
            for view in store.rows(path, numbers, decode, tokens=tokens)
        )
        show(list(rows), decode)
    if counts := store.causes(stored):
        text = ", ".join(f"{cause} {count:,}" for cause, count in counts.most_common())
        click.echo(f"failures by cause: {text}", err=True)
    if (shown := sum(len(numbers) for *_, numbers in chosen)) < total:
        which = whole_steps(chosen, stored, limit or WRITTEN) if html else "the newest"
        click.echo(
            f"{shown:,} of {total:,} rollouts, {which}; -n {total} shows all; --help lists filters",
            err=True,
        )


def whole_steps(chosen: Chosen, stored: Chosen, limit: int) -> str:
    """Return why a page has the rollouts of *chosen* only."""
    return f"whole steps ({len(chosen):,} of {len(stored):,}), because a page has at most {limit:,}"


def _write_page(
    html: Path, store: StoredRollouts, chosen: Chosen, *, total: int, every_token: bool, why: str
) -> None:
    from .page import page

    decode = TokenText(store.path)
    views = [
        view for _, path, numbers in reversed(chosen) for view in store.rows(path, numbers, decode)
    ]
    text = page(store.name, views, decode, total=total, every_token=every_token, why=why).encode()
    write_atomically(html, text)
    click.echo(
        f"wrote {html} ({len(text) / 1e6:.1f} MB, {len(views):,} rollouts); open it in a browser"
    )


def _print_json(store: StoredRollouts, chosen: Chosen, *, tokens: bool) -> None:
    decode, names = TokenText(store.path), ("id", "source", "logp", "version", "advantage")
    for _, path, numbers in chosen:
        for view in store.rows(path, numbers, decode, tokens=tokens):
            for part in (view, *view["conversations"]):
                if part["tokens"] is not None:
                    part["tokens"] = [
                        dict(zip(names, t, strict=True), text=decode(t[0])) for t in part["tokens"]
                    ]
            click.echo(json.dumps(view))


def newest(stored: Chosen, limit: int) -> Chosen:
    """Return the first *limit* rollouts of *stored*, in the order of their files."""
    chosen: Chosen = []
    for step, path, numbers in stored:
        if limit <= 0:
            break
        chosen.append((step, path, sorted(numbers[:limit])))
        limit -= len(numbers)
    return chosen


def spread(stored: Chosen, limit: int) -> Chosen:
    """Select whole steps of *stored*, the first, the last and others evenly between, with at most
    *limit* rollouts.

    If not even one step fits, its first *limit* rollouts.
    """
    for count in range(len(stored), 0, -1):
        positions = sorted({round(i * (len(stored) - 1) / max(1, count - 1)) for i in range(count)})
        if sum(len(stored[i][2]) for i in positions) <= limit:
            return [stored[i] for i in positions]
    return newest(stored, limit)
