"""Saying where a named shape is: a point in it, or its box."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

from PIL import Image

from quintain import Demonstration, Message, Rollout, Task, control, reward
from quintain.errors import UsageError

from .seen import DrawnEnvironment, TaskMaker, empty
from .shapes import CELLS, SHAPES, check_shapes, draw_shape

SCALE = 100
"""Coordinates go from 0 at the left and the top to this at the right and the bottom."""


@dataclass(frozen=True, kw_only=True)
class TargetTask(Task):
    """A shape to find.

    Attributes:
        box: of the shape: left, top, right and bottom, in hundredths of the picture, whole.
        boxes: whether the box is asked for, and not a point.
    """

    box: tuple[int, int, int, int]
    boxes: bool


@reward(range=(0, 1))
def on_target(rollout: Rollout[TargetTask, None]) -> float:
    """Return 1 if the point of the reply is in the box, else 0; where a box is asked for, the area
    that both boxes share, as a share of the area of their union (intersection over union).

    The numbers of the reply must be the two or four that are asked for, and no more.
    """
    numbers = [int(digits) for digits in re.findall(r"(?<!\d)\d{1,3}(?!\d)", rollout.reply)]
    task = rollout.task
    if len(numbers) != (4 if task.boxes else 2):
        return 0.0
    left, top, right, bottom = task.box
    if not task.boxes:
        x, y = numbers
        return float(left <= x <= right and top <= y <= bottom)
    return overlap(task.box, (numbers[0], numbers[1], numbers[2], numbers[3]))


def overlap(one: tuple[int, int, int, int], other: tuple[int, int, int, int]) -> float:
    """Return intersection over union of two boxes: left, top, right, bottom; 0 for a box without
    area.

    >>> overlap((0, 0, 2, 2), (1, 0, 3, 2))
    0.3333333333333333
    """
    areas = [max(0, box[2] - box[0]) * max(0, box[3] - box[1]) for box in (one, other)]
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    shared = max(0, width) * max(0, height)
    return shared / (sum(areas) - shared) if shared else 0.0


class Clicking(DrawnEnvironment[TargetTask, None]):
    """Where a shape of a kind and colour is, which is in the picture once.

    Attributes:
        boxes: ask for the box of the shape, whose reward is graded, and not for a point in it.
        others: at most so many shapes of another kind or colour.
        shapes: kinds of shapes, of circle, square and triangle.
        scale: least and greatest size of a shape, as shares of its place. A point that is drawn
            blindly is in the shape once in 35 times.
    """

    reward = on_target
    boxes: bool = False
    others: int = 5
    shapes: tuple[str, ...] = SHAPES
    scale: tuple[float, float] = (0.55, 0.8)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.others < CELLS**2:
            raise UsageError(f"others is {self.others}; expected 0 to {CELLS**2 - 1}")
        check_shapes(self.shapes, self.scale)
        if self.others and len(self.colours) * len(self.shapes) == 1:
            raise UsageError("one colour and one shape leave no others; expected others = 0")

    def made(self, random: Random) -> tuple[Image.Image, str, TaskMaker[TargetTask]]:
        kinds = [(colour, shape) for colour in self.colours for shape in self.shapes]
        asked = random.choice(kinds)
        kinds.remove(asked)
        count = random.randint(0, self.others)
        drawn = [asked] + [random.choice(kinds) for _ in range(count)]
        image = empty(self.size)
        places = random.sample(range(CELLS**2), len(drawn))
        found = [
            draw_shape(image, random, colour, shape, place, self.scale)
            for (colour, shape), place in zip(drawn, places, strict=True)
        ]
        left, top, right, bottom = (round(edge * SCALE / self.size) for edge in found[0])
        make = partial(TargetTask, box=(left, top, right, bottom), boxes=self.boxes)
        what = f"the {asked[0]} {asked[1]}"
        if self.boxes:
            question = f"Where is {what}? Answer with left top right bottom, each 0 to {SCALE}."
        else:
            question = f"Click {what}. Answer with x y, each 0 to {SCALE}."
        return image, question, make

    @control(scores="max")
    def oracle(self, task: TargetTask, messages: Sequence[Message]) -> str:
        """Answer with the box, or its middle."""
        left, top, right, bottom = task.box
        if task.boxes:
            return f"{left} {top} {right} {bottom}"
        return f"{(left + right) // 2} {(top + bottom) // 2}"

    @control()
    def blind_guess(self, task: TargetTask, messages: Sequence[Message]) -> str:
        """Answer without the picture: the middle of any place, or its box, always the same for a
        task.
        """
        place = Random(task.id).randrange(CELLS**2)
        step = SCALE // CELLS
        left, top = place % CELLS * step, place // CELLS * step
        if task.boxes:
            return f"{left} {top} {left + step} {top + step}"
        return f"{left + step // 2} {top + step // 2}"

    @control(scores="min")
    def everywhere(self, task: TargetTask, messages: Sequence[Message]) -> str:
        """Give a point in each place."""
        step = SCALE // CELLS
        points = [
            (x * step + step // 2, y * step + step // 2) for x in range(CELLS) for y in range(CELLS)
        ]
        return " ".join(f"{x} {y}" for x, y in points)

    def demonstrations(self, split: str) -> Iterator[Demonstration]:
        for task in self.tasks(split):
            yield Demonstration(prompt=task.prompt, reply=self.oracle(task, ()))
