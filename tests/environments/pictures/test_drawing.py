"""Drawings of a prompt: what is counted in their pixels, and what a reward model makes of them."""

from __future__ import annotations

import asyncio
import io
import json
from collections import Counter
from pathlib import Path
from random import Random
from statistics import mean
from typing import Any

import pytest

from quintain import Rollout, Sampling
from quintain.errors import UsageError
from quintain.rollouts import RolloutContext, RolloutRequest, run_groups
from quintain_authoring import ControlEngine, EnvironmentSuite
from quintain_env_pictures.drawing import (
    Drawing,
    RequestTask,
    drawn,
    rankings,
    right_drawing,
    shapes_in,
)
from quintain_env_pictures.rendering import render
from quintain_env_pictures.scenes import COLOURS, KINDS, PlainShape, svg_of
from quintain_offline.reward_model import (
    RewardModel,
    new_picture_model,
    picture_reward,
    read_pairs,
)
from quintain_vision import picture

PAGE = '<svg viewBox="0 0 64 64">{}</svg>'


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUINTAIN_CACHE", str(tmp_path))


class TestDrawing(EnvironmentSuite):
    environment = Drawing
    args = {"train": 20, "held_out": 20}
    sample = 20


# ---------------------------------------------------------------- the yardstick
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("colour", COLOURS)
def test_a_shape_is_recognised_by_its_pixels(colour: str, kind: str) -> None:
    for half in (5, 8, 13, 20):
        shape = PlainShape(kind=kind, colour=colour, x=31, y=30, half=half)
        assert shapes_in(render(svg_of([shape], 64), 64)) == [f"{colour} {kind}"]


@pytest.mark.parametrize(
    ("inside", "found"),
    [
        ("", []),
        ('<rect width="30" height="12" x="9" y="9" fill="red"/>', ["red other"]),
        ('<ellipse cx="32" cy="32" rx="20" ry="8" fill="red"/>', ["red other"]),
        ('<circle cx="32" cy="32" r="20" fill="pink"/>', ["other circle"]),
        (
            '<circle cx="32" cy="32" r="18" fill="none" stroke="red" stroke-width="3"/>',
            ["red other"],
        ),
        ('<path d="M20 32L32 20 44 32 32 44z" fill="red"/>', ["red other"]),  # on its corner
        ('<rect width="2" height="2" fill="red"/>', []),
        ('<rect width="64" height="64" fill="blue"/>', ["blue square"]),
    ],
)
def test_other_shapes_are_not_taken_for_those(inside: str, found: list[str]) -> None:
    assert shapes_in(render(PAGE.format(inside), 64)) == found


def scored(wanted: dict[str, int], svg: str | None) -> Any:
    result = ""
    if svg is not None:
        file = io.BytesIO()
        render(svg, 64).save(file, "PNG")
        result = picture(file.getvalue())
    task = RequestTask(prompt="Draw", wanted=wanted)
    return right_drawing.score(Rollout(task=task, result=result))


@pytest.mark.parametrize(
    ("made", "value", "colours", "kinds"),
    [
        ({"red circle": 2, "blue square": 1}, 1, 1, 1),
        ({"red circle": 3, "blue square": 1}, 3 / 4, 3 / 4, 3 / 4),
        ({"red circle": 1}, 1 / 3, 1 / 3, 1 / 3),
        ({"red square": 2, "blue circle": 1}, 0, 1, 2 / 4),
        ({"green circle": 2, "blue square": 1}, 1 / 5, 1 / 5, 1),
        ({"red circle": 2, "blue square": 1, "red square": 4}, 3 / 7, 3 / 7, 3 / 7),
    ],
)
def test_the_yardstick_counts_what_is_wanted_and_what_is_too_much(
    made: dict[str, int], value: float, colours: float, kinds: float
) -> None:
    score = scored({"red circle": 2, "blue square": 1}, drawn(made, Random(0)))
    assert score.total == pytest.approx(value)
    parts = {name.rpartition(".")[2]: part for name, part in score.parts.items()}
    assert (parts["colours"], parts["kinds"]) == pytest.approx((colours, kinds))


