"""Log-probs of given text, for rewards: services over engines, an n-gram model, and improvements in
perplexity. Also the engine of a model that does not train, which players are made of.
"""

from __future__ import annotations

from .engines import CurrentPolicy, EngineLikelihood, FrozenModel, FrozenPolicy, LikelihoodService
from .fixed_model import FixedModelEngine, fixed_copy
from .improvement import PUBLISHED_EDGES, improvement, threshold_reward
from .ngram import NGram
from .rewards import self_certainty
from .text import NoiseFloor, Pair, TextLikelihood, TextScore

__all__ = [
    "PUBLISHED_EDGES",
    "CurrentPolicy",
    "EngineLikelihood",
    "FixedModelEngine",
    "FrozenModel",
    "FrozenPolicy",
    "LikelihoodService",
    "NGram",
    "NoiseFloor",
    "Pair",
    "TextLikelihood",
    "TextScore",
    "fixed_copy",
    "improvement",
    "self_certainty",
    "threshold_reward",
]
