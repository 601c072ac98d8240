"""Generated pictures: the answer is in them, and nowhere else."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from quintain.errors import UsageError
from quintain_authoring import EnvironmentSuite
from quintain_env_pictures import Bars, Counting, PictureEnvironment
from quintain_env_pictures.seen import COLOURS
from quintain_vision.messages import REFERENCE


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUINTAIN_CACHE", str(tmp_path))


class TestCounting(EnvironmentSuite):
    environment = Counting
    args = {"train": 20, "held_out": 20}


class TestBars(EnvironmentSuite):
    environment = Bars
    args = {"train": 20, "held_out": 20}


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


@pytest.mark.parametrize("environment", [Counting(), Bars()], ids=["counting", "bars"])
def test_without_the_picture_every_answer_is_as_likely(environment: PictureEnvironment) -> None:
    tasks = [*type(environment)(held_out=400).tasks("test")]
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


@pytest.mark.parametrize("environment", [Counting(), Bars()], ids=["counting", "bars"])
def test_a_blind_guess_scores_near_chance(environment: PictureEnvironment) -> None:
    tasks = [*type(environment)(held_out=400).tasks("test")]
    right = sum(environment.blind_guess(task, ()) == task.answer for task in tasks)
    chance = 1 / len(environment.answers)
    assert abs(right / len(tasks) - chance) < 4 * (chance * (1 - chance) / len(tasks)) ** 0.5


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
    "fields", [{"size": 8}, {"train": 0}, {"most": 0}, {"most": 14}, {"shapes": ("star",)}]
)
def test_settings_out_of_range_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="expected"):
        Counting(**fields)


def test_more_lines_than_pixels_are_refused() -> None:
    with pytest.raises(UsageError, match="lines is 17"):
        Bars(lines=17)
