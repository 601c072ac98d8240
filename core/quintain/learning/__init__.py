"""Learning: the pieces of the methods, the table of presets, and the learner that runs them. Needs torch."""

from . import admission, advantages, aggregation, corrections, objectives
from .batch import Batch, Sample
from .learner import Learner
from .presets import PRESETS
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
