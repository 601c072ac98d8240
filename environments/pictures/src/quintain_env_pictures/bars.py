"""Reading the height of a bar."""

from __future__ import annotations

from random import Random

from PIL import Image, ImageDraw

from quintain.errors import UsageError

from .seen import COLOURS, PictureEnvironment, empty


class Bars(PictureEnvironment):
    """How many lines of the grid a coloured bar of a chart reaches.

    Attributes:
        lines: of the grid, the largest answer; the least is 1. Chance is 1 / lines.
    """

    lines: int = 6

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 2 <= self.lines <= self.size // 4:
            raise UsageError(
                f"lines is {self.lines}; expected 2 to {self.size // 4} in pictures of {self.size} "
                "pixels"
            )

    @property
    def answers(self) -> range:
        return range(1, self.lines + 1)

    def draw(self, random: Random, answer: int) -> tuple[Image.Image, str]:
        colours = random.sample(self.colours, len(self.colours))
        asked = random.choice(colours)
        image = empty(self.size)
        pencil = ImageDraw.Draw(image)
        step = (self.size - 2) / (self.lines + 1)
        width = self.size / len(colours)
        for line in range(1, self.lines + 1):
            height = round(self.size - 1 - line * step)
            pencil.line((0, height, self.size, height), fill=(205, 205, 205))
        for place, colour in enumerate(colours):
            value = answer if colour == asked else random.choice(self.answers)
            top = round(self.size - 1 - value * step)
            left, right = round((place + 0.2) * width), round((place + 0.8) * width)
            pencil.rectangle((left, top, right, self.size - 1), fill=COLOURS[colour])
        return image, f"How many lines does the {asked} bar reach? Answer with a number."
