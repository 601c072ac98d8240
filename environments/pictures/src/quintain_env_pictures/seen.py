"""What the environments have in common: a drawn picture, and a question about it."""

from __future__ import annotations

import io
import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from random import Random
from typing import Protocol, TypeVar

from PIL import Image

from quintain import (
    Demonstration,
    Environment,
    Message,
    Rollout,
    Task,
    control,
    reward,
)
from quintain.errors import UsageError
from quintain.interfaces import SPLITS
from quintain_vision import picture

COLOURS = {
    "red": (214, 39, 40),
    "green": (44, 160, 44),
    "blue": (31, 119, 180),
    "yellow": (240, 200, 30),
    "purple": (128, 60, 160),
    "orange": (255, 127, 14),
}
COMMON = ("red", "green", "blue", "yellow")
"""The colours unless others are named, so that two are left to measure with."""

TRIES = 60
"""Pictures that are drawn for a task at most, since those of other splits, and equal
ones, are left out."""

T = TypeVar("T", bound=Task)
R = TypeVar("R")
T_co = TypeVar("T_co", bound=Task, covariant=True)


@dataclass(frozen=True, kw_only=True)
class PictureTask(Task):
    """A question about a picture.

    Attributes:
        answer: a whole number, as text.
    """

    answer: str


@reward
def right_number(rollout: Rollout[PictureTask, None]) -> float:
    """Return 1 if the last number of the reply is the answer, else 0."""
    numbers = re.findall(r"[0-9]+", rollout.reply)
    # As text: Python makes no number of 4,301 digits, and a reply may have them.
    return float(bool(numbers) and (numbers[-1].lstrip("0") or "0") == rollout.task.answer)


class TaskMaker(Protocol[T_co]):
    """A task that lacks its prompt alone."""

    def __call__(self, *, prompt: Sequence[Message]) -> T_co: ...


class DrawnEnvironment(Environment[T, R]):
    """Generated pictures with a question each; subclasses draw.

    Attributes:
        size: width and height of the pictures, in pixels.
        colours: what is asked for, of red, green, blue, yellow, purple and orange.
        train: number of tasks of the split ``train``.
        held_out: number of tasks of ``dev``, and of ``test``. No task is in two splits.
        blind: leave the picture out, which measures what a model answers without it.
    """

    size: int = 64
    colours: tuple[str, ...] = COMMON
    train: int = 1000
    held_out: int = 200
    blind: bool = False

    def __post_init__(self) -> None:
        for name, value, least in (
            ("size", self.size, 16),
            ("train", self.train, 1),
            ("held_out", self.held_out, 1),
        ):
            if value < least:
                raise UsageError(f"{name} is {value}; expected a whole number from {least} up")
        known = set(self.colours) <= set(COLOURS)
        if not self.colours or not known or len(set(self.colours)) < len(self.colours):
            raise UsageError(
                f"colours is {list(self.colours)}; expected some of {', '.join(COLOURS)}, each once"
            )

    @abstractmethod
    def made(self, random: Random) -> tuple[Image.Image, str, TaskMaker[T]]:
        """Return a picture, a question about it, and the task but its prompt."""

    def tasks(self, split: str) -> Iterator[T]:
        if split not in SPLITS:
            raise KeyError(split)
        wanted = self.train if split == "train" else self.held_out
        seen: set[bytes] = set()
        for number in range(TRIES * wanted):
            if len(seen) == wanted:
                return
            random = Random(f"{type(self).__name__}/{split}/{number}")
            image, question, make = self.made(random)
            digest = digest_of(image, question)
            if digest in seen or split_of(digest) != split:
                continue
            seen.add(digest)
            task = make(prompt=[Message("user", f"{picture(png_of(image))}\n{question}")])
            if self.blind:  # the same task, to compare with
                task = replace(task, prompt=[Message("user", question)])
            yield task
        if len(seen) < wanted:
            raise UsageError(
                f"these settings have {len(seen)} different pictures for {split}, and "
                f"{wanted} are asked for: lower {'train' if split == 'train' else 'held_out'}, or name a "
                "larger picture or more colours"
            )


class PictureEnvironment(DrawnEnvironment[PictureTask, None]):
    """A generated picture, and a question whose answer is a number.

    The answer is drawn first, each as often, and the question apart from it. So nobody who does not
    see the picture scores above chance, which is one divided by the number of answers.
    """

    reward = right_number

    @property
    @abstractmethod
    def answers(self) -> Sequence[int]:
        """The answers, each as often as any other."""

    @abstractmethod
    def draw(self, random: Random, answer: int) -> tuple[Image.Image, str]:
        """Return a picture, and a question about it that has *answer*."""

    def made(self, random: Random) -> tuple[Image.Image, str, TaskMaker[PictureTask]]:
        answer = random.choice(self.answers)
        image, question = self.draw(random, answer)
        return image, question, partial(PictureTask, answer=str(answer))

    @control()
    def blind_guess(self, task: PictureTask, messages: Sequence[Message]) -> str:
        """Answer without the picture: any number, always the same for a task."""
        return str(Random(task.id).choice(self.answers))

    def demonstrations(self, split: str) -> Iterator[Demonstration]:
        for task in self.tasks(split):
            yield Demonstration(prompt=task.prompt, reply=task.answer)


def digest_of(image: Image.Image, question: str) -> bytes:
    """Return what equal pictures with equal questions have in common."""
    return sha256(question.encode() + b"\0" + image.tobytes()).digest()


def split_of(digest: bytes) -> str:
    """Return the one split that a task with this digest may be in, so that no task is in two: half of
    all are for ``train``.
    """
    return ("train", "train", "dev", "test")[digest[0] % 4]


def empty(size: int) -> Image.Image:
    """Return a white picture of *size* x *size* pixels."""
    return Image.new("RGB", (size, size), "white")


def png_of(image: Image.Image) -> bytes:
    """Return *image* as the content of a file of PNG."""
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()
