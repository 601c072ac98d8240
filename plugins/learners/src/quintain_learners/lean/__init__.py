"""A learner that trains larger models on one device: weights in bfloat16, moments in 8 bits or in
host memory.
"""

from __future__ import annotations

from .eight_bit import BLOCK, SMALLEST, EightBitAdamW, Moment
from .host import HostAdamW
from .learner import Lean, LeanLearner

__all__ = [
    "BLOCK",
    "SMALLEST",
    "EightBitAdamW",
    "HostAdamW",
    "Lean",
    "LeanLearner",
    "Moment",
]
