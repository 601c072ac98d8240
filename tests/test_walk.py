"""A setting of a recipe is followed through a step (`tools/walk.py`)."""

from __future__ import annotations

import pytest

from .tools import load_tool

TOOL = load_tool("walk")


@pytest.mark.slow
def test_group_size_moves_down() -> None:
    """It enters by the recipe, climbs once, to what is built from the plan, and ends as a number of
    rollouts.
    """
    places = TOOL.followed(frozenset({"group_size"})).places()

    files = [file for file, _ in places]
    assert files[:2] == ["recipe/tables.py", "recipe/plan.py"]
    assert files[-2:] == ["run/collect.py", "rollouts/runner.py"]
    assert len(places) <= 10
    assert TOOL.climbs(places) == 1


def test_a_climb_is_a_place_in_a_higher_layer() -> None:
    """From one file of a room to another is none."""
    files = ["recipe/plan.py", "run/build.py", "run/collect.py", "types/task.py", "errors.py"]

    assert TOOL.climbs([(file, [1]) for file in files]) == 1
    assert TOOL.climbs([(file, [1]) for file in reversed(files)]) == 2
