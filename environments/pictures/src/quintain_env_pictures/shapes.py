"""Shapes in places of a square, each with one shape at most, so that none covers another."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from PIL import Image, ImageDraw

from quintain.errors import UsageError

from .seen import COLOURS

SHAPES = ("circle", "square", "triangle")
CELLS = 4
"""Rows and columns of places."""
Box = tuple[float, float, float, float]
"""Left, top, right and bottom, in pixels; the last two are part of it."""


def check_shapes(shapes: Sequence[str], scale: tuple[float, float]) -> None:
    """Raise a `UsageError` unless *shapes* are known, and *scale* is two shares of a place."""
    if not shapes or not set(shapes) <= set(SHAPES):
        raise UsageError(f"shapes is {list(shapes)}; expected some of {', '.join(SHAPES)}")
    if not 0.2 <= scale[0] <= scale[1] <= 1:
        raise UsageError(
            f"scale is {list(scale)}; expected two shares from 0.2 to 1, the least first"
        )


def draw_shape(
    image: Image.Image,
    random: Random,
    colour: str,
    shape: str,
    place: int,
    scale: tuple[float, float],
) -> Box:
    """Draw a shape somewhere in *place*, 0 to ``CELLS**2 - 1``, and return its box."""
    cell = image.width / CELLS
    size = cell * random.uniform(*scale)
    left = (place % CELLS) * cell + random.uniform(0, cell - size)
    top = (place // CELLS) * cell + random.uniform(0, cell - size)
    right, bottom = left + size, top + size
    pencil = ImageDraw.Draw(image)
    if shape == "circle":
        pencil.ellipse((left, top, right, bottom), fill=COLOURS[colour])
    elif shape == "square":
        pencil.rectangle((left, top, right, bottom), fill=COLOURS[colour])
    else:
        points = [(left, bottom), (right, bottom), ((left + right) / 2, top)]
        pencil.polygon(points, fill=COLOURS[colour])
    return left, top, right, bottom
