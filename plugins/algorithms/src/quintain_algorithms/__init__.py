"""Policy-gradient algorithms of the literature, each a set of choices, and the pieces that they are
made of.
"""

from __future__ import annotations

from .algorithms import (
    CISPO,
    DPPO,
    DVP,
    GSPO,
    KIMI,
    MAXRL,
    OLMORL,
    OTB,
    REINFORCE_PP,
    REINFORCE_PP_BASELINE,
    SCALERL,
    TRM,
)

__all__ = [
    "CISPO",
    "DPPO",
    "DVP",
    "GSPO",
    "KIMI",
    "MAXRL",
    "OLMORL",
    "OTB",
    "REINFORCE_PP",
    "REINFORCE_PP_BASELINE",
    "SCALERL",
    "TRM",
]
