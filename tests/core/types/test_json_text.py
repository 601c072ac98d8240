"""Nested data that somebody else wrote."""

from __future__ import annotations

import json
from typing import Any

import pytest

from quintain.types import encodable, levels, read_json


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


@pytest.mark.parametrize(
    ("text", "fits"),
    [("[[1]]", True), ("[[[1]]]", False), ('{"a": {"b": []}}', True), ("[" * 100_000, False)],
)
def test_depth_is_limited(text: str, fits: bool) -> None:
    """Also where the parser itself gives up."""
    if fits:
        assert read_json(text, deepest=3) == json.loads(text)
    else:
        with pytest.raises(ValueError, match="more than 3 levels"):
            read_json(text, deepest=3)


def test_lone_surrogates_become_question_marks() -> None:
    """Whole pairs stay what they are."""
    assert read_json(r'{"a\ud800": ["\ud83d\ude00 \uDEAD"]}', deepest=3) == {"a?": ["\U0001f600 ?"]}
    assert encodable("a\ud800b") == "a?b"
