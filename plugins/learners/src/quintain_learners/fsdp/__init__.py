"""A learner on several devices: a process for each, on one machine or several, which add up exact
gradients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quintain import lazy_names

if TYPE_CHECKING:
    from .learner import FsdpLearner
    from .settings import Fsdp
    from .team import RanksLost

__all__ = ["Fsdp", "FsdpLearner", "RanksLost"]

__getattr__, __dir__ = lazy_names(__name__)
