"""What every study needs: seeds, intervals over them, a figure and one JSON file that say how they
came about.
"""

from __future__ import annotations

import argparse
import datetime
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quintain_view.compare.intervals import Interval, t_interval
from quintain_view.viewer import COLOURS, render_png, shade_between

from ..records import record_lines

ROOT = Path(__file__).resolve().parent.parent.parent
PICTURES = ROOT / "docs" / "experiments"
RESULTS = ROOT / "studies" / "results"
SEEDS = 10
QUICK_SEEDS = 2
Values = Sequence[Sequence[float]]
"""One row per seed."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One curve: *values* of each seed at each *x*."""

    label: str
    x: Sequence[float]
    values: Values
    style: str = "-"

    def at(self, index: int = -1) -> list[float]:
        """One value per seed."""
        return [row[index] for row in self.values]

    def interval(self, index: int = -1) -> Interval:
        """Mean over seeds and its 95 % t interval."""
        return t_interval(self.at(index))


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One plot of a figure. *marks* are exact values to compare with: label and height."""

    title: str
    xlabel: str
    lines: Sequence[Line]
    log_x: bool = False
    log_y: bool = False
    marks: Mapping[str, float] = field(default_factory=dict)

    def line(self, label: str) -> Line:
        """Return the curve called *label*."""
        return next(line for line in self.lines if line.label == label)


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a study found.

    Attributes:
        panels: of its figure.
        contrasts: differences by what they are of, one value per seed.
        settings: sizes and rates, for the record.
        notes: lines to print.
    """

    panels: Sequence[Panel]
    contrasts: Mapping[str, Sequence[float]] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()


Study = Callable[[Sequence[int], bool], Report]


def main(
    study: Study, argv: Sequence[str] | None = None, *, parts: Mapping[str, Study] | None = None
) -> Report:
    """Run a study from the command line; see ``--help``.

    *parts* can be run alone with ``--only``. Their figure and JSON have the name of the part behind
    that of the study, so that they stand beside those of the whole.
    """
    name = Path(sys.modules[study.__module__].__file__ or "").stem
    parser = argparse.ArgumentParser(
        prog=f"python -m studies.experiments.{name}",
        description=sys.modules[study.__module__].__doc__,
    )
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes: does it run? Writes to a temporary folder"
    )
    parser.add_argument("--seeds", type=int, help=f"how many seeds (default: {SEEDS})")
    parser.add_argument(
        "--out", type=Path, help="where figure and JSON go (default: each to its own folder)"
    )
    if parts:
        parser.add_argument(
            "--only", choices=[*parts], help="one part, whose files are named after it, too"
        )
    args = parser.parse_args(argv)
    only: str | None = args.only if parts else None
    torch.set_num_threads(1)  # the tables are tiny: a second thread would only wait
    seeds = range(args.seeds or (QUICK_SEEDS if args.quick else SEEDS))
    began = time.perf_counter()
    report = (parts[only] if parts and only else study)(seeds, args.quick)
    seconds = time.perf_counter() - began
    out = args.out
    if out is None and args.quick:
        out = Path(tempfile.mkdtemp(prefix="quintain-study-"))
    results, pictures = out or RESULTS, out or PICTURES
    results.mkdir(parents=True, exist_ok=True)
    words = list(sys.argv[1:] if argv is None else argv)
    command = " ".join(["python", "-m", f"studies.experiments.{name}", *words])
    date = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    files = f"{name}-{only}" if only else name
    figures = results / f"{files}.json"
    figures.write_text(record_lines(to_json(report, command, date, len(seeds), seconds)))
    image = pictures / f"{files}.png"
    image.write_bytes(picture(report, f"{command} · {date} · {len(seeds)} seeds"))
    for line in table(report):
        print(line)
    print(f"{seconds:.0f} s on one thread of {os.cpu_count()}; {figures}, {image}")
    return report


def to_json(report: Report, command: str, date: str, seeds: int, seconds: float) -> dict[str, Any]:
    """Return the report as plain data: means and 95 % intervals, at the end and along each
    curve.
    """
    panels = {
        f"{p.title}, by {p.xlabel}": {
            line.label: {"end": line.interval().to_json(), "x": list(line.x), **_bands(line)}
            for line in p.lines
        }
        for p in report.panels
    }
    return {
        "command": command,
        "date": date,
        "seeds": seeds,
        "seconds": round(seconds, 1),
        "settings": dict(report.settings),
        "contrasts": {
            what: t_interval(list(values)).to_json() for what, values in report.contrasts.items()
        },
        "panels": panels,
        "notes": list(report.notes),
    }


