"""Schedules for Quintain: how far sampling runs ahead of the learner, which waiting episode starts
next, and a pool of engines.
"""

from __future__ import annotations

from .orders import LongestFirst
from .pool import EnginePool
from .prefixes import BLOCK
from .presets import Areal, OneStepOff, Pipeline
from .repack import repack

__all__ = ["BLOCK", "Areal", "EnginePool", "LongestFirst", "OneStepOff", "Pipeline", "repack"]
