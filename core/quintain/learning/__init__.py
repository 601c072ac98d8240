"""Learning: the pieces of the methods, the table of presets, and the learner that runs them. Needs torch."""

from .algorithms import PRESETS
from .batch import Batch, Sample
from .learner import Learner
from .pieces import advantages, aggregation, corrections, objectives
from .pieces import group_filter as admission
from .terms import Terms

__all__ = [
    "PRESETS",
    "Batch",
    "Learner",
    "Sample",
    "Terms",
    "admission",
    "advantages",
    "aggregation",
    "corrections",
    "objectives",
]
