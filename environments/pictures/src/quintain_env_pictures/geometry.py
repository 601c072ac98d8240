"""Reading a length, an angle or an area from a figure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import Literal

from PIL import Image, ImageDraw

from quintain.errors import UsageError

from .seen import COLOURS, PictureEnvironment, empty

SQUARES = 8
"""Rows and columns of the grid that lengths and areas are read from."""
LONGEST = 6
"""Squares of a line, and of a side."""
GREY = (205, 205, 205)


class Geometry(PictureEnvironment):
    """How long a line is, how large a rectangle, or how wide an angle.

    Attributes:
        measure: ``length`` in squares of the grid, 1 to 6, of a line beside one of another colour;
            ``area`` in squares, of a rectangle, one of 8 products; ``angle`` in degrees, 20 to 160
            in steps of 20. Chance is 1 of 6, 1 of 8 and 1 of 8.
    """

    measure: Literal["length", "area", "angle"] = "length"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size < 4 * SQUARES:
            raise UsageError(f"size is {self.size}; expected {4 * SQUARES} pixels or more")
        if self.measure == "length" and len(self.colours) < 2:
            raise UsageError("a line lies beside one of another colour; name two colours or more")

    @property
    def answers(self) -> Sequence[int]:
        if self.measure == "angle":
            return range(20, 180, 20)
        return range(1, LONGEST + 1) if self.measure == "length" else (1, 2, 3, 4, 6, 8, 9, 12)

    def draw(self, random: Random, answer: int) -> tuple[Image.Image, str]:
        image = empty(self.size)
        colours = random.sample(self.colours, len(self.colours))
        if self.measure == "angle":
            _draw_angle(image, random, colours[0], answer)
            return image, f"How many degrees has the {colours[0]} angle? Answer with a number."
        _draw_grid(image)
        if self.measure == "area":
            _draw_rectangle(image, random, colours[0], answer)
            return image, f"How many squares has the {colours[0]} area? Answer with a number."
        _draw_lines(image, random, colours[:2], (answer, random.randint(1, LONGEST)))
        return image, f"How many squares long is the {colours[0]} line? Answer with a number."


def _edges(image: Image.Image) -> list[int]:
    """Return where the lines of the grid are, in pixels."""
    return [round(place * (image.width - 1) / SQUARES) for place in range(SQUARES + 1)]


def _draw_grid(image: Image.Image) -> None:
    pencil = ImageDraw.Draw(image)
    for edge in _edges(image):
        pencil.line((0, edge, image.width, edge), fill=GREY)
        pencil.line((edge, 0, edge, image.width), fill=GREY)


def _draw_lines(
    image: Image.Image, random: Random, colours: Sequence[str], lengths: Sequence[int]
) -> None:
    """Draw lines on lines of the grid, all across or all down, which do not touch."""
    pencil = ImageDraw.Draw(image)
    edges = _edges(image)
    across = random.random() < 0.5
    width = max(1, image.width // 24)
    places = random.sample(range(1, SQUARES, 2), len(colours))
    for colour, length, place in zip(colours, lengths, places, strict=True):
        start = random.randint(0, SQUARES - length)
        first, last, level = edges[start], edges[start + length], edges[place]
        ends = (first, level, last, level) if across else (level, first, level, last)
        pencil.line(ends, fill=COLOURS[colour], width=width)


def _draw_rectangle(image: Image.Image, random: Random, colour: str, area: int) -> None:
    edges = _edges(image)
    sides = range(1, LONGEST + 1)
    width = random.choice([side for side in sides if area % side == 0 and area // side in sides])
    height = area // width
    left, top = random.randint(0, SQUARES - width), random.randint(0, SQUARES - height)
    # A pixel inside the lines, so that the grid shows around it.
    box = (edges[left] + 1, edges[top] + 1, edges[left + width] - 1, edges[top + height] - 1)
    ImageDraw.Draw(image).rectangle(box, fill=COLOURS[colour])


def _draw_angle(image: Image.Image, random: Random, colour: str, degrees: int) -> None:
    """Draw two arms of one length from a point near the middle."""
    pencil = ImageDraw.Draw(image)
    size = image.width
    x, y = (size * random.uniform(0.45, 0.55) for _ in range(2))
    turned = random.uniform(0, 360)
    for direction in (turned, turned + degrees):
        angle = math.radians(direction)
        end = (x + 0.42 * size * math.cos(angle), y + 0.42 * size * math.sin(angle))
        pencil.line((x, y, *end), fill=COLOURS[colour], width=max(1, size // 24))
