"""A learner on several devices of one machine: a process for each, which add up exact gradients."""

from __future__ import annotations

from .learner import FsdpLearner
from .settings import Fsdp
from .team import RanksLost

__all__ = ["Fsdp", "FsdpLearner", "RanksLost"]
