"""The engine by the name that it had as a part of the package."""

from __future__ import annotations

from quintain.registry import current


def test_recipes_of_runs_from_before_the_move_find_the_engine() -> None:
    """A run of an earlier version names `quintain/embedded` in its recipe."""
    assert current().find("engine", "quintain/embedded").id == "quintain-embedded/embedded"
