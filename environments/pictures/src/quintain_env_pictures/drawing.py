"""A prompt to a drawing: SVG of shapes that are asked for, drawn and counted."""

from __future__ import annotations

import asyncio
import base64
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import permutations, product
from random import Random
from typing import Any

from PIL import Image, ImageColor

from quintain import (
    Agent,
    Demonstration,
    Environment,
    Message,
    Rollout,
    Score,
    Task,
    control,
    reward,
)
from quintain.errors import UsageError
from quintain_vision import parts, picture, stored

from .rendering import DrawingFault, render, svg_of
from .scenes import COLOURS, KINDS, SHARES, PlainShape
from .scenes import svg_of as svg_of_shapes
from .seen import png_of

SIZE = 64
"""Width and height of the renderings, in pixels."""
NUMBERS = ("no", "one", "two", "three")
PLACES = 3
"""Rows and columns of places of the controls' drawings."""
LEAST = 12
"""Pixels of a shape; smaller spots do not count."""
WHITE = (255, 255, 255)
TOLERANCE = 60
"""Sum of the differences in red, green and blue up to which a colour has a name."""
INK = 225
"""A pixel whose darkest colour is below belongs to a shape; white has 255."""
OTHER = "other"
"""Colours and kinds that cannot be asked for."""
PALETTE: Mapping[str, tuple[int, ...]] = {name: ImageColor.getrgb(name) for name in COLOURS}


@dataclass(frozen=True, kw_only=True)
class RequestTask(Task):
    """Shapes to draw.

    Attributes:
        wanted: how many of each, by colour and kind, such as ``"red circle": 2``.
    """

    wanted: Mapping[str, int]


@reward(range=(0, 1))
def right_drawing(rollout: Rollout[RequestTask, str]) -> Score:
    """Return how many shapes of the right colour and kind are in the picture: the sum of the smaller
    of the numbers wanted and found, over that of the larger. It is 1 where nothing is missing and
    nothing is too much, and 0 without a picture.
    """
    wanted = Counter(rollout.task.wanted)
    found = Counter(shapes_in(_image(rollout.result))) if rollout.result else Counter[str]()
    names = ", ".join(f"{count} {name}" for name, count in sorted(found.items())) or "nothing"
    return Score(
        value=_overlap(wanted, found),
        parts={
            "colours": _overlap(_of(wanted, 0), _of(found, 0)),
            "kinds": _overlap(_of(wanted, 1), _of(found, 1)),
        },
        reason=f"found: {names}",
    )


def _overlap(wanted: Counter[str], found: Counter[str]) -> float:
    return (wanted & found).total() / (wanted | found).total()


def _of(shapes: Counter[str], word: int) -> Counter[str]:
    """Count *shapes* by one word of their names: 0 is the colour, and 1 the kind."""
    counts = Counter[str]()
    for name, count in shapes.items():
        counts[name.split()[word]] += count
    return counts


def _image(result: str) -> Image.Image:
    (digest,) = [part["digest"] for part in parts(result) if part["type"] == "image"]
    return stored(digest)


def shapes_in(image: Image.Image) -> list[str]:
    """Return colour and kind of each shape on a white page: each area of one colour that hangs
    together, of `LEAST` pixels or more.

    The kind follows from the share of its box that it fills, and from where its middle lies, so it
    is that of upright squares, circles, and triangles. Others are `OTHER`, as are other colours.
    """
    width, height = image.size
    pixels = [*image.convert("RGB").get_flattened_data()]
    left = {at for at, pixel in enumerate(pixels) if min(pixel) < INK}
    found = []
    while left:
        edge = [left.pop()]
        area = [*edge]
        while edge:
            at = edge.pop()
            x, y = at % width, at // width
            near = {
                y2 * width + x2
                for x2, y2 in ((x - 1, y), (x + 1, y), (x, y - 1), (x, y + 1))
                if 0 <= x2 < width and 0 <= y2 < height
            } & left
            left -= near
            edge += near
            area += near
        if len(area) >= LEAST:
            (colour, _), *_ = Counter(pixels[at] for at in area).most_common(1)
            # those at the edge are mixed with white
            inner = [at for at in area if _apart(pixels[at], colour) < _apart(WHITE, colour) / 2]
            whole = 2 * len(inner) > len(area)
            name = _colour(colour) if whole else OTHER
            found.append(f"{name} {_kind([(at % width, at // width) for at in inner])}")
    return found


def _apart(one: Sequence[int], other: Sequence[int]) -> int:
    return sum(abs(a - b) for a, b in zip(one, other, strict=True))


def _colour(pixel: Sequence[int]) -> str:
    name = min(PALETTE, key=lambda one: _apart(pixel, PALETTE[one]))
    return name if _apart(pixel, PALETTE[name]) <= TOLERANCE else OTHER


def _kind(area: Sequence[tuple[int, int]]) -> str:
    columns, rows = zip(*area, strict=True)
    across, down = max(columns) - min(columns) + 1, max(rows) - min(rows) + 1
    filled = len(area) / (across * down)
    # how far the middle of the area is from that of its box, as a share of the box
    aside = abs(sum(columns) / len(area) - (max(columns) + min(columns)) / 2) / across
    above = abs(sum(rows) / len(area) - (max(rows) + min(rows)) / 2) / down
    even = 0.75 < across / down < 1.34
    if filled > 0.9 and even:
        return "square"
    if 0.68 < filled < 0.88 and even and max(aside, above) < 0.05:
        return "circle"
    if 0.38 < filled < 0.66 and max(aside, above) > 0.08:
        return "triangle"
    return OTHER


