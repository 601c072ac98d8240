"""Generated drawings: a few shapes on a white page, as SVG and as words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from random import Random

from quintain.interfaces import SPLITS

COLOURS = ("red", "green", "blue", "orange", "purple", "black")
"""Names of SVG, which mean the colours of its standard."""
KINDS = ("circle", "square", "triangle")
SHARES = {"train": range(2, 10), "dev": range(1), "test": range(1, 2)}
"""Tenths of all drawings by the hash of their SVG, so that no drawing is in two splits."""


@dataclass(frozen=True, kw_only=True)
class PlainShape:
    """One shape; *x*, *y* is the centre of the square that it fills, with sides of 2 *half*."""

    kind: str
    colour: str
    x: int
    y: int
    half: int

    @property
    def svg(self) -> str:
        """The element that draws it."""
        left, top, right, bottom = self.box
        if self.kind == "circle":
            return f'<circle cx="{self.x}" cy="{self.y}" r="{self.half}" fill="{self.colour}"/>'
        if self.kind == "square":
            side = 2 * self.half
            return (
                f'<rect x="{left}" y="{top}" width="{side}" height="{side}" fill="{self.colour}"/>'
            )
        points = f"{left},{bottom} {right},{bottom} {self.x},{top}"
        return f'<polygon points="{points}" fill="{self.colour}"/>'

    @property
    def words(self) -> str:
        left, top, right, bottom = self.box
        if self.kind == "circle":
            return f"a {self.colour} circle of radius {self.half} around ({self.x}, {self.y})"
        if self.kind == "square":
            return f"a {self.colour} square from ({left}, {top}) to ({right}, {bottom})"
        points = f"({left}, {bottom}), ({right}, {bottom}) and ({self.x}, {top})"
        return f"a {self.colour} triangle with corners {points}"

    @property
    def box(self) -> tuple[int, int, int, int]:
        """Left, top, right and bottom."""
        return self.x - self.half, self.y - self.half, self.x + self.half, self.y + self.half


def svg_of(shapes: list[PlainShape], size: int) -> str:
    """Return a drawing of *size* by *size*."""
    inside = "".join(shape.svg for shape in shapes)
    return f'<svg viewBox="0 0 {size} {size}">{inside}</svg>'


def draw(random: Random, size: int, shapes: int) -> list[PlainShape]:
    """Return 1 to *shapes* shapes in different quarters of the page, so that none covers another."""
    quarter = size // 2
    places = random.sample(range(4), random.randint(1, shapes))
    drawn = []
    for place in places:
        half = random.randint(size // 8, size // 5)
        x = (place % 2) * quarter + random.randint(half, quarter - half)
        y = (place // 2) * quarter + random.randint(half, quarter - half)
        kind, colour = random.choice(KINDS), random.choice(COLOURS)
        drawn.append(PlainShape(kind=kind, colour=colour, x=x, y=y, half=half))
    return drawn


def scenes(name: str, split: str, count: int, size: int, shapes: int) -> Iterator[list[PlainShape]]:
    """Yield *count* different drawings, none of which is in another split.

    Raises:
        KeyError: *split* is none.
    """
    if split not in SPLITS:
        raise KeyError(split)
    random = Random(f"{name}/{split}")
    seen: set[str] = set()
    while len(seen) < count:
        scene = draw(random, size, shapes)
        svg = svg_of(scene, size)
        if svg not in seen and sha256(svg.encode()).digest()[0] % 10 in SHARES[split]:
            seen.add(svg)
            yield scene
