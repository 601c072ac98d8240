"""OpenEnv, both ways."""

from __future__ import annotations

from .environment import Episode, OpenEnv, Remote, sum_of_rewards

__all__ = ["Episode", "OpenEnv", "Remote", "sum_of_rewards"]
