"""Mathematical equivalence as a reward, by Math-Verify in a killable worker."""

from __future__ import annotations

from .reward import math_equal

__all__ = ["math_equal"]
