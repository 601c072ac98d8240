"""Multi-turn worlds: guess a number, walk a maze, play Nim, serve a customer, work in a store with
tools, keep notes.
"""

from __future__ import annotations

from .compaction import compact_tool
from .customers import Customer
from .duel import Duel
from .guess import Guess
from .maze import Maze
from .notes import Notes, Summariser
from .opponents import Frozen, Opponent
from .returns import Returns
from .tools import Tools

__all__ = [
    "Customer",
    "Duel",
    "Frozen",
    "Guess",
    "Maze",
    "Notes",
    "Opponent",
    "Returns",
    "Summariser",
    "Tools",
    "compact_tool",
]
