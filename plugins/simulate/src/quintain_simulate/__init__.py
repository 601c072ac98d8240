"""Simulated runs of Quintain: the loop of a recipe on a clock that skips, and what to buy for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quintain import lazy_names

if TYPE_CHECKING:
    from .costs import EngineCosts as EngineCosts
    from .costs import LearnerCosts as LearnerCosts
    from .distributions import Distribution as Distribution
    from .setup import SimulationSetup as SimulationSetup
    from .simulation import Outcome as Outcome
    from .simulation import Simulation as Simulation

__getattr__, __dir__ = lazy_names(__name__)
