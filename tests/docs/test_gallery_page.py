"""docs/gallery.md has a card for each environment, as the code is."""

from __future__ import annotations

from ..tools import load_tool
from .pages import ROOT

TOOL = load_tool("gallery")


def test_page_is_up_to_date() -> None:
    """It is what `python tools/gallery.py` would write."""
    assert TOOL.render() == TOOL.PAGE.read_text(), "run python tools/gallery.py"


def test_pages_and_curves_are_of_environments() -> None:
    """No name is left over; each curve is a file."""
    text = TOOL.PAGE.read_text()

    for name in {*TOOL.PAGES, *TOOL.CURVES, *TOOL.RECIPES}:
        assert f"\n## {name}\n" in text, name
    for picture in {*TOOL.CURVES.values(), TOOL.GAMES}:
        assert (ROOT / "docs" / picture).exists(), picture
