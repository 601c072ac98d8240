"""Task folders of Harbor and Terminal-Bench as an environment, their audit, and the way out."""

from __future__ import annotations

from .environment import Harbor, HarborResult, HarborTask, verified
from .folder import TaskFolder, UnsupportedTask
from .program import HarborAgent
from .reward_files import RewardFileError

__all__ = [
    "Harbor",
    "HarborAgent",
    "HarborResult",
    "HarborTask",
    "RewardFileError",
    "TaskFolder",
    "UnsupportedTask",
    "verified",
]
