"""Judges as a service: a model behind a URL, a panel, an engine, the policy itself, or rules without a network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .gate import emptiness, injection
    from .hooks import drop_later
    from .naming import judge_named
    from .pairs import Comparison, Pair, compare
    from .rows import read_rows
    from .rules import check, checkable
    from .service import Disagreement, EngineJudge, JudgeHalted, JudgeService, PolicyJudge, pair_prompt, text_of
    from .verdicts import Texts, UnreadableVerdict

__all__ = [
    "Comparison",
    "Disagreement",
    "EngineJudge",
    "JudgeHalted",
    "JudgeService",
    "Pair",
    "PolicyJudge",
    "Texts",
    "UnreadableVerdict",
    "check",
    "checkable",
    "compare",
    "drop_later",
    "emptiness",
    "injection",
    "judge_named",
    "pair_prompt",
    "read_rows",
    "text_of",
]

_HOME = {
    "gate": ("emptiness", "injection"),
    "hooks": ("drop_later",),
    "naming": ("judge_named",),
    "pairs": ("Comparison", "Pair", "compare"),
    "rows": ("read_rows",),
    "rules": ("check", "checkable"),
    "verdicts": ("Texts", "UnreadableVerdict"),
}
_MODULES = {name: module for module, names in _HOME.items() for name in names}


def __getattr__(name: str) -> Any:
    # Every run imports the hooks of this package, also one without a judge, which needs no HTTP client.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_MODULES.get(name, 'service')}", __name__), name)
