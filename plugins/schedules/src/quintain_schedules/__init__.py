"""Schedules for Quintain: how far sampling runs ahead of the learner, and which waiting episode starts next."""

from __future__ import annotations

from .orders import LongestFirst
from .presets import Areal, OneStepOff, Pipeline
from .repack import repack

__all__ = ["Areal", "LongestFirst", "OneStepOff", "Pipeline", "repack"]
