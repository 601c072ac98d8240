"""A comparison as a table and as a figure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from quintain.console import clock_text
from quintain.store import write_atomically

from ..viewer import COLOURS, LINES, add_legend, render_png, shade_between
from .fits import NoFit, RepeatedSampling, Sigmoid
from .intervals import Interval
from .results import AXES, MeanCurve, RecipeResult


def draw(folder: Path, results: Sequence[RecipeResult]) -> Path:
    """Draw the comparison into its folder and return the path of the picture."""
    path = folder / "compare.png"
    write_atomically(path, picture(results))
    return path


def picture(results: Sequence[RecipeResult]) -> bytes:
    """Draw reward against samples, tokens and seconds, and held-out accuracy against tokens, as a
    PNG.

    Lines are means over seeds, bands their 95 % t intervals; a thin line is the fitted compute
    curve.
    """

    def paint(figure: Any) -> None:
        panels = figure.subplots(2, 2)
        *reward_panels, accuracy_panel = panels.flat
        for axis, panel in zip(AXES, reward_panels, strict=True):
            panel.set_title(f"reward against {axis}")
            panel.set_xlabel("seconds of rollouts and updates" if axis == "seconds" else axis)
        accuracy_panel.set_title("held-out accuracy against tokens")
        accuracy_panel.set_xlabel("tokens")
        for number, result in enumerate(results):
            colour, line = COLOURS[number % len(COLOURS)], LINES[number % len(LINES)]
            for axis, panel in zip(AXES, reward_panels, strict=True):
                _plot(panel, result.curve(axis), colour, line, result.name)
            accuracy = result.curve("tokens", "accuracy")
            mark = "o" if accuracy and len(accuracy.x) == 1 else ""
            _plot(accuracy_panel, accuracy, colour, line, result.name, mark=mark)
            if isinstance(result.compute_fit, Sigmoid) and accuracy is not None:
                accuracy_panel.plot(
                    accuracy.x, [*map(result.compute_fit, accuracy.x)], color=colour, lw=0.8
                )
        for panel in panels.flat:
            panel.margins(x=0.01)
        add_legend(panels[0][0])

    return render_png(paint, size=(9.6, 6.4))


def _plot(
    panel: Any, curve: MeanCurve | None, colour: str, line: Any, label: str, mark: str = ""
) -> None:
    if curve is None:
        return
    if curve.low is not None and curve.high is not None:
        shade_between(panel, curve.x, curve.low, curve.high, colour)
    panel.plot(curve.x, curve.mean, color=colour, lw=1.8, ls=line, label=label, marker=mark)


def show(results: Sequence[RecipeResult], folder: Path, plot: Path) -> None:
    """Print the table, the fits, and the paths of runs and picture."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        console = Console(width=160)
    table = Table(
        "recipe", "runs", "before", "after", "gain", f"against {results[0].name}", "used", box=None
    )
    for result in results:
        table.add_row(*row(result))
    console.print(table)
    for line in [*notes(results), f"runs, compare.json: {folder}", f"curves: {plot}"]:
        console.print(line, markup=False, highlight=False)


def row(result: RecipeResult) -> list[str]:
    """Format one row of the table: accuracies in percent, with 95 % intervals over seeds."""
    used = result.used
    return [
        result.name,
        f"{sum(r.finished for r in result.runs)}/{len(result.runs)}",
        percent(result.before),
        percent(result.after),
        percent(result.gain, sign=True),
        percent(result.difference, sign=True),
        f"{used['samples']:,.0f} samples, {used['tokens']:,.0f} tokens, {clock_text(used['seconds'])}"
        if used
        else "",
    ]


def percent(interval: Interval | None, *, sign: bool = False) -> str:
    """Format ``81.0 % (78.2 to 83.8)``; a difference of percentages has its sign and is in
    points.
    """
    if interval is None:
        return ""
    form = "{:+.1f}" if sign else "{:.1f}"
    text = form.format(100 * interval.value) + (" points" if sign else " %")
    if interval.low is None or interval.high is None:
        return text
    return f"{text} ({form.format(100 * interval.low)} to {form.format(100 * interval.high)})"


def notes(results: Sequence[RecipeResult]) -> list[str]:
    """Put failures and fits into words."""
    lines = [
        f"{r.folder.name} failed: {r.failure}"
        for result in results
        for r in result.runs
        if r.failure
    ]
    if any(result.after and result.after.count == 1 for result in results):
        lines.append("no intervals: run at least 2 seeds (--seeds 0 1)")
    names: dict[str, list[str]] = {}
    for result in results:
        for text in (_compute(result.compute_fit), _attempts(result.attempts_fit)):
            names.setdefault(text, []).append(result.name)
    # What holds for all is said once.
    return lines + [
        text if len(named) == len(results) else f"{', '.join(named)}: {text}"
        for text, named in names.items()
    ]


def _compute(fit: Sigmoid | NoFit) -> str:
    if isinstance(fit, NoFit):
        return f"no compute curve: {fit.reason}"
    if not fit.identified:
        return f"accuracy rises with compute, but {fit.reason}"
    shape = f"midpoint {fit.midpoint.value:,.0f} tokens, exponent {fit.exponent.value:.2f}"
    top = fit.ceiling
    return f"compute curve with ceiling {top.value:.1%} ({top.low:.1%} to {top.high:.1%}), {shape}"


def _attempts(fit: RepeatedSampling | NoFit) -> str:
    if isinstance(fit, NoFit):
        return f"no repeated-sampling law: {fit.reason}"
    return f"coverage exp(a k^b) with a = {fit.a.value:.3g}, b = {fit.b.value:.3g}"
