"""docs/shaping.md describes every shaping reward, with its arguments, and shows its plot."""

from __future__ import annotations

import re

import pytest

from quintain.registry.binding import signature_of
from quintain.registry.lookup import current

from ..tools import load_tool
from .pages import ROOT, Page

REWARDS = [
    component.name
    for component in current().components("reward")
    if component.module == "quintain_rewards.shaping"
]
PAGE = Page(path=ROOT / "docs" / "shaping.md")
SECTIONS = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", PAGE.text, re.MULTILINE | re.DOTALL))


def test_each_reward_has_a_section() -> None:
    assert len(REWARDS) == 10
    assert sorted(SECTIONS) == sorted(REWARDS)
    rows = re.findall(r"^\| \[`(\w+)`\]", PAGE.text, re.MULTILINE)
    assert rows == list(SECTIONS)


@pytest.mark.parametrize("name", REWARDS)
def test_section_shows_the_plot_and_names_every_argument(name: str) -> None:
    assert f"](images/shaping/{name}.png)" in SECTIONS[name]
    missing = [
        f.name
        for f in signature_of(current().load("reward", name)).fields
        if f.name not in SECTIONS[name]
    ]
    assert not missing, f"docs/shaping.md, {name}: the arguments {missing} are missing"


@pytest.mark.more
def test_the_tool_draws_each_reward() -> None:
    """It scores rollouts with the rewards; a score that fails would be no number."""
    tool = load_tool("shaping")
    assert list(tool.PLOTS) == list(SECTIONS)
    for name in tool.PLOTS:
        assert tool.render(name).startswith(b"\x89PNG"), name
