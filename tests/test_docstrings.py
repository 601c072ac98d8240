"""Docstrings of functions begin with a verb (`tools/docstrings.py`)."""

from __future__ import annotations

import pytest

from .tools import load_tool

pytestmark = pytest.mark.more

TOOL = load_tool("docstrings")


def test_docstrings_begin_with_a_verb() -> None:
    """`python tools/docstrings.py FOLDER` lists those that do not. A model reads the one that may
    stay: the text of a tool.
    """
    folders = (TOOL.PACKAGE, TOOL.ROOT / "plugins", TOOL.ROOT / "environments")
    found = {
        f"{path.relative_to(TOOL.ROOT)}: {name}"
        for folder in folders
        for path in folder.rglob("*.py")
        for _, name, _ in TOOL.without_verb(path.read_text(encoding="utf-8"))
    }

    assert found == {"environments/games/src/quintain_env_games/tools.py: count"}


def test_nouns_are_found_where_they_may_not_stand() -> None:
    """A property and a piece may begin with one."""
    source = '''
def tasks():
    """The tasks."""
def run():
    """Run it."""
class Run:
    @cached_property
    def steps(self):
        """Number of steps."""
    @advantage(reads=("square",))
    def raw(self):
        """R itself."""
    async def seconds(self):
        """Seconds of it."""
def silent(): ...
'''

    assert TOOL.without_verb(source) == [(2, "tasks", "The"), (13, "seconds", "Seconds")]
