"""Learning from the winners of a group, or from pairs of its samples: on the rollouts of an ordinary run."""

from __future__ import annotations

from .algorithms import DPO, DPO_NORM, RFT, SFT, SIMPO
from .imitation import ones, over_winners, winners
from .pairs import dpo, dpo_norm, simpo

__all__ = ["DPO", "DPO_NORM", "RFT", "SFT", "SIMPO", "dpo", "dpo_norm", "ones", "over_winners", "simpo", "winners"]
