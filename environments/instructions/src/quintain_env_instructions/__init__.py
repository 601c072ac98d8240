"""Instructions that a program checks: generated prompts, and the rows of IFEval and IFBench."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quintain import lazy_names

if TYPE_CHECKING:
    from .environment import Instructed as Instructed
    from .environment import Instructions as Instructions
    from .environment import followed as followed

__getattr__, __dir__ = lazy_names(__name__)
