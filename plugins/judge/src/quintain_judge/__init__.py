"""Judges as a service: a model behind a URL, a panel, an engine, the policy itself, or rules without a network."""

from __future__ import annotations

from .gate import emptiness, injection
from .hooks import drop_later
from .rules import check, checkable
from .service import Disagreement, EngineJudge, JudgeHalted, JudgeService, PolicyJudge, pair_prompt, text_of
from .verdicts import Texts, UnreadableVerdict

__all__ = [
    "Disagreement",
    "EngineJudge",
    "JudgeHalted",
    "JudgeService",
    "PolicyJudge",
    "Texts",
    "UnreadableVerdict",
    "check",
    "checkable",
    "drop_later",
    "emptiness",
    "injection",
    "pair_prompt",
    "text_of",
]
