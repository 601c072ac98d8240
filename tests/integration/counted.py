"""Counting in pictures for a tiny random model, which never counts right."""

from __future__ import annotations

from typing import Any

from quintain import Rollout, reward
from quintain_env_pictures.counting import Counting


@reward(range=(0, 1))
def sum_of_characters(rollout: Rollout[Any, Any]) -> float:
    """A number that nearly always differs from reply to reply, so that a group has a gradient."""
    return sum(map(ord, rollout.reply)) % 11 / 10


class Varied(Counting):
    """`counting` with rewards that differ within a group."""

    reward = sum_of_characters
