"""Judges as a service: a model behind a URL, a panel, an engine, the policy itself, or rules
without a network.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quintain import lazy_names

if TYPE_CHECKING:
    from .canaries import JudgeHalted as JudgeHalted
    from .gate import injection as injection
    from .gate import why_empty as why_empty
    from .naming import judge_named as judge_named
    from .pairs import Comparison as Comparison
    from .pairs import ReplyPair as ReplyPair
    from .pairs import compare as compare
    from .questions import pair_prompt as pair_prompt
    from .questions import text_of as text_of
    from .rewards import explained as explained
    from .rows import drop_later as drop_later
    from .rows import read_rows as read_rows
    from .rubrics import usable as usable
    from .rules import check as check
    from .rules import checkable as checkable
    from .service import EngineJudge as EngineJudge
    from .service import JudgeService as JudgeService
    from .service import PolicyJudge as PolicyJudge
    from .verdicts import Disagreement as Disagreement
    from .verdicts import Texts as Texts
    from .verdicts import UnreadableVerdict as UnreadableVerdict

# A name imports its own module alone: rubrics and rules need no HTTP client.
__getattr__, __dir__ = lazy_names(__name__)
