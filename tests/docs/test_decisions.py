"""The folder of decisions: its index and the form of its files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ..tools import load_tool

TOOL = load_tool("decisions")


def test_the_index_is_up_to_date() -> None:
    """It is what `python tools/decisions.py` would write."""
    assert TOOL.INDEX.read_text(encoding="utf-8") == TOOL.render(), "run python tools/decisions.py"


def test_numbers_follow_each_other_in_time() -> None:
    """No number is taken twice, none is left out, and dates never go back."""
    decisions = TOOL.decisions()

    assert [d.number for d in decisions] == [*range(1, len(decisions) + 1)]
    assert [d.date for d in decisions] == sorted(d.date for d in decisions)


def test_every_room_has_decisions_and_what_governs_exists() -> None:
    """A heading without a row, or a number without a file, is left over from a change."""
    decisions = TOOL.decisions()

    assert {d.room for d in decisions} == set(TOOL.ROOMS)
    assert set(TOOL.GOVERNING) <= {d.number for d in decisions}


def test_a_room_that_is_misspelled_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error has the file, and the rooms that there are."""
    text = "# A title\n\n2026-11-28, sandbox\n\n## Decision and why\n\nWhy.\n"
    (tmp_path / "0001-a-title.md").write_text(text)
    monkeypatch.setattr(TOOL, "FOLDER", tmp_path)

    with pytest.raises(ValueError, match="0001-a-title.md: no room 'sandbox'; .*sandboxes"):
        TOOL.decisions()


def test_rejected_options_are_a_list() -> None:
    """Each has a name in italics, so that a reader finds it by scanning."""
    for decision in TOOL.decisions():
        _, found, rejected = decision.path.read_text(encoding="utf-8").partition("\n## Rejected\n")
        items = re.split(r"\n(?=\S)", rejected.strip())
        assert not found or all(item.startswith("- *") for item in items), decision.path.name
