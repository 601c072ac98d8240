"""Chat: replies scored by rubrics, fixed or evolving, with a judge or with rules; and tasks of
self-critique.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quintain import lazy_names

if TYPE_CHECKING:
    from .critique import Critique as Critique
    from .critique import same_choice as same_choice
    from .critique import self_critique as self_critique
    from .environment import Chat as Chat
    from .extraction import RecordExtraction as RecordExtraction
    from .library import RubricLibrary as RubricLibrary
    from .library import evolving_rubric as evolving_rubric
    from .rubric import ChatTask as ChatTask
    from .rubric import Criterion as Criterion
    from .rubric import Level as Level
    from .rubric import rubric_score as rubric_score
    from .rubric import weighted as weighted
    from .yardstick import as_asked as as_asked

# A name imports its own module alone: a chat with fixed rubrics needs no library of them.
__getattr__, __dir__ = lazy_names(__name__)
