"""The data sets of reasoning-gym as tasks."""

from __future__ import annotations

from .environment import Puzzle, ReasoningGym, their_score

__all__ = ["Puzzle", "ReasoningGym", "their_score"]
