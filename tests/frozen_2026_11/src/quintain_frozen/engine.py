"""An engine of text."""

from __future__ import annotations

import re
from collections.abc import Sequence

from quintain import Engine, Message, Reply, Sampling, ToolCall, ToolSpec


class Adder(Engine):
    """Calls the tool, and replies with its result.

    Args:
        wrong: added to the reply.
    """

    name = "frozen_adder"

    def __init__(self, *, wrong: int = 0) -> None:
        self.wrong = wrong

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling
    ) -> Reply:
        last = messages[-1]
        if last.role == "tool":
            return Reply(text=str(int(last.content) + self.wrong))
        a, b = map(int, re.findall(r"\d+", last.content))
        return Reply(calls=(ToolCall(name=tools[0].name, arguments={"a": a, "b": b}),))
