"""Results of studies are compact and equal what was measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from studies.records import LONGEST, record_lines

ROOT = Path(__file__).resolve().parent.parent
RESULTS = sorted((ROOT / "studies").rglob("results/*.json"))


@pytest.mark.parametrize(
    "data",
    [
        {},
        [],
        {"a": 1},
        {"a": {"b": [1, 2, {"c": None}]}, "d": "text"},
        [[1, 2], {"a": [0.1] * 300}],
        {"rows": [{"name": "n" * 100, "values": [1.5] * 50}] * 9},
    ],
)
def test_records_are_the_same_data(data: Any) -> None:
    """What is read back is what was written."""
    assert json.loads(record_lines(data)) == data


def test_a_record_stands_on_a_line() -> None:
    """A short table does, a long one has a line for each of its parts."""
    short = {"mean": 1, "low": 0}
    long = {"text": "x" * LONGEST, "n": 1}

    text = record_lines({"short": short, "long": long})

    assert text == (
        '{\n "short":{"mean":1,"low":0},\n "long":{\n  "text":"'
        + "x" * LONGEST
        + '",\n  "n":1\n }\n}\n'
    )


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.name)
def test_results_are_kept_in_this_form(path: Path) -> None:
    """So a new measurement is a short diff."""
    text = path.read_text(encoding="utf-8")

    assert text == record_lines(json.loads(text))
