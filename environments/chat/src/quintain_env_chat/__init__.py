"""Chat: replies scored by rubrics, fixed or evolving, with a judge or with rules; and tasks of self-critique."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .critique import Critique, same_choice, self_critique
    from .environment import Chat
    from .library import RubricLibrary, evolving_rubric
    from .rubric import ChatTask, Criterion, rubric_score, weighted

__all__ = [
    "Chat",
    "ChatTask",
    "Criterion",
    "Critique",
    "RubricLibrary",
    "evolving_rubric",
    "rubric_score",
    "same_choice",
    "self_critique",
    "weighted",
]

_HOME = {
    "critique": ("Critique", "same_choice", "self_critique"),
    "environment": ("Chat",),
    "library": ("RubricLibrary", "evolving_rubric"),
    "rubric": ("ChatTask", "Criterion", "rubric_score", "weighted"),
}
_MODULES = {name: module for module, names in _HOME.items() for name in names}


def __getattr__(name: str) -> Any:
    # Every run imports the hooks of this package, also one without rubrics.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_MODULES[name]}", __name__), name)