def table(report: Report) -> list[str]:
    """Ends of curves and contrasts, as Markdown."""
    lines = []
    for panel in report.panels:
        lines += [f"{panel.title}, by {panel.xlabel}", "", "| | at | mean | 95 % interval |"]
        lines += ["|---|---|---|---|"]
        lines += [
            f"| {line.label} | {line.x[-1]:g} | {shown(line.interval())} |" for line in panel.lines
        ]
        lines.append("")
    if report.contrasts:
        lines += ["differences, seed by seed", "", "| | mean | 95 % interval |", "|---|---|---|"]
        lines += [
            f"| {what} | {shown(t_interval(list(values)))} |"
            for what, values in report.contrasts.items()
        ]
        lines.append("")
    return [*lines, *report.notes]


def shown(interval: Interval) -> str:
    """``0.512 | 0.497 to 0.527``."""
    ends = (
        f"{interval.low:.4g} to {interval.high:.4g}"
        if interval.low is not None and interval.high is not None
        else "one seed"
    )
    return f"{interval.value:.4g} | {ends}"


def differences(one: Line, other: Line, index: int = -1) -> list[float]:
    """Seed by seed, at one place of the curves."""
    return [a - b for a, b in zip(one.at(index), other.at(index), strict=True)]


def by_variant(
    variants: Iterable[str],
    seeds: Sequence[int],
    train: Callable[[str, int], Mapping[str, list[float]]],
) -> dict[str, dict[str, list[list[float]]]]:
    """Call *train* with each variant and seed; return the curves of each quantity, by variant, one
    row per seed.
    """
    results: dict[str, dict[str, list[list[float]]]] = {}
    for seed in seeds:
        for variant in variants:
            for quantity, values in train(variant, seed).items():
                results.setdefault(quantity, {}).setdefault(variant, []).append(values)
    return results


def picture(report: Report, footer: str) -> bytes:
    """Return the figure: means with 95 % bands over seeds, command and date below."""
    columns = min(len(report.panels), 2)
    rows = -(-len(report.panels) // columns)

    def paint(figure: Any) -> None:
        # room for the footer
        figure.get_layout_engine().set(rect=(0, 0.06 / rows, 1, 1 - 0.06 / rows))
        panels = figure.subplots(rows, columns, squeeze=False).flat
        for report_panel, panel in zip(report.panels, panels, strict=False):
            for line, colour in zip(report_panel.lines, COLOURS * 3, strict=False):
                _paint(panel, line, colour)
            for label, height in report_panel.marks.items():
                panel.axhline(height, color="#4a4f57", lw=0.8, ls=":", label=label)
            panel.set_title(report_panel.title)
            panel.set_xlabel(report_panel.xlabel)
            if report_panel.log_x:
                panel.set_xscale("log", base=2)
            if report_panel.log_y:
                panel.set_yscale("log")
            panel.legend(fontsize=7.5)
        for empty in list(panels):
            empty.set_visible(False)
        figure.text(0.995, 0.002, footer, ha="right", va="bottom", fontsize=6.5, color="#8a8f98")

    return render_png(paint, size=(5.0 * columns, 3.5 * rows), dpi=120)


def _paint(panel: Any, line: Line, colour: str) -> None:
    intervals = [line.interval(i) for i in range(len(line.x))]
    low = [f.value if f.low is None else f.low for f in intervals]
    high = [f.value if f.high is None else f.high for f in intervals]
    shade_between(panel, line.x, low, high, colour)
    marker = "o" if len(line.x) < 12 else None
    panel.plot(
        line.x,
        [f.value for f in intervals],
        line.style,
        color=colour,
        lw=1.6,
        ms=3,
        marker=marker,
        label=line.label,
    )


def _bands(line: Line) -> dict[str, list[float | None]]:
    intervals = [line.interval(i) for i in range(len(line.x))]
    ends = {
        "mean": [f.value for f in intervals],
        "low": [f.low for f in intervals],
        "high": [f.high for f in intervals],
    }
    return {
        name: [None if v is None else float(f"{v:.6g}") for v in values]
        for name, values in ends.items()
    }


def generator(seed: int, *more: int) -> torch.Generator:
    """Return a stream of its own for a seed and whatever else tells draws apart."""
    mixed = seed
    for number in more:
        mixed = (mixed * 1_000_003 + number + 1) % 2**62
    return torch.Generator().manual_seed(mixed)


def entropy(logits: Tensor) -> Tensor:
    """In nats, of each row."""
    logp = logits.log_softmax(-1)
    return -(logp.exp() * logp).sum(-1)
