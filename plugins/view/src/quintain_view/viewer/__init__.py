"""Pictures of training runs: the learning curves that a finished run draws into its folder."""

from __future__ import annotations

from .curves import draw, picture
from .figure import COLOURS, LINES, STYLE, add_legend, render_png, shade_between

__all__ = [
    "COLOURS",
    "LINES",
    "STYLE",
    "add_legend",
    "draw",
    "picture",
    "render_png",
    "shade_between",
]
