"""The yardstick of `chat`: whether a reply is what was asked for, measured without the rubric."""

from __future__ import annotations

import re
from typing import Any

from quintain import Rollout, reward
from quintain.errors import RewardFault
from quintain.evaluation import word_f1

from .rubric import ChatTask


@reward(range=(0, 1))
def as_asked(rollout: Rollout[ChatTask, Any]) -> float:
    """Compare the reply with good replies: 1 if it equals one of those of the task, else 0.

    Where a task does not have all of them, as the rows of a file, it is the overlap with the
    answer: F1 of their words. Text that nobody asked for can meet a rubric, so this is reported
    beside it and does not train.

    Raises:
        RewardFault: the task has no answer either, so nothing can be compared.
    """
    task = rollout.task
    if task.good:
        return float(rollout.reply.strip() in task.good)
    if task.answer is None:
        raise RewardFault(f"as_asked: the task {task.id} has no answer; give its row one")
    return word_f1(
        re.findall(r"\w+", rollout.reply.lower()), re.findall(r"\w+", str(task.answer).lower())
    )
