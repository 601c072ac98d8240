"""Figures in one style, as PNG files: what the learning curves, comparisons and studies share."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

STYLE: dict[Any, Any] = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#b6bac1",
    "axes.grid": True,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.labelcolor": "#4a4f57",
    "grid.color": "#e6e8eb",
    "font.size": 9.5,
    "legend.frameon": False,
    "xtick.color": "#6b7078",
    "ytick.color": "#6b7078",
}
COLOURS = (
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#d55e00",
    "#cc79a7",
    "#332288",
    "#56b4e9",
    "#222222",
    "#8a8f98",
)
"""Distinct also for colour-blind readers (Okabe and Ito 2008; without their yellow, which a white
page hides).
"""
LINES = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))
"""Line styles: curves in one panel differ by more than their colour."""
BLUE, ORANGE, GREEN, RED, *_, GREY = COLOURS


def render_png(paint: Callable[[Any], None], *, size: tuple[float, float], dpi: int = 144) -> bytes:
    """Call *paint* with an empty figure of *size* inches and return the result as a PNG."""
    # Importing matplotlib takes half a second. A run loads this plugin at its start and draws at
    # its end.
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=size, dpi=dpi, layout="constrained")
        paint(figure)
        out = io.BytesIO()
        figure.savefig(out, format="png")
    return out.getvalue()


def shade_between(
    panel: Any, x: Sequence[float], low: Sequence[float], high: Sequence[float], colour: str = BLUE
) -> None:
    """Fill the interval from *low* to *high* along *x* with a shade."""
    panel.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)


def add_legend(panel: Any, place: str = "best") -> None:
    """Add a legend where something on *panel* has a label; *place* is one of matplotlib's, or
    ``above`` the panel, beside its title, where no curve is.
    """
    if not (labels := panel.get_legend_handles_labels()[1]):
        return
    if place == "above":
        row = {
            "ncols": len(labels),
            "borderaxespad": 0.1,
            "columnspacing": 1.2,
            "handlelength": 1.6,
        }
        panel.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), fontsize=8.5, **row)
    else:
        panel.legend(loc=place, fontsize=8.5)
