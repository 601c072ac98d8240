"""`quintain watch --report`: what an appendix needs of a run, as one HTML file and as Markdown."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from quintain.console import clock_text
from quintain.errors import RunError
from quintain.registry import short_name
from quintain.store import RunFolder, write_atomically
from quintain.types import decoding

from ..viewer import picture
from ..viewer.runs import run_info
from .document import Block, Figure, Grid, Heading, Paragraph, Verbatim, as_html, as_markdown
from .index import RolloutIndex, RolloutRow
from .state import alerts_of, cost_of

__all__ = ["chosen_samples", "report_of"]

RULE = (
    "Of the first, the middle and the last stored step: the first right and the first wrong rollout, "
    "by group and sample. Then the first failure of each cause. Nobody has chosen them by hand."
)
MOST = 3_000
"""Characters of a message in a report; the rest is counted."""


def chosen_samples(entries: Sequence[RolloutRow]) -> list[RolloutRow]:
    """Return the rollouts that a report shows, by `RULE`; *entries* are all of the run."""
    steps = sorted({entry.step for entry in entries})
    if not steps:
        return []
    chosen: dict[tuple[int, int], RolloutRow] = {}
    ordered = sorted(entries, key=lambda e: (e.step, e.group, e.sample))
    for step in (steps[0], steps[len(steps) // 2], steps[-1]):
        for result in ("right", "wrong"):
            found = next((e for e in ordered if e.step == step and e.result == result), None)
            if found is not None:
                chosen[found.step, found.row] = found
    for cause in sorted({entry.cause for entry in entries if entry.cause}):
        found = next(e for e in ordered if e.cause == cause)
        chosen[found.step, found.row] = found
    return list(chosen.values())


def report_of(folder: Path, *, price: float | None = None) -> tuple[str, list[Block]]:
    """Return the title and the blocks of the report of the run in *folder*.

    Args:
        price: of an hour of the machine.

    Raises:
        RunError: the run has no complete step, or a file of it is damaged.
    """
    run = RunFolder(folder, lock=False)
    metrics, info = run.metrics(), run_info(folder)
    if not metrics:
        raise RunError(f"run {run.name!r} has no complete step, so there is nothing to report")
    recipe = tomllib.loads(run.recipe())
    summary = run.summary() or {}
    index = RolloutIndex(folder)
    index.refresh()
    title = f"Run {run.name}"
    blocks: list[Block] = [
        Heading(title, 1),
        Paragraph(
            f"{info.algorithm} on {', '.join(info.environments)} from {info.model}, seed "
            f"{info.seed}: {info.state}, step {info.step} of {info.steps}."
        ),
        *_results(metrics, summary),
        *_curves(run, metrics, recipe, summary),
        *_data(recipe, index.entries, metrics),
        *_samples(index),
        *_failures(index.entries, summary),
        *_alerts(metrics),
        *_cost(cost_of(info, metrics, price), run.processes()),
        *_steering(run),
        Heading("Repeat it"),
        Paragraph("Save the recipe below as recipe.toml, with the versions above, and run"),
        Verbatim("quintain train recipe.toml", "bash"),
        Heading("Recipe"),
        Verbatim(run.recipe().strip(), "toml"),
    ]
    return title, blocks


def _percent(value: Any) -> str:
    return "" if value is None else f"{value:.1%}"


def _results(metrics: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> Iterator[Block]:
    yield Heading("Results")
    rows = []
    for when in ("before", "after"):
        held_out = summary.get("held_out", {}).get(when) or {}
        if held_out.get("accuracy") is not None:
            temperature = held_out.get("temperature")
            how = "" if temperature is None else decoding(temperature)
            interval = f"{_percent(held_out.get('low'))} to {_percent(held_out.get('high'))}"
            tasks = str(held_out.get("tasks", ""))
            accuracy = _percent(held_out["accuracy"])
            rows.append(
                [f"{when} training", str(held_out.get("split", "")), tasks, how, accuracy, interval]
            )
    for record in (m for m in metrics if m.get("held_out.accuracy") is not None):
        interval = (
            f"{_percent(record.get('held_out.low'))} to {_percent(record.get('held_out.high'))}"
        )
        tasks = str(record.get("held_out.tasks", ""))
        how = decoding(record.get("held_out.temperature", 0.0))
        accuracy = _percent(record["held_out.accuracy"])
        rows.append([f"step {record['step']}", "held out", tasks, how, accuracy, interval])
    if rows:
        titles = ["when", "split", "tasks", "decoding", "accuracy", "95 % interval"]
        yield Grid(titles, rows)
    else:
        yield Paragraph("The run measured no held-out tasks.")


def _curves(
    run: RunFolder,
    metrics: Sequence[Mapping[str, Any]],
    recipe: Mapping[str, Any],
    summary: Mapping[str, Any],
) -> Iterator[Block]:
    yield Heading("Curves")
    png = picture(
        metrics,
        split=recipe.get("evaluation", {}).get("split", "dev"),
        temperature=recipe.get("sampling", {}).get("temperature"),
        held_out=summary.get("held_out", {}),
    )
    alt = "accuracy with its 95 % interval, reward, length and entropy by step"
    yield Figure(png, alt, f"{run.name}-curves.png")


def _data(
    recipe: Mapping[str, Any], entries: Sequence[RolloutRow], metrics: Sequence[Mapping[str, Any]]
) -> Iterator[Block]:
    yield Heading("Data")
    groups = {(e.environment, e.step, e.group) for e in entries}
    stored = Counter(environment for environment, _, _ in groups)
    rows = []
    for table in recipe.get("environments", []):
        use = str(table.get("use", ""))
        arguments = ", ".join(f"{k} = {v!r}" for k, v in (table.get("args") or {}).items())
        name = str(table.get("name") or use)
        count = stored.get(name, stored.get(use, 0))
        rows.append([short_name(use), arguments, str(table.get("weight", 1)), f"{count:,}"])
    yield Grid(["environment", "arguments", "weight", "groups stored"], rows)
    batch = recipe.get("batch", {})
    yield Paragraph(
        f"{batch.get('prompts', '?')} tasks a step with {batch.get('group_size', '?')} samples each, "
        f"{metrics[-1]['step']} steps, {len(entries):,} rollouts stored."
    )


def _samples(index: RolloutIndex) -> Iterator[Block]:
    yield Heading("Samples")
    yield Paragraph(RULE)
    for entry in chosen_samples(index.entries):
        view = index.view(entry.step, entry.row)
        if view is None:
            continue
        reward = "none" if entry.reward is None else f"{entry.reward:g}"
        place = f"step {entry.step}, group {entry.group}, sample {entry.sample}"
        cause = f", failed by {entry.cause}: {view['reason']}" if entry.cause else ""
        yield Heading(f"{place}: {entry.result}, reward {reward}{cause}", 3)
        for message in view["messages"]:
            calls = "".join(
                f"\n[calls {c['name']} {c['arguments']}]" for c in message["calls"] or ()
            )
            content = message["content"] or ""
            cut = len(content) - MOST
            rest = f"\n[{cut:,} more characters]" if cut > 0 else ""
            yield Verbatim(f"{message['role']}: {content[:MOST]}{rest}{calls}")


def _failures(entries: Sequence[RolloutRow], summary: Mapping[str, Any]) -> Iterator[Block]:
    yield Heading("Failures by cause")
    found = Counter((e.cause, e.termination) for e in entries if e.cause)
    if found:
        rows = [
            [cause, ended, f"{count:,}", f"{count / len(entries):.2%}"]
            for (cause, ended), count in found.most_common()
        ]
        yield Grid(["cause", "ended by", "rollouts", "of those stored"], rows)
    else:
        yield Paragraph(f"None of the {len(entries):,} stored rollouts failed.")
    if summary.get("failures"):
        rows = [[kind, f"{count:,}"] for kind, count in summary["failures"].items()]
        yield Grid(["over the whole run", "episodes"], rows)


def _alerts(metrics: Sequence[Mapping[str, Any]]) -> Iterator[Block]:
    yield Heading("Alerts")
    alerts = alerts_of(metrics)
    rows = [
        [a["name"], f"{a['first']} to {a['last']}", ", ".join(a["metrics"]), a["message"]]
        for a in alerts
    ]
    yield Grid(["alert", "steps", "metrics", "message"], rows) if rows else Paragraph("None.")


def _cost(cost: Mapping[str, Any], processes: Sequence[Mapping[str, Any]]) -> Iterator[Block]:
    yield Heading("Hardware, cost and versions")
    money = f", {cost['money']:.2f} at {cost['price']:g} an hour" if "money" in cost else ""
    speed = f", {cost['tokens_per_second']:,.0f} a second" if "tokens_per_second" in cost else ""
    yield Paragraph(
        f"{clock_text(cost['total'])}{money}, {cost['tokens']:,} sampled tokens{speed}."
    )
    phases = sorted(cost["seconds"].items(), key=lambda item: -item[1])
    total = cost["total"] or 1.0
    yield Grid(
        ["phase", "seconds", "share"],
        [[phase, f"{spent:.1f}", f"{spent / total:.1%}"] for phase, spent in phases],
    )
    rows = [
        [str(p.get("time", "")), str(p.get("device", "")), str(p.get("commit", ""))]
        for p in processes
    ]
    yield Grid(["process started", "device", "commit"], rows)
    if processes:
        versions = processes[-1].get("versions", {})
        yield Grid(["distribution", "version"], [[k, str(v)] for k, v in sorted(versions.items())])


def _steering(run: RunFolder) -> Iterator[Block]:
    records = run.steering()
    if not records:
        return
    yield Heading("Steered while it ran")
    rows = [
        [str(r["step"]), ", ".join(f"{name} = {value}" for name, value in r["steering"].items())]
        for r in records
    ]
    yield Grid(["step", "what was done"], rows)
    yield Paragraph(
        f"QUINTAIN_STEERING={run.name} repeats it in another run of the recipe, in the same steps."
    )


def write_report(run: Path, page: Path, *, price: float | None = None) -> None:
    """Write a report of the run folder *run* to the HTML file *page*, as Markdown beside it, and the
    picture of the curves that the Markdown shows.

    Args:
        price: of an hour of the machine, for the cost.
    """
    title, blocks = report_of(run, price=price)
    write_atomically(page, as_html(title, blocks).encode())
    write_atomically(page.with_suffix(".md"), as_markdown(blocks).encode())
    for block in blocks:
        if isinstance(block, Figure):
            write_atomically(page.parent / block.file, block.png)
