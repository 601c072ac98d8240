"""Arithmetic, countdown, GSM8K, MATH and AIME: mathematics with answers that can be checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .arithmetic import Arithmetic
    from .competition import AIME, Math
    from .countdown import Countdown
    from .gsm8k import GSM8K

__all__ = ["AIME", "GSM8K", "Arithmetic", "Countdown", "Math"]

_HOMES = {
    "Arithmetic": "arithmetic",
    "Countdown": "countdown",
    "GSM8K": "gsm8k",
    "Math": "competition",
    "AIME": "competition",
}


def __getattr__(name: str) -> Any:
    """Import on first use: arithmetic must not pay for the verifier that GSM8K needs."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
