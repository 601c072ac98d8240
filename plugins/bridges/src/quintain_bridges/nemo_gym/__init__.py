"""Resources servers of NeMo-Gym."""

from __future__ import annotations

from .environment import GymRow, NemoGym, Verified, verified_reward

__all__ = ["GymRow", "NemoGym", "Verified", "verified_reward"]
