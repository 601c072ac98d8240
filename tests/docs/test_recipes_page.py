"""docs/recipes.md and the meanings of `quintain schema` are what the code says, every key with a
meaning.
"""

from __future__ import annotations

from ..tools import load_tool
from .pages import ROOT

TOOL = load_tool("recipes")


def test_page_is_up_to_date() -> None:
    """docs/recipes.md and the meanings of `quintain schema` are what `python tools/recipes.py`
    would write.
    """
    assert TOOL.meanings() == TOOL.MEANT.read_text(), "run python tools/recipes.py"
    assert TOOL.render() == (ROOT / "docs" / "recipes.md").read_text(), (
        "run python tools/recipes.py"
    )


def test_every_key_has_a_meaning_and_no_meaning_is_left_over() -> None:
    """The tables of the tool and of the recipe name the same keys."""
    sections = dict(TOOL.tables())
    keys = {name for section, table in sections.items() for name in TOOL.keys(section, table)}

    assert set(sections) == set(TOOL.SECTIONS)
    assert keys == set(TOOL.MEANINGS)
    assert {*keys, *sections} >= {*TOOL.COUNT_OR_WORDS, *TOOL.UNSET}
