"""Customers for `returns`: what they are told, and a script that plays one."""

from __future__ import annotations

import re
from collections.abc import Sequence

from quintain import Engine, Message, Reply, Sampling, ToolSpec
from quintain.errors import EnvironmentFault

COLOURS = ("red", "blue", "green", "black")
FACT = re.compile(r"^(order|wish|colour): *(.*)$", re.MULTILINE)
TOPICS = re.compile(r"\b(order|number|wish|refund|exchange|want|colou?r)\b", re.IGNORECASE)
"""What a question may be about; the first that occurs is answered."""


def brief(order: int, wish: str, colour: str) -> str:
    """Return the system message of the customer, for a script as for a model."""
    lines = [
        "You are a customer at the returns desk of a shop; the user is the clerk.",
        "Greet first. Then answer what you are asked, one thing at a time and in a few words, and "
        "say nothing else.",
        f"order: {order}",
        f"wish: {wish}",
        f"colour: {colour or 'none'}",
    ]
    return "\n".join(lines)


class Customer(Engine):
    """Answers single questions by a script: the order's number, the wish, the colour; to all else
    it says *Sorry?*.

    It reads nothing but its own conversation: the system message has its facts, the user's messages
    the questions. Of several questions at once it answers the first.
    """

    name = "customer"

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling
    ) -> Reply:
        facts = dict(FACT.findall("\n".join(m.content for m in messages if m.role == "system")))
        if facts.keys() != {"order", "wish", "colour"}:
            raise EnvironmentFault("the customer was not told order, wish and colour: see `brief`")
        if not any(m.role == "assistant" for m in messages):
            return Reply(text="Hello.")
        topic = TOPICS.search(messages[-1].content)
        if topic is None:
            return Reply(text="Sorry?")
        word = topic[1].lower()
        if word in ("order", "number"):
            return Reply(text=facts["order"])
        return Reply(text=facts["colour"] if word.startswith("colo") else facts["wish"])
