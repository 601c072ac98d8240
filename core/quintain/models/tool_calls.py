"""Parses tool calls and reasoning in the tags of Qwen and Hermes models."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from ..interfaces.tools import ToolSpec
from ..types.rollout import Turn
from ..types.task import Message, ToolCall
from ..types.thought import split_thought

_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)


def messages(
    given: Sequence[Message], tools: Sequence[ToolSpec]
) -> tuple[Sequence[Message], Sequence[ToolSpec]]:
    """Return what the chat template gets: sampled turns are the text that was sampled."""
    return given, tools


def parse(text: str, *, tools: object = (), **turn_fields: Any) -> Turn:
    """Return the turn of a sampled text, split into thought, reply and, if *tools* were offered,
    tool calls.

    The thought is that of `split_thought`. A call that cannot be parsed carries an ``error``.
    *turn_fields* are the other fields of the turn.
    """
    reasoning, rest = split_thought(text)
    calls = (
        tuple([_call(m[1], f"call-{i}") for i, m in enumerate(_CALL.finditer(rest))])
        if tools
        else ()
    )
    reply = _CALL.sub("", rest) if calls else rest
    return Turn(text=text, reply=reply.strip(), reasoning=reasoning, calls=calls, **turn_fields)


def _call(body: str, name: str) -> ToolCall:
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as e:
        return ToolCall(name="", id=name, error=f"not JSON: {e}")
    if not isinstance(data, dict) or not isinstance(data.get("name"), str):
        return ToolCall(name="", id=name, error='expected {"name": ..., "arguments": {...}}')
    arguments = data.get("arguments", {})
    if not isinstance(arguments, dict):
        return ToolCall(name=data["name"], id=name, error="arguments must be an object")
    return ToolCall(name=data["name"], arguments=arguments, id=name)
