"""A picture to SVG: what the reply draws is compared with the picture."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Literal

from PIL import Image, ImageChops, ImageStat

from quintain import Demonstration, Environment, Message, Rollout, Score, Task, control, reward
from quintain.errors import UsageError
from quintain_vision import picture

from .rendering import DrawingFault, render, svg_of
from .scenes import draw, scenes
from .scenes import svg_of as svg_of_shapes
from .seen import png_of
from .svg_worker import OTHERS, SHAPES

ELEMENTS = ", ".join(name for name in (*OTHERS, *SHAPES) if name != "svg")
MOST_SHAPES = 4


@dataclass(frozen=True, kw_only=True)
class DrawingTask(Task):
    """A picture to draw.

    Attributes:
        answer: SVG that draws it.
        size: width and height of the renderings that are compared, in pixels.
    """

    answer: str
    size: int


@reward(range=(0, 1))
async def same_picture(rollout: Rollout[DrawingTask, None]) -> Score:
    """Return how alike the reply's drawing and the target are, from 0 to 1 (`likeness`); 0 for a
    reply without a drawing.
    """
    task = rollout.task
    target = await asyncio.to_thread(render, task.answer, task.size)
    try:
        drawn = await asyncio.to_thread(render, svg_of(rollout.reply), task.size)
    except DrawingFault as fault:
        return Score(value=0.0, parts={"pixels": 0.0, "edges": 0.0}, reason=str(fault))
    pixels, edges = likeness(drawn, target)
    return Score(value=(pixels + edges) / 2, parts={"pixels": pixels, "edges": edges})


def likeness(one: Image.Image, other: Image.Image) -> tuple[float, float]:
    """Return how alike the colours, and the edges, of two pictures of one size are, from 0 to 1.

    Both are the weighted Jaccard similarity: the sum over pixels and channels of the smaller value,
    over that of the larger. Values are the distance from white, and of edges the differences between
    neighbours. So a white page has nothing in common with a drawing, and ink in the wrong place
    costs as much as ink that is missing.
    """
    return _overlap(_ink(one), _ink(other)), _overlap(_edges(one), _edges(other))


def _ink(image: Image.Image) -> list[Image.Image]:
    return [ImageChops.invert(image)]


def _edges(image: Image.Image) -> list[Image.Image]:
    """Return the differences of *image* to itself moved by one pixel to the right, and down."""
    moved = (ImageChops.offset(image, 1, 0), ImageChops.offset(image, 0, 1))
    return [ImageChops.difference(image, other) for other in moved]


def _overlap(ones: list[Image.Image], others: list[Image.Image]) -> float:
    pairs = [*zip(ones, others, strict=True)]
    common = sum(sum(ImageStat.Stat(ImageChops.darker(a, b)).sum) for a, b in pairs)
    all_of_both = sum(sum(ImageStat.Stat(ImageChops.lighter(a, b)).sum) for a, b in pairs)
    return float(common / all_of_both) if all_of_both else 1.0


class Svg(Environment[DrawingTask, None]):
    """Write SVG that draws a picture, or what words describe.

    Attributes:
        prompt: ``picture`` shows the picture, and ``text`` describes it, for models that see
            nothing.
        size: width and height of the pictures, in pixels.
        shapes: at most so many in a picture, each in a quarter of its own.
        train: number of tasks of the split ``train``.
        held_out: number of tasks of ``dev``, and of ``test``.
        blind: leave the picture or its description out.
    """

    prompt: Literal["picture", "text"] = "picture"
    size: int = 64
    shapes: int = 3
    train: int = 1000
    held_out: int = 200
    blind: bool = False
    reward = same_picture

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("size", self.size, range(32, 513)),
            ("shapes", self.shapes, range(1, MOST_SHAPES + 1)),
            ("train", self.train, range(1, 1_000_001)),
            ("held_out", self.held_out, range(1, 100_001)),
        ):
            if value not in allowed:
                raise UsageError(f"{name} is {value}; expected {allowed[0]} to {allowed[-1]}")
        if self.prompt not in ("picture", "text"):
            raise UsageError(f"prompt is {self.prompt!r}; expected 'picture' or 'text'")

    def tasks(self, split: str) -> Iterator[DrawingTask]:
        count = self.train if split == "train" else self.held_out
        for shapes in scenes("svg", split, count, self.size, self.shapes):
            answer = svg_of_shapes(shapes, self.size)
            asked = f"Write an SVG of {self.size} by {self.size}, with elements of {ELEMENTS}."
            if self.prompt == "text":
                shown = f"On a white page: {'; '.join(shape.words for shape in shapes)}."
            else:
                shown = picture(png_of(render(answer, self.size)))
            prompt = [Message("user", f"{shown}\n{asked}")]
            task = DrawingTask(prompt=prompt, answer=answer, size=self.size)
            if self.blind:  # the same task, to compare with
                task = replace(task, prompt=[Message("user", asked)])
            yield task

    @control()
    def blind_guess(self, task: DrawingTask, messages: Sequence[Message]) -> str:
        """Draw without the picture: other shapes, always the same for a task."""
        return svg_of_shapes(draw(Random(task.id), self.size, self.shapes), self.size)

    def demonstrations(self, split: str) -> Iterator[Demonstration]:
        for task in self.tasks(split):
            yield Demonstration(prompt=task.prompt, reply=task.answer)
