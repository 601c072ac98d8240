"""Records that every layer shares: tasks, sampling settings, transcripts, rollouts. Standard
library only.

The names below are what plugins may import from here; each module is imported when one of its names
is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import lazy_names

if TYPE_CHECKING:
    from .json_text import encodable as encodable
    from .json_text import levels as levels
    from .rollout import SCORE_TOLERANCE as SCORE_TOLERANCE
    from .rollout import SPREAD_TOLERANCE as SPREAD_TOLERANCE
    from .rollout import AnyGroup as AnyGroup
    from .rollout import AnyRollout as AnyRollout
    from .rollout import TerminationKind as TerminationKind
    from .rollout import are_equal as are_equal
    from .rollout import reaches as reaches
    from .rollout import trained as trained
    from .sampling import decoding as decoding
    from .sampling import derived_seed as derived_seed
    from .task import Role as Role
    from .task import content_hash as content_hash
    from .task import messages_of as messages_of
    from .thought import split_thought as split_thought
    from .transcript import Branch as Branch
    from .transcript import Finish as Finish
    from .transcript import TokenSource as TokenSource
    from .transcript import TrainingSequence as TrainingSequence

__getattr__, __dir__ = lazy_names(__name__)
