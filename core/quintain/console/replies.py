"""Whether one reply takes over a step: the first sign of a policy that collapses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from ..types.rollout import AnyGroup, AnyRollout, Turn, reaches

FILLED = 0.8
"""Share of the samples of a group from which on a reply fills it: one of five may be noise."""
LONGEST_REPLY = 60
"""Characters of a reply that are shown."""


def takeover(groups: Sequence[AnyGroup]) -> dict[str, Any]:
    """Return the metrics of the reply that fills most groups: ``reply.groups``, the share of groups,
    ``reply.share`` of all valid samples, ``reply.right``, its share of right ones, and ``reply.text``.

    Empty unless it fills groups of at least two different tasks and is wrong in one of them: a
    policy that is right gives one reply to each task, and it may be that of another task.
    """
    valid = [group for group in groups if len(group.valid) > 1]
    filled: dict[tuple[str, ...], list[AnyGroup]] = {}
    for group in valid:
        [(replies, count)] = Counter(map(_replies, group.valid)).most_common(1)
        if count >= FILLED * len(group.valid):
            filled.setdefault(replies, []).append(group)
    if not filled:
        return {}
    replies, owned = max(filled.items(), key=lambda item: len(item[1]))
    tasks = {repr(group.task.prompt) for group in owned}
    if len(tasks) < 2 or all(_right(rollout) for group in owned for rollout in group.valid):
        return {}
    samples = [rollout for group in valid for rollout in group.valid]
    same = [rollout for rollout in samples if _replies(rollout) == replies]
    return {
        "reply.groups": len(owned) / len(valid),
        "reply.share": len(same) / len(samples),
        "reply.right": fmean(map(_right, same)),
        "reply.text": " / ".join(replies)[:LONGEST_REPLY],
    }


def _replies(rollout: AnyRollout) -> tuple[str, ...]:
    """Return what the policy wrote in each of its turns, without case and spacing."""
    return tuple(" ".join(_text(t).split()).casefold() for t in rollout.turns if t.tokens)


def _text(turn: Turn) -> str:
    """Return the reply of a turn; with its calls and thoughts where these are all, or what acts."""
    return turn.text if turn.calls or not turn.reply else turn.reply


def _right(rollout: AnyRollout) -> bool:
    return rollout.outcome is not None and reaches(rollout.outcome.total)