class Drawing(Environment[RequestTask, str]):
    """Write SVG that draws one to three shapes of each colour and kind that is asked for.

    The result of an episode is the rendering, a picture as `quintain_vision.picture` returns it, or
    empty without one. So a reward model of pictures can score it, and `right_drawing` is then the
    yardstick that does not train.

    Attributes:
        groups: colours and kinds of a prompt, 1 or 2.
        most: shapes of each, at most.
        train: number of tasks of the split ``train``, at most; one group has 54 prompts in all.
        held_out: number of tasks of ``dev``, and of ``test``, at most.
    """

    groups: int = 2
    most: int = 3
    train: int = 1000
    held_out: int = 100
    reward = right_drawing

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("groups", self.groups, range(1, 3)),
            ("most", self.most, range(1, len(NUMBERS))),
            ("train", self.train, range(1, 1_000_001)),
            ("held_out", self.held_out, range(1, 100_001)),
        ):
            if value not in allowed:
                raise UsageError(f"{name} is {value}; expected {allowed[0]} to {allowed[-1]}")

    def tasks(self, split: str) -> Iterator[RequestTask]:
        if split not in SHARES:
            raise KeyError(split)
        things = [f"{colour} {kind}" for colour, kind in product(COLOURS, KINDS)]
        counts = range(1, self.most + 1)
        requests = [
            dict(zip(names, numbers, strict=True))
            for length in range(1, self.groups + 1)
            for names in permutations(things, length)
            for numbers in product(counts, repeat=length)
        ]
        Random("drawing").shuffle(requests)
        left = self.train if split == "train" else self.held_out
        for wanted in requests:
            prompt = f"Draw {_words(wanted)} as SVG of {SIZE} by {SIZE}."
            # By what is drawn, so that its words in another order are in the same split.
            things_wanted = repr(sorted(wanted.items())).encode()
            if left and sha256(things_wanted).digest()[0] % 10 in SHARES[split]:
                left -= 1
                yield RequestTask(prompt=prompt, wanted=wanted)

    async def rollout(self, task: RequestTask, agent: Agent) -> str:
        agent.user(task.prompt)
        turn = await agent.turn()
        try:
            image = await asyncio.to_thread(render, svg_of(turn.reply), SIZE)
        except DrawingFault:
            return ""
        return picture(png_of(image))

    @control(scores="max")
    def oracle(self, task: RequestTask, messages: Sequence[Message]) -> str:
        """Draw what is asked for, side by side."""
        return drawn(task.wanted, Random(task.id))

    @control()
    def blind_guess(self, task: RequestTask, messages: Sequence[Message]) -> str:
        """Draw without the prompt: other shapes, always the same for a task."""
        random = Random(task.id)
        name = f"{random.choice(COLOURS)} {random.choice(KINDS)}"
        return drawn({name: random.randint(1, self.most)}, random)

    def demonstrations(self, split: str) -> Iterator[Demonstration]:
        for task in self.tasks(split):
            yield Demonstration(prompt=task.prompt, reply=drawn(task.wanted, Random(task.id)))


def drawn(wanted: Mapping[str, int], random: Random) -> str:
    """Return SVG of the shapes *wanted*, each in a place of its own."""
    names = [name for name, count in wanted.items() for _ in range(count)]
    step = SIZE // PLACES
    half = step // 2 - 2
    shapes = []
    for name, place in zip(names, random.sample(range(PLACES**2), len(names)), strict=True):
        colour, kind = name.split()
        x, y = (place % PLACES) * step + step // 2, (place // PLACES) * step + step // 2
        shapes.append(PlainShape(kind=kind, colour=colour, x=x, y=y, half=half))
    return svg_of_shapes(shapes, SIZE)


def rankings(tasks: Iterable[RequestTask], *, pictures: int = 4, seed: int = 0) -> Iterator[Any]:
    """Yield a row for `quintain reward train` for each of *tasks*: a prompt, a right drawing, and
    others with another colour, kind or number, ranked by the yardstick; as ``data:`` URLs.

    Args:
        pictures: of a row, at least 2; fewer where two would be equal.
    """
    for task in tasks:
        random = Random(f"{seed}/{task.id}")
        places: dict[float, list[str]] = {}
        seen = set()
        for number in range(pictures):
            wanted = _changed(task.wanted, random) if number else dict(task.wanted)
            value = _overlap(Counter(task.wanted), Counter(wanted))
            png = png_of(render(drawn(wanted, random), SIZE))
            url = f"data:image/png;base64,{base64.b64encode(png).decode()}"
            if url not in seen and (value < 1 or not number):
                seen.add(url)
                places.setdefault(value, []).append(url)
        if len(places) > 1:
            order = sorted(places, reverse=True)
            yield {"prompt": task.prompt, "pictures": [places[value] for value in order]}


def _changed(wanted: Mapping[str, int], random: Random) -> dict[str, int]:
    """Return *wanted* with another colour, kind or number in one place."""
    changed = dict(wanted)
    name = random.choice([*changed])
    count = changed.pop(name)
    colour, kind = name.split()
    part = random.randrange(3)
    if part == 0:
        colour = random.choice([one for one in COLOURS if one != colour])
    elif part == 1:
        kind = random.choice([one for one in KINDS if one != kind])
    else:
        count = random.choice([n for n in range(1, len(NUMBERS)) if n != count])
    changed[f"{colour} {kind}"] = min(changed.get(f"{colour} {kind}", 0) + count, len(NUMBERS) - 1)
    return changed


def _words(wanted: Mapping[str, int]) -> str:
    each = [f"{NUMBERS[count]} {name}{'s' * (count > 1)}" for name, count in wanted.items()]
    return " and ".join(each)
