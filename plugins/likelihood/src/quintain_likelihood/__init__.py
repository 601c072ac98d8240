"""Log-probs of given text, for rewards: services over engines, an n-gram model, and improvements in
perplexity.
"""

from __future__ import annotations

from .engines import CurrentPolicy, EngineLikelihood, FrozenModel, FrozenPolicy, LikelihoodService
from .improvement import PUBLISHED_EDGES, improvement, threshold_reward
from .ngram import NGram
from .rewards import self_certainty
from .text import NoiseFloor, Pair, TextLikelihood, TextScore

__all__ = [
    "PUBLISHED_EDGES",
    "CurrentPolicy",
    "EngineLikelihood",
    "FrozenModel",
    "FrozenPolicy",
    "LikelihoodService",
    "NGram",
    "NoiseFloor",
    "Pair",
    "TextLikelihood",
    "TextScore",
    "improvement",
    "self_certainty",
    "threshold_reward",
]
