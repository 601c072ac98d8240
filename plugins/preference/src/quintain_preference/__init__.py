"""Learning from the winners of a group, or from pairs of its members: on the rollouts of an ordinary run."""

from __future__ import annotations

from .imitation import over_winners, winners
from .pairs import dpo, dpo_norm, simpo
from .rows import DPO, DPO_NORM, RFT, SIMPO

__all__ = ["DPO", "DPO_NORM", "RFT", "SIMPO", "dpo", "dpo_norm", "over_winners", "simpo", "winners"]
