"""docs/agents.md: training through the gateway with an agent of a framework that knows nothing of
Quintain.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from quintain.recipe.extends import bundled_text

from ...docs.pages import page
from .shown_recipes import two_steps


def test_each_way_is_shown_in_less_than_seventy_lines() -> None:
    """Files and commands of a section: the program, its tasks, the recipe, what to type."""
    text = page("docs/agents.md").text
    sections = text.split("\n## ")[1:]
    shown = [
        re.findall(r"^```(?:python|toml|bash)\n(.*?)^```", section, re.M | re.S)
        for section in sections
    ]

    assert len(sections) == 2
    assert all(0 < sum(block.count("\n") for block in blocks) < 70 for blocks in shown)


def test_the_recipe_of_search_is_the_bundled_one() -> None:
    """The page shows it whole."""
    assert bundled_text("search") in [block.text for block in page("docs/agents.md").blocks]


@pytest.mark.slow
def test_the_page_shows_a_recipe_that_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The files of docs/agents.md with a tiny model in place of the default one: two steps, every
    rollout valid.
    """
    pytest.importorskip("agents", reason="openai-agents is not installed (extra dev)")
    rows = two_steps("docs/agents.md", "agent", tmp_path, monkeypatch, capsys, context=1024)
    assert all(row.get("mismatch.max", 0) < 1e-3 for row in rows)
