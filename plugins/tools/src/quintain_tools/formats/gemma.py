"""The calls of Gemma 4, whose texts stand between tokens of their own."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from quintain import ToolCall, ToolSpec
from quintain.errors import UsageError

from .text_format import Found, end_of_body, listed, to_json
from .tool_format import ToolFormat
from .values import whole_json

QUOTE = '<|"|>'

CONSTANTS = {"True": "true", "False": "false", "None": "null"}


@dataclass(frozen=True, kw_only=True)
class Gemma(ToolFormat):
    """``<|tool_call>call:NAME{key:<|"|>text<|"|>,n:1}<tool_call|>``, of Gemma 4.

    A text ends at its closing token, so that no text with that token can be an argument.
    """

    MARKS = (("<|tool_call>call:",), ("<|tool_call>",))
    THOUGHT = ("<|channel>thought\n", "<channel|>")
    OPENING, CLOSING = "<|tool_call>", "<tool_call|>"
    EDGE = re.compile(r"<\|tool_call>|<tool_call\|>")
    HEAD = re.compile(r"\s*call:([^\s{<]{1,128})\s*(?=\{)")
    BODY = re.compile(
        r"(?:[^<]++|<\|\"\|>(?:[^<]++|<(?!\|\"\|>))*+<\|\"\|>|<(?!\|tool_call>|tool_call\||\|\"\|>))*+"
    )
    KEY = re.compile(r"([{,]\s*+)([^\s{}\[\],:\"]++)(\s*+:)")
    WORD = re.compile(r"\b(?:True|False|None)\b")

    def describe(self, tools: Sequence[ToolSpec]) -> str:
        if not tools:
            return ""
        form = self._write([ToolCall(name="NAME", arguments={"KEY": "value"})], tools)
        return (
            f"You may call these functions:\n{listed(tools)}\n\nTo call one, write texts between "
            f"{QUOTE} and {QUOTE}:\n{form}"
        )

    def render_result(self, call: ToolCall, result: str) -> str:
        return (
            f"<|tool_response>response:{call.name}{{value:{QUOTE}{result}{QUOTE}}}<tool_response|>"
        )

    def _write(self, calls: Sequence[ToolCall], tools: Sequence[ToolSpec]) -> str:
        return "".join(
            f"{self.OPENING}call:{c.name}{_object(dict(c.arguments), bare=True)}{self.CLOSING}"
            for c in calls
        )

    def _scan(self, text: str, found: Found) -> None:
        position = 0
        while not found.full and (edge := self.EDGE.search(text, position)) is not None:
            start, position = edge.span()
            if edge[0] != self.OPENING:
                continue  # a closing token alone is text
            head = self.HEAD.match(text, position)
            body = self.BODY.match(text, head.end() if head else position)
            end = body.end() if body else position
            try:
                if head is None:
                    raise ValueError("expected call:NAME{...}")
                value = whole_json(self._json(text[head.end() : end]))
            except ValueError as e:
                position = end_of_body(self.EDGE, text, position, self.CLOSING)
                found.fault(str(e), (start, position), head[1] if head else "")
            else:
                position = end_of_body(self.EDGE, text, end, self.CLOSING)
                found.call(head[1], value, (start, position))

    def _json(self, body: str) -> str:
        """Return *body* as JSON; every second part is a text."""
        parts = body.split(QUOTE)
        if len(parts) % 2 == 0:
            raise ValueError(f"a text is not closed with {QUOTE}")
        if any(self.OPENING in part for part in parts[1::2]):
            raise ValueError("a call begins in a text: the text is not closed")
        texts = [to_json(part) for part in parts[1::2]]
        syntax = [
            self.WORD.sub(lambda m: CONSTANTS[m[0]], self.KEY.sub(r'\1"\2"\3', part))
            for part in parts[::2]
        ]
        rows = [piece for pair in zip(syntax, texts, strict=False) for piece in pair]
        return "".join([*rows, syntax[-1]])


def _object(value: Any, *, bare: bool = False) -> str:
    """Return *value* as the family writes it.

    Args:
        bare: keys of the object stand without marks, as the names of arguments do.

    Raises:
        UsageError: a text has the token that ends it.
    """
    if isinstance(value, str):
        if QUOTE in value:
            raise UsageError(f"Gemma cannot express a text that contains {QUOTE}")
        return f"{QUOTE}{value}{QUOTE}"
    if isinstance(value, dict):
        items = [f"{key if bare else _object(key)}:{_object(item)}" for key, item in value.items()]
        return f"{{{','.join(items)}}}"
    if isinstance(value, list):
        return f"[{','.join(map(_object, value))}]"
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"Gemma cannot express the number {value}")
    return json.dumps(value)
