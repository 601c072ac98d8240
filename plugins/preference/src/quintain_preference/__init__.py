"""Learning from the winners of a group, or from pairs of its members: on the rollouts of an ordinary run."""

from __future__ import annotations

from .imitation import ones, over_winners, winners
from .pairs import dpo, dpo_norm, simpo
from .rows import DPO, DPO_NORM, RFT, SFT, SIMPO

__all__ = ["DPO", "DPO_NORM", "RFT", "SFT", "SIMPO", "dpo", "dpo_norm", "ones", "over_winners", "simpo", "winners"]
