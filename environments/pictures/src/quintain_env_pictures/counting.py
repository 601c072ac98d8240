"""Counting shapes of one colour among others."""

from __future__ import annotations

from random import Random

from PIL import Image

from quintain.errors import UsageError

from .seen import PictureEnvironment, empty
from .shapes import CELLS, SHAPES, check_shapes, draw_shape


class Counting(PictureEnvironment):
    """How many shapes of a kind and colour are in the picture.

    Attributes:
        most: the largest answer; the least is 0. Chance is 1 / (most + 1).
        others: at most so many shapes of another kind or colour.
        shapes: kinds of shapes, of circle, square and triangle.
        scale: least and greatest size of a shape, as shares of its place.
    """

    most: int = 5
    others: int = 5
    shapes: tuple[str, ...] = SHAPES
    scale: tuple[float, float] = (0.55, 0.8)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.most < 1 or self.others < 0 or self.most + self.others > CELLS**2:
            raise UsageError(
                f"most is {self.most} and others {self.others}; expected 1 or more, 0 or more, and at "
                f"most {CELLS**2} together"
            )
        check_shapes(self.shapes, self.scale)
        if self.others and len(self.colours) * len(self.shapes) == 1:
            raise UsageError("one colour and one shape leave no others; expected others = 0")

    @property
    def answers(self) -> range:
        return range(self.most + 1)

    def draw(self, random: Random, answer: int) -> tuple[Image.Image, str]:
        kinds = [(colour, shape) for colour in self.colours for shape in self.shapes]
        asked = random.choice(kinds)
        kinds.remove(asked)
        count = random.randint(0, self.others)
        drawn = [asked] * answer + [random.choice(kinds) for _ in range(count)]
        image = empty(self.size)
        places = random.sample(range(CELLS**2), len(drawn))
        for (colour, shape), place in zip(drawn, places, strict=True):
            draw_shape(image, random, colour, shape, place, self.scale)
        return image, f"How many {asked[0]} {asked[1]}s are there? Answer with a number."
