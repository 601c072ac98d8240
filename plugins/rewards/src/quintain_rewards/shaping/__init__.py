"""Shaping rewards: form, length, text and likelihood of what the policy said, to add to the outcome
reward.
"""

from __future__ import annotations

from .format import boxed, format_tags
from .length import length_cosine, length_kimi, length_l1, soft_overlong
from .likelihood import mean_log_prob
from .text import keyword, language_consistency, repetition

__all__ = [
    "boxed",
    "format_tags",
    "keyword",
    "language_consistency",
    "length_cosine",
    "length_kimi",
    "length_l1",
    "mean_log_prob",
    "repetition",
    "soft_overlong",
]
