"""The games of TextArena."""

from __future__ import annotations

from .environment import Match, PlayedGame, TextArena, their_reward
from .moves import RandomMoves

__all__ = ["Match", "PlayedGame", "RandomMoves", "TextArena", "their_reward"]
