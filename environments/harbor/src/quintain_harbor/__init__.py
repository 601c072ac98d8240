"""Task folders of Harbor and Terminal-Bench as an environment, their audit, and the way out."""

from __future__ import annotations

from .environment import Graded, Harbor, HarborTask, verified
from .folder import TaskFolder, UnsupportedTask
from .program import HarborAgent
from .reward_files import RewardFileError

__all__ = [
    "Graded",
    "Harbor",
    "HarborAgent",
    "HarborTask",
    "RewardFileError",
    "TaskFolder",
    "UnsupportedTask",
    "verified",
]
