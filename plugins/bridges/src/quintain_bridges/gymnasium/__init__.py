"""Worlds of Gymnasium as text."""

from __future__ import annotations

from .environment import Gymnasium, Journey, World, sum_of_steps

__all__ = ["Gymnasium", "Journey", "World", "sum_of_steps"]
