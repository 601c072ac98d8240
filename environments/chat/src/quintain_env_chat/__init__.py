"""Chat: replies scored by rubrics, fixed or evolving, with a judge or with rules; and tasks of self-critique."""

from __future__ import annotations

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
