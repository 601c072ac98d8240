"""Nested data that somebody else wrote."""

from __future__ import annotations

from typing import Any

import pytest

from quintain.types import encodable, levels


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, [[1]]),
        ({"a": [1, (2, "xy")], "b": {}}, None),
        ([], [[[]]]),
    ],
)
def test_levels_go_through_mappings_and_lists(value: Any, expected: Any) -> None:
    """Text is a leaf; keys are no values."""
    expected = expected or [[value], [[1, (2, "xy")], {}], [1, (2, "xy")], [2, "xy"]]

    assert list(levels(value)) == expected


def test_lone_surrogates_become_question_marks() -> None:
    assert encodable("a\ud800b") == "a?b"
