"""docs/packages.md names every distribution."""

from __future__ import annotations

from ..tools import load_tool
from .pages import page

TOOL = load_tool("registry")


def test_every_distribution_is_named() -> None:
    """Each in a row, as pip takes it."""
    text = page("docs/packages.md").text
    names = [TOOL.project(member)["project"]["name"] for member in TOOL.members()]

    assert [] == [
        name for name in names if f"{name}`" not in text and f"{name} " not in text and f"{name}[" not in text
    ]
