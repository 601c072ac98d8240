"""Arithmetic, countdown, GSM8K, MATH and AIME: mathematics with answers that can be checked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quintain import lazy_names

if TYPE_CHECKING:
    from .arithmetic import Arithmetic as Arithmetic
    from .competition import AIME as AIME
    from .competition import Math as Math
    from .countdown import Countdown as Countdown
    from .gsm8k import GSM8K as GSM8K

# Arithmetic must not pay for the verifier that GSM8K needs.
__getattr__, __dir__ = lazy_names(__name__)
