"""docs/recipes.md is what the code says, every key with a meaning."""

from __future__ import annotations

import importlib.util
from types import ModuleType

from .pages import ROOT


def load_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("recipes_tool", ROOT / "tools" / "recipes.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TOOL = load_tool()


def test_page_is_up_to_date() -> None:
    """docs/recipes.md is what `python tools/recipes.py` would write."""
    assert TOOL.render() == (ROOT / "docs" / "recipes.md").read_text(), "run python tools/recipes.py"


def test_every_key_has_a_meaning_and_no_meaning_is_left_over() -> None:
    """The tables of the tool and of the recipe name the same keys."""
    sections = dict(TOOL.tables())
    keys = {name for section, table in sections.items() for name in TOOL.keys(section, table)}

    assert set(sections) == set(TOOL.SECTIONS)
    assert keys == set(TOOL.MEANINGS)
    assert {*keys, *sections} >= {*TOOL.COUNT_OR_WORDS, *TOOL.UNSET}
