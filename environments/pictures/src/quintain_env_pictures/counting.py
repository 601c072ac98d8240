"""Counting shapes of one colour among others."""

from __future__ import annotations

from random import Random

from PIL import Image, ImageDraw

from quintain.errors import UsageError

from .seen import COLOURS, PictureEnvironment

SHAPES = ("circle", "square", "triangle")
CELLS = 4
"""Rows and columns of places, each for one shape at most, so that none covers another."""


class Counting(PictureEnvironment):
    """How many shapes of a kind and colour are in the picture.

    Attributes:
        most: the largest answer; the least is 0. Chance is 1 / (most + 1).
        others: at most so many shapes of another kind or colour.
        shapes: kinds of shapes, of circle, square and triangle.
    """

    most: int = 5
    others: int = 5
    shapes: tuple[str, ...] = SHAPES

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.most < 1 or self.others < 0 or self.most + self.others > CELLS**2:
            raise UsageError(
                f"most is {self.most} and others {self.others}; expected 1 or more, 0 or more, and at "
                f"most {CELLS**2} together"
            )
        if not self.shapes or not set(self.shapes) <= set(SHAPES):
            raise UsageError(f"shapes is {list(self.shapes)}; expected some of {', '.join(SHAPES)}")

    @property
    def answers(self) -> range:
        return range(self.most + 1)

    def draw(self, random: Random, answer: int) -> tuple[Image.Image, str]:
        kinds = [(colour, shape) for colour in COLOURS for shape in self.shapes]
        asked = random.choice(kinds)
        kinds.remove(asked)
        count = random.randint(0, self.others)
        drawn = [asked] * answer + [random.choice(kinds) for _ in range(count)]
        image = Image.new("RGB", (self.size, self.size), "white")
        places = random.sample(range(CELLS**2), len(drawn))
        for (colour, shape), place in zip(drawn, places, strict=True):
            _draw_shape(image, random, colour, shape, place)
        return image, f"How many {asked[0]} {asked[1]}s are there? Answer with a number."


def _draw_shape(image: Image.Image, random: Random, colour: str, shape: str, place: int) -> None:
    cell = image.width / CELLS
    size = cell * random.uniform(0.55, 0.8)
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
