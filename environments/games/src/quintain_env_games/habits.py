"""The habits of demonstrations: at some turns they do what a beginner does.

A model that is trained on them can play and often loses; what is better is among its samples, and
rewards find it.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from quintain import Message, Task


def turn_rng(task: Task, messages: Sequence[Message]) -> Random:
    """Return the random numbers of one turn of a demonstration: the same for the same task and
    conversation.
    """
    return Random(f"{task.id}/{len(messages)}/{messages[-1].content}")


def slips(task: Task, messages: Sequence[Message], share: float) -> bool:
    """Return whether the demonstration follows its habit in this turn, as it does in a *share* of
    them.
    """
    return turn_rng(task, messages).random() < share