@pytest.mark.parametrize("svg", [None, PAGE.format("")])
def test_nothing_drawn_scores_nothing(svg: str | None) -> None:
    score = scored({"red circle": 2}, svg)
    assert (score.total, score.reason) == (0, "found: nothing")


def test_a_blind_guess_scores_low() -> None:
    environment = Drawing(held_out=60)
    values = []
    for task in environment.tasks("test"):
        found = Counter(shapes_in(render(environment.blind_guess(task, ()), 64)))
        wanted = Counter(task.wanted)
        values.append((found & wanted).total() / (found | wanted).total())
    assert mean(values) < 0.1


# ---------------------------------------------------------------- a reward model as the reward
def scored_by_a_model(folder: Path, controls: tuple[str, ...]) -> list[list[Any]]:
    """Rollouts of each control, with a small model of random weights as the reward."""
    environment = Drawing(held_out=4).overridden(reward=picture_reward)
    tasks = [*environment.tasks("dev")]
    made = new_picture_model([str(task.prompt) for task in tasks], seed=0, width=16)
    made.module.save_pretrained(folder)
    made.tokenizer.save_pretrained(folder)
    requests = [
        RolloutRequest(environment=environment, task=task, group_size=1, index=index)
        for index, task in enumerate(tasks)
    ]

    async def played(control: str, services: Any) -> list[Any]:
        engine = ControlEngine(environment, control)
        sampling = Sampling(max_tokens=4096)
        context = RolloutContext(engine=engine, sampling=sampling, services=services, retries=0)
        return [r for group in await run_groups(requests, context) for r in group.rollouts]

    async def all_played() -> list[list[Any]]:
        async with RewardModel(model=str(folder)) as model:
            return [await played(control, {"reward_model": model}) for control in controls]

    return asyncio.run(all_played())


def test_a_reward_model_scores_renderings_and_the_yardstick_stays(tmp_path: Path) -> None:
    good, silent, blind = scored_by_a_model(tmp_path, ("oracle", "nop", "blind_guess"))
    assert [r.yardstick.total for r in good] == [1, 1, 1, 1]
    assert [(r.outcome.total, r.yardstick.total) for r in silent] == [(0, 0)] * 4
    assert all(0 < r.outcome.total < 1 for r in (*good, *blind))
    assert len({r.outcome.total for r in (*good, *blind)}) == 8
    assert mean(r.yardstick.total for r in blind) < 0.3


def test_rankings_begin_with_the_right_drawing(tmp_path: Path) -> None:
    tasks = [*Drawing(held_out=4).tasks("dev")]
    rows = [*rankings(tasks)]
    assert [row["prompt"] for row in rows] == [task.prompt for task in tasks]
    for row, task in zip(rows, tasks, strict=True):
        values = []
        for place in row["pictures"]:
            for url in place:
                rollout = Rollout(task=task, result=picture(url))
                values.append((row["pictures"].index(place), right_drawing.score(rollout).total))
        assert values[0][1] == 1
        assert [v for _, v in values] == sorted((v for _, v in values), reverse=True)
        assert len({v for _, v in values}) == len(row["pictures"])
    path = tmp_path / "rankings.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert len(read_pairs(str(path))) >= len(rows)


def test_prompts_are_different_and_in_one_split() -> None:
    environment = Drawing(train=10_000, held_out=10_000)
    prompts = {
        split: [t.prompt for t in environment.tasks(split)] for split in ("train", "dev", "test")
    }
    everything = [prompt for split in prompts.values() for prompt in split]
    assert len(everything) == len(set(everything)) == 54 + 18 * 17 * 9
    assert len(prompts["train"]) > 2000
    assert min(map(len, prompts.values())) > 200


@pytest.mark.parametrize("fields", [{"groups": 3}, {"most": 4}, {"most": 0}, {"train": 0}])
def test_settings_out_of_range_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="expected"):
        Drawing(**fields)


def test_no_drawing_is_in_two_splits() -> None:
    """Also not with its words in another order."""
    wanted = {
        split: {repr(sorted(task.wanted.items())) for task in Drawing().tasks(split)}
        for split in ("train", "dev", "test")
    }
    assert not wanted["train"] & wanted["test"]
    assert not wanted["train"] & wanted["dev"]
    assert not wanted["dev"] & wanted["test"]
