"""Parses tool calls and reasoning in the tags of Qwen and Hermes models."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from ...types.task import ToolCall

_CALL = re.compile(r"<tool_call>\s*(.*?)\s*(?:</tool_call>|\Z)", re.DOTALL)
_THOUGHT = re.compile(r"\A\s*<think>(.*?)</think>\s*", re.DOTALL)


@dataclass(frozen=True, kw_only=True, slots=True)
class Parsed:
    """The parts of a sampled text: thought, reply, tool calls; a call that cannot be parsed carries an ``error``."""

    reply: str
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()


def parse(text: str, *, tools: bool = False) -> Parsed:
    """Split a sampled text into thought, reply and, if *tools* were offered, tool calls.

    A thought is text between think tags at the very start; with an unclosed tag the whole text is the reply, because
    the policy was cut off or misused the tag, and rewards must see what it wrote.
    """
    reasoning = ""
    thought = _THOUGHT.match(text)
    if thought:
        reasoning, text = thought[1].strip(), text[thought.end() :]
    if not tools:
        return Parsed(reply=text.strip(), reasoning=reasoning)
    calls = tuple(_call(m[1], f"call-{i}") for i, m in enumerate(_CALL.finditer(text)))
    return Parsed(reply=_CALL.sub("", text).strip(), reasoning=reasoning, calls=calls)


def _call(body: str, name: str) -> ToolCall:
    try:
        data = json.loads(body)
    except ValueError as e:
        return ToolCall(name="", id=name, error=f"not JSON: {e}")
    if not isinstance(data, dict) or not isinstance(data.get("name"), str):
        return ToolCall(name="", id=name, error='expected {"name": ..., "arguments": {...}}')
    arguments = data.get("arguments", {})
    if not isinstance(arguments, dict):
        return ToolCall(name=data["name"], id=name, error="arguments must be an object")
    return ToolCall(name=data["name"], arguments=arguments, id=name)
