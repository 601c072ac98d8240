"""Learning from the winners of a group, or from pairs of its samples: on the rollouts of an
ordinary run.
"""

from __future__ import annotations

from .algorithms import DPO, DPO_NORM, KTO, RFT, SFT, SIMPO
from .desirability import desirable, kto
from .imitation import ones, over_winners, winners
from .pairs import dpo, dpo_norm, simpo

__all__ = [
    "DPO",
    "DPO_NORM",
    "KTO",
    "RFT",
    "SFT",
    "SIMPO",
    "desirable",
    "dpo",
    "dpo_norm",
    "kto",
    "ones",
    "over_winners",
    "simpo",
    "winners",
]
