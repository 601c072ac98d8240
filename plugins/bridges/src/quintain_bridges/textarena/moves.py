"""Moves that a message shows, and an engine that plays them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random

from quintain import Engine, Message, Reply, Sampling, ToolSpec

_MOVE = re.compile(r"\[[^\[\]\n]{1,24}\]")
_SPEAKER = re.compile(r"^\[[^\]]*\] ", re.MULTILINE)


def moves_in(messages: Sequence[Message]) -> list[str]:
    """Return what the last message with any shows in brackets, apart from who speaks.

    >>> moves_in([Message("user", "[GAME] Moves: [1] or [2 3]")])
    ['[1]', '[2 3]']
    """
    for message in reversed(messages):
        if message.role == "user" and (shown := _MOVE.findall(_SPEAKER.sub("", message.content))):
            return shown
    return ["[0]"]


class RandomMoves(Engine):
    """Plays a random one of the moves in brackets that it was shown last, drawn by the seed of the
    turn. It knows no rules, so that it also makes moves that are not legal.
    """

    name = "random_moves"

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling
    ) -> Reply:
        return Reply(text=Random(sampling.seed).choice(moves_in(messages)))
