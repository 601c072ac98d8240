"""Generated pictures: the answer is in them, and nowhere else."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from quintain.errors import UsageError
from quintain.interfaces import SPLITS
from quintain_authoring import EnvironmentSuite, run_episode
from quintain_authoring.controls import ControlEngine
from quintain_env_pictures import (
    Bars,
    Clicking,
    Counting,
    Geometry,
    MapTask,
    PictureEnvironment,
    PictureMaze,
    TargetTask,
)
from quintain_env_pictures.clicking import overlap
from quintain_env_pictures.seen import COLOURS
from quintain_vision.messages import REFERENCE
from quintain_vision.store import stored


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUINTAIN_CACHE", str(tmp_path))


class TestCounting(EnvironmentSuite):
    environment = Counting
    args = {"train": 20, "held_out": 20}


class TestBars(EnvironmentSuite):
    environment = Bars
    args = {"train": 20, "held_out": 20}


class TestLength(EnvironmentSuite):
    environment = Geometry
    args = {"train": 20, "held_out": 20}


class TestArea(EnvironmentSuite):
    environment = Geometry
    args = {"train": 20, "held_out": 20, "measure": "area"}


class TestAngle(EnvironmentSuite):
    environment = Geometry
    args = {"train": 20, "held_out": 20, "measure": "angle"}


class TestClicking(EnvironmentSuite):
    environment = Clicking
    args = {"train": 20, "held_out": 20}


class TestBoxes(EnvironmentSuite):
    environment = Clicking
    args = {"train": 20, "held_out": 20, "boxes": True}


class TestPictureMaze(EnvironmentSuite):
    environment = PictureMaze
    args = {"train": 10, "held_out": 10, "width": 3}


NUMBERS = [
    Counting(held_out=400),
    Bars(held_out=400),
    Geometry(held_out=400),
    Geometry(held_out=400, measure="area"),
    Geometry(held_out=400, measure="angle"),
]
NAMES = ["counting", "bars", "length", "area", "angle"]


def score_of(played: Any) -> float:
    """The outcome of an episode that was scored."""
    assert played.outcome is not None, played.termination
    return float(played.outcome.total)


ROUND = [(math.cos(a / 10), math.sin(a / 10)) for a in range(63)]
"""Directions all around."""


def patches(image: Any, colour: str) -> int:
    """Number of connected areas of *colour*."""
    left = {
        (x, y)
        for x in range(image.width)
        for y in range(image.height)
        if image.getpixel((x, y)) == COLOURS[colour]
    }
    found = 0
    while left:
        found += 1
        edge = [left.pop()]
        while edge:
            x, y = edge.pop()
            near = {(x + dx, y + dy) for dx in (-1, 0, 1) for dy in (-1, 0, 1)} & left
            left -= near
            edge += near
    return found


@pytest.mark.parametrize("seed", range(6))
def test_the_shapes_that_are_asked_for_are_in_the_picture(seed: int) -> None:
    environment = Counting(shapes=("circle",))
    random = Random(seed)
    image, question = environment.draw(random, answer=seed)
    assert patches(image, question.split()[2]) == seed


@pytest.mark.parametrize("answer", range(1, 7))
def test_a_bar_is_as_high_as_the_answer(answer: int) -> None:
    image, question = Bars().draw(Random(answer), answer)
    colour = COLOURS[question.split()[5]]
    tops = [y for y in range(64) for x in range(64) if image.getpixel((x, y)) == colour]
    assert round((63 - min(tops)) / (62 / 7)) == answer


@pytest.mark.parametrize("length", range(1, 7))
def test_a_line_is_as_long_as_the_answer(length: int) -> None:
    image, question = Geometry().draw(Random(length), length)
    colour = COLOURS[question.split()[6]]
    found = [(x, y) for y in range(64) for x in range(64) if image.getpixel((x, y)) == colour]
    extent = max(
        max(point[axis] for point in found) - min(point[axis] for point in found) for axis in (0, 1)
    )
    assert round(extent / (63 / 8)) == length


@pytest.mark.parametrize("area", [1, 2, 3, 4, 6, 8, 9, 12])
def test_a_rectangle_has_as_many_squares_as_the_answer(area: int) -> None:
    image, question = Geometry(measure="area", size=161).draw(Random(area), area)
    colour = COLOURS[question.split()[5]]
    # the middle of each square of 20 pixels
    middles = [image.getpixel((20 * x + 10, 20 * y + 10)) for x in range(8) for y in range(8)]
    assert middles.count(colour) == area


@pytest.mark.parametrize("degrees", range(20, 180, 20))
def test_an_angle_is_as_wide_as_the_answer(degrees: int) -> None:
    image, question = Geometry(measure="angle", size=200).draw(Random(degrees), degrees)
    colour = COLOURS[question.split()[5]]
    marked = [(x, y) for y in range(200) for x in range(200) if image.getpixel((x, y)) == colour]
    # The ends of the arms, 84 pixels long, are a chord of 2 * 84 * sin(angle / 2) apart; wider
    # apart than an arm they are the two points with the largest distance.
    hull = [min(marked, key=lambda p: p[0] * dx + p[1] * dy) for dx, dy in ROUND]
    largest = max(math.dist(a, b) for a in hull for b in hull)
    chord = 2 * 84 * math.sin(math.radians(degrees / 2))
    assert abs(largest - max(chord, 84)) < 10


@pytest.mark.parametrize("environment", NUMBERS, ids=NAMES)
def test_without_the_picture_every_answer_is_as_likely(environment: PictureEnvironment) -> None:
    tasks = [*environment.tasks("test")]
    questions: dict[str, Counter[str]] = {}
    for task in tasks:
        text = REFERENCE.sub("", task.prompt[0].content)  # type: ignore[union-attr]
        questions.setdefault(text, Counter())[task.answer] += 1
    for answers in questions.values():
        share = answers.most_common(1)[0][1] / answers.total()
        assert share < 0.5
    total = Counter(task.answer for task in tasks)
    chance = len(tasks) / len(environment.answers)
    assert all(abs(count - chance) < 4 * chance**0.5 for count in total.values())


@pytest.mark.parametrize("environment", NUMBERS, ids=NAMES)
def test_a_blind_guess_scores_near_chance(environment: PictureEnvironment) -> None:
    tasks = [*environment.tasks("test")]
    right = sum(environment.blind_guess(task, ()) == task.answer for task in tasks)
    chance = 1 / len(environment.answers)
    assert abs(right / len(tasks) - chance) < 4 * (chance * (1 - chance) / len(tasks)) ** 0.5


def test_a_blind_click_hits_once_in_twenty() -> None:
    environment = Clicking(held_out=100)
    hits = [
        score_of(run_episode(environment, task, environment.blind_guess(task, ())))
        for task in environment.tasks("test")
    ]
    assert sum(hits) / len(hits) < 0.12


def test_a_blind_box_shares_little() -> None:
    environment = Clicking(held_out=100, boxes=True)
    shares = [
        score_of(run_episode(environment, task, environment.blind_guess(task, ())))
        for task in environment.tasks("test")
    ]
    assert sum(shares) / len(shares) < 0.12


def test_the_box_of_a_click_holds_the_shape_and_no_more() -> None:
    (task, *_) = Clicking(size=100, others=0, held_out=1).tasks("dev")
    image = stored(str(REFERENCE.search(task.prompt[0].content)[3]))  # type: ignore[index, union-attr]
    marked = [
        (x, y) for x in range(100) for y in range(100) if image.getpixel((x, y)) != (255,) * 3
    ]
    edges = [f(point[axis] for point in marked) for f in (min, max) for axis in (0, 1)]
    assert all(abs(a - b) <= 1 for a, b in zip(task.box, edges, strict=True))


@pytest.mark.parametrize(
    ("reply", "score"),
    [("15 25", 1), ("x=15, y=25", 1), ("9 25", 0), ("15 25 15 25", 0), ("15", 0)],
)
def test_a_click_scores_inside_of_the_box(reply: str, score: float) -> None:
    task = TargetTask(prompt="", box=(10, 20, 30, 40), boxes=False)
    assert score_of(run_episode(Clicking(), task, reply)) == score


@pytest.mark.parametrize(
    ("other", "share"),
    [
        ((10, 20, 30, 40), 1),
        ((10, 20, 20, 40), 1 / 2),
        ((20, 30, 40, 50), 1 / 7),
        ((30, 40, 10, 20), 0),
        ((31, 20, 50, 40), 0),
    ],
)
def test_boxes_share_their_intersection_over_their_union(
    other: tuple[int, int, int, int], share: float
) -> None:
    assert overlap((10, 20, 30, 40), other) == pytest.approx(share)
    task = TargetTask(prompt="", box=(10, 20, 30, 40), boxes=True)
    reply = " ".join(map(str, other))
    assert score_of(run_episode(Clicking(boxes=True), task, reply)) == pytest.approx(share)


def walk(environment: PictureMaze, task: MapTask, control: str) -> Any:
    return run_episode(environment, task, ControlEngine(environment, control))


def test_walls_of_the_picture_are_those_of_the_maze() -> None:
    (task, *_) = PictureMaze(held_out=1).tasks("dev")
    image = stored(str(REFERENCE.search(task.prompt[0].content)[3]))  # type: ignore[index, union-attr]
    for column in range(3):
        for row in range(4):
            # the middle of the wall to the east, 2 pixels wide
            x, y = round((column + 1) * 63 / 4), round((row + 0.5) * 63 / 4)
            wall = image.getpixel((x, y)) == (0, 0, 0)
            assert wall == ("E" not in task.open((column, row)))


def test_a_blind_walk_seldom_reaches_the_goal() -> None:
    environment = PictureMaze(held_out=100)
    reached = [
        score_of(walk(environment, task, "blind_guess")) for task in environment.tasks("test")
    ]
    assert sum(reached) / len(reached) < 0.2


def test_a_reply_that_is_no_move_is_told_so() -> None:
    environment = PictureMaze(held_out=1)
    (task, *_) = environment.tasks("dev")
    played = run_episode(environment, task, "left")
    assert played.messages[2].content == "Say N, E, S or W."
    assert played.result.cells == (task.start,) * (task.moves + 1)
    assert score_of(played) == 0


def test_a_blind_task_has_the_question_alone() -> None:
    (seen, *_), (blind, *_) = Counting().tasks("dev"), Counting(blind=True).tasks("dev")
    assert REFERENCE.sub("", seen.prompt[0].content).strip() == blind.prompt[0].content  # type: ignore[union-attr]
    assert seen.answer == blind.answer
    assert seen.id == blind.id


def test_splits_share_no_picture() -> None:
    environment = Counting(train=100, held_out=50)
    prompts = [
        {task.prompt[0].content for task in environment.tasks(split)}  # type: ignore[union-attr]
        for split in ("train", "dev", "test")
    ]
    assert len(set.union(*prompts)) == 200


@pytest.mark.parametrize(
    "fields",
    [
        {"size": 8},
        {"train": 0},
        {"most": 0},
        {"most": 14},
        {"shapes": ("star",)},
        {"colours": ("pink",)},
        {"colours": ()},
        {"scale": (0.8, 0.5)},
        {"scale": (0.1, 0.5)},
    ],
)
def test_settings_out_of_range_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="expected"):
        Counting(**fields)


def test_more_lines_than_pixels_are_refused() -> None:
    with pytest.raises(UsageError, match="lines is 17"):
        Bars(lines=17)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Geometry(size=16),
        lambda: Geometry(colours=("red",)),
        lambda: Clicking(others=16),
        lambda: PictureMaze(width=9),
        lambda: PictureMaze(width=4, size=16),
        lambda: PictureMaze(colours=("red",)),
    ],
)
def test_further_settings_out_of_range_are_refused(make: Any) -> None:
    with pytest.raises(UsageError, match=r"expected|name two"):
        make()


def test_colours_and_sizes_are_held_out_by_an_argument() -> None:
    environment = Counting(colours=("purple", "orange"), scale=(0.3, 0.4), held_out=20)
    for task in environment.tasks("test"):
        assert task.prompt[0].content.split()[-8] in ("purple", "orange")  # type: ignore[union-attr]
    image, _ = environment.draw(Random(0), 1)
    marked = {image.getpixel((x, y)) for x in range(64) for y in range(64)}
    assert marked <= {(255,) * 3, COLOURS["purple"], COLOURS["orange"]}


@pytest.mark.parametrize(
    "environment",
    [Counting(), Geometry(measure="area"), PictureMaze(width=3), Bars()],
    ids=["counting", "area", "maze", "bars"],
)
def test_no_task_is_in_two_splits(environment: Any) -> None:
    ids = {split: {task.id for task in environment.tasks(split)} for split in SPLITS}

    assert not ids["train"] & ids["test"]
    assert not ids["train"] & ids["dev"]
    assert not ids["dev"] & ids["test"]


def test_a_number_of_any_length_is_a_wrong_answer() -> None:
    """Python makes no integer of more than 4,300 digits."""
    task = next(iter(Counting().tasks("test")))
    for reply, right in (("1" * 5000, 0.0), (f"000{task.answer}", 1.0), ("\u0663", 0.0)):
        assert score_of(run_episode(Counting(), task, reply)) == right
