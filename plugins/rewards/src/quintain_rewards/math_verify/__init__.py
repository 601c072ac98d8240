"""Mathematical equivalence: the reward `math_equal`, and the verifier behind it."""

from __future__ import annotations

from .reward import math_equal
from .verdict import Verdict, VerdictKind
from .verifier import Verifier, shared_verifier

__all__ = ["Verdict", "VerdictKind", "Verifier", "math_equal", "shared_verifier"]
