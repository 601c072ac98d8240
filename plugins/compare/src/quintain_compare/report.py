"""A comparison as a table and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quintain.training import clock, write_atomically
from quintain_viewer import COLOURS, add_legend, render_png, shade_between

from .fits import NoFit, RepeatedSampling, Sigmoid
from .intervals import Interval
from .results import AXES

if TYPE_CHECKING:
    from .results import Band, Standing


def draw(folder: Path, found: Sequence[Standing]) -> Path:
    """Draw the comparison into its folder; the path of the picture."""
    path = folder / "compare.png"
    write_atomically(path, picture(found))
    return path


def picture(found: Sequence[Standing]) -> bytes:
    """Reward against samples, tokens and seconds, and held-out accuracy against tokens, as a PNG.

    Lines are means over seeds, bands their 95 % t intervals; a dotted line is the fitted compute curve.
    """

    def paint(figure: Any) -> None:
        panels = figure.subplots(2, 2)
        for panel, axis in zip(panels.flat, AXES, strict=False):
            panel.set_title(f"reward against {axis}")
            for standing, colour in zip(found, _colours(len(found)), strict=True):
                _paint(panel, standing.band(axis), colour, standing.name)
            panel.set_xlabel("seconds of rollouts and updates" if axis == "seconds" else axis)
        held_out = panels[1][1]
        held_out.set_title("held-out accuracy against tokens")
        held_out.set_xlabel("tokens")
        for standing, colour in zip(found, _colours(len(found)), strict=True):
            band = standing.band("tokens", "accuracy")
            _paint(held_out, band, colour, standing.name, mark="o" if band and len(band.x) == 1 else "")
            if isinstance(standing.compute, Sigmoid) and band is not None:
                fit = [standing.compute(x) for x in band.x]
                held_out.plot(band.x, fit, ":", color=colour, lw=1.2)
        for panel in panels.flat:
            panel.margins(x=0.01)
        add_legend(panels[0][0])

    return render_png(paint, size=(9.6, 6.4))


def _colours(count: int) -> list[str]:
    return [COLOURS[i % len(COLOURS)] for i in range(count)]


def _paint(panel: Any, band: Band | None, colour: str, label: str, mark: str = "") -> None:
    if band is None:
        return
    if band.low is not None and band.high is not None:
        shade_between(panel, band.x, band.low, band.high, colour)
    panel.plot(band.x, band.mean, color=colour, lw=1.8, label=label, marker=mark)


def show(found: Sequence[Standing], folder: Path, plot: Path) -> None:
    """Print the table, the fits, and where everything is."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        console = Console(width=160)
    table = Table("recipe", "runs", "before", "after", "gain", f"against {found[0].name}", "used", box=None)
    for standing in found:
        table.add_row(*row(standing))
    console.print(table)
    for line in [*notes(found), f"runs, compare.json: {folder}", f"curves: {plot}"]:
        console.print(line, markup=False, highlight=False)


def row(standing: Standing) -> list[str]:
    """One line of the table: accuracies in percent, with 95 % intervals over seeds."""
    done = sum(r.finished for r in standing.runs)
    used = standing.used
    return [
        standing.name,
        f"{done}/{len(standing.runs)}",
        percent(standing.before),
        percent(standing.after),
        percent(standing.gain, sign=True),
        percent(standing.difference, sign=True),
        f"{used['samples']:,.0f} samples, {used['tokens']:,.0f} tokens, {clock(used['seconds'])}" if used else "",
    ]


def percent(found: Interval | None, *, sign: bool = False) -> str:
    """``81.0 % (78.2 to 83.8)``; a difference has its sign."""
    if found is None:
        return ""
    form = "{:+.1f}" if sign else "{:.1f}"
    text = form.format(100 * found.value) + " %"
    if found.low is None or found.high is None:
        return text
    return f"{text} ({form.format(100 * found.low)} to {form.format(100 * found.high)})"


def notes(found: Sequence[Standing]) -> list[str]:
    """Failures, and what the fits say, in words."""
    lines = [f"{r.folder.name} failed: {r.failure}" for s in found for r in s.runs if r.failure]
    if any(s.after and s.after.count == 1 for s in found):
        lines.append("one seed says nothing about the spread between seeds: no intervals")
    return [*lines, *(f"{s.name}: {text}" for s in found for text in (_compute(s.compute), _attempts(s.attempts)))]


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
