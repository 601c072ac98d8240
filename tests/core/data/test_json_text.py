"""JSON that somebody else wrote."""

from __future__ import annotations

import json

import pytest

from quintain.data import read_json


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
