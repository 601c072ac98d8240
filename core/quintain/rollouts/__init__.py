"""Run episodes and score them. Messages become tokens in `chat.bridge`.

The names below are what plugins may import from here; each module is imported when one of its names
is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import lazy_names

if TYPE_CHECKING:
    from ..interfaces.rollout_request import RolloutRequest as RolloutRequest
    from .chat.bridge import Conversation as Conversation
    from .chat.bridge import stops as stops
    from .chat.thinking_budget import cut_where_stopped as cut_where_stopped
    from .chat.thinking_budget import sample_turn as sample_turn
    from .runner import Play as Play
    from .runner import RolloutContext as RolloutContext
    from .runner import RolloutRunner as RolloutRunner
    from .runner import run_episode as run_episode
    from .runner import run_groups as run_groups
    from .scoring import score_group as score_group
    from .scoring import score_rollout as score_rollout
    from .spans import Span as Span
    from .spans import SpanRecorder as SpanRecorder
    from .spans import add_span as add_span
    from .spans import record_spans as record_spans

__getattr__, __dir__ = lazy_names(__name__)
