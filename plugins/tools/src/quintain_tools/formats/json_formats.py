"""Formats whose calls are JSON with a syntax of their own: Llama 3, Mistral, DeepSeek."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from quintain import ToolCall, ToolSpec

from .text_format import CALL_LIMIT, Found, end_of_body, listed, named_call, to_json
from .tool_format import ToolFormat
from .values import read_json


@dataclass(frozen=True, kw_only=True)
class LlamaJSON(ToolFormat):
    """A reply that is ``{"name": ..., "parameters": {...}}``, of Llama 3.1; several are separated
    by ``;``.

    A reply that begins otherwise, or with an object that names no tool, is text. ``<|python_tag|>``
    may come first.
    """

    MARKS = (("<|python_tag|>",), ("ipython", '"parameters"'), ("ipython", "parameters"))
    LOOKS = re.compile(r'\s*\{\s*"(?:name|type)"\s*:')
    TAGS = re.compile(r"<\|python_tag\|>|<\|python_start\|><\|python_end\|>")

    def describe(self, tools: Sequence[ToolSpec]) -> str:
        if not tools:
            return ""
        return (
            f"You may call these functions:\n\n{listed(tools)}\n\nTo call one, answer with nothing "
            f"but\n"
            '{"name": name of the function, "parameters": object of arguments}\nand separate '
            'several by ";".'
        )

    def render_result(self, call: ToolCall, result: str) -> str:
        return result

    def _write(self, calls: Sequence[ToolCall], tools: Sequence[ToolSpec]) -> str:
        return "; ".join(to_json({"name": c.name, "parameters": dict(c.arguments)}) for c in calls)

    def _scan(self, text: str, found: Found) -> None:
        # Without a tag, a reply is a call only if it begins like one: any other object is an answer.
        start = len(text) - len(text.lstrip())
        tags = self.TAGS.match(text, start)
        position = tags.end() if tags else start
        if tags is None and not self.LOOKS.match(text, position):
            return
        while not found.full:
            try:
                data, end = read_json(text, position)
            except ValueError as e:
                # Nothing marks the end of a call, so all that is left belongs to it.
                found.fault(str(e), (start, len(text)))
                return
            named_call(data, found, (start, end), "parameters", "arguments")
            # A ";" or "," and another call may follow. Anything else is text, and a separator at the very
            # end is not shown.
            start = end
            while end < len(text) and text[end] in ";, \t\r\n":
                end += 1
            if end == len(text):
                found.hide((start, end))
            if sum(map(text[start:end].count, ";,")) > 1 or not self.LOOKS.match(text, end):
                return
            position = end


@dataclass(frozen=True, kw_only=True)
class Mistral(ToolFormat):
    """``[TOOL_CALLS][{"name": ..., "arguments": {...}}]``, or ``[TOOL_CALLS]name[ARGS]{...}`` of
    newer models.

    Attributes:
        layout: what `render_calls` writes; both are read.
    """

    layout: Literal["list", "args"] = "list"

    MARKS = (("[TOOL_CALLS]",),)
    THOUGHT = ("[THINK]", "[/THINK]")
    TOKEN = "[TOOL_CALLS]"
    NAME = re.compile(r"\s*([\w.:/-]{1,256})\s*(?:\[CALL_ID\]([\w-]{1,64}))?\s*\[ARGS\]")

    def describe(self, tools: Sequence[ToolSpec]) -> str:
        return (
            f"[AVAILABLE_TOOLS]{to_json([t.to_json() for t in tools])}[/AVAILABLE_TOOLS]"
            if tools
            else ""
        )

    def render_result(self, call: ToolCall, result: str) -> str:
        return f"[TOOL_RESULTS]{to_json({'content': result, 'call_id': call.id})}[/TOOL_RESULTS]"

    def _write(self, calls: Sequence[ToolCall], tools: Sequence[ToolSpec]) -> str:
        if self.layout == "args":
            return "".join(f"{self.TOKEN}{c.name}[ARGS]{to_json(dict(c.arguments))}" for c in calls)
        ids = [{"id": c.id} if c.id else {} for c in calls]
        return self.TOKEN + to_json(
            [
                {"name": c.name, "arguments": dict(c.arguments), **id_}
                for c, id_ in zip(calls, ids, strict=True)
            ]
        )

    def _scan(self, text: str, found: Found) -> None:
        start = text.find(self.TOKEN)
        while start >= 0 and not found.full:
            body = start + len(self.TOKEN)
            name = self.NAME.match(text, body)
            try:
                data, end = read_json(text, name.end() if name else body)
            except ValueError as e:
                following = text.find(self.TOKEN, body)
                end = following if following >= 0 else len(text)
                found.fault(str(e), (start, end), name[1] if name else "")
            else:
                if name:
                    found.call(name[1], data, (start, end), name[2])
                elif not isinstance(data, list) or not data:
                    found.fault("expected a list of calls", (start, end))
                else:
                    for item in data[: CALL_LIMIT + 1]:
                        named_call(item, found, (start, end), "arguments", "parameters")
            start = text.find(self.TOKEN, end)


def _token(words: str) -> str:
    """Return a special token of DeepSeek, in its own characters for bar and blank."""
    return f"<\uff5c{words.replace(' ', chr(0x2581))}\uff5c>"


@dataclass(frozen=True, kw_only=True)
class DeepSeek(ToolFormat):
    """Calls between tokens: ``function``, a separator, the name and fenced JSON (V3, R1), or name
    and JSON (V3.1).

    Attributes:
        layout: what `render_calls` writes; both are read.
    """

    layout: Literal["v3", "v3.1"] = "v3"

    CALLS, CALLS_END = _token("tool calls begin"), _token("tool calls end")
    CALL, SEP, CALL_END = _token("tool call begin"), _token("tool sep"), _token("tool call end")
    OUTPUT, OUTPUT_END = _token("tool output begin"), _token("tool output end")
    MARKS = ((CALLS,), (CALL,))
    EDGE = re.compile("|".join(map(re.escape, (CALLS, CALLS_END, CALL, CALL_END))))
    V3 = re.compile(rf"\s*function{re.escape(SEP)}([^\n]{{1,256}})\n```json\n")
    V31 = re.compile(rf"\s*([^\n<\uff5c]{{1,256}}?){re.escape(SEP)}")

    def describe(self, tools: Sequence[ToolSpec]) -> str:
        if not tools:
            return ""
        form = f"{self.CALLS}{self._one('NAME', '{arguments}')}{self.CALLS_END}"
        return (
            f"## Tools\n\nYou may call these functions:\n\n{listed(tools)}\n\nTo call one, "
            f"write\n{form}"
        )

    def render_result(self, call: ToolCall, result: str) -> str:
        return f"{self.OUTPUT}{result}{self.OUTPUT_END}"

    def _one(self, name: str, body: str) -> str:
        inside = (
            f"function{self.SEP}{name}\n```json\n{body}\n```"
            if self.layout == "v3"
            else f"{name}{self.SEP}{body}"
        )
        return f"{self.CALL}{inside}{self.CALL_END}"

    def _write(self, calls: Sequence[ToolCall], tools: Sequence[ToolSpec]) -> str:
        joint = "\n" if self.layout == "v3" else ""
        return (
            self.CALLS
            + joint.join(self._one(c.name, to_json(dict(c.arguments))) for c in calls)
            + self.CALLS_END
        )

    def _scan(self, text: str, found: Found) -> None:
        position = 0
        while not found.full and (edge := self.EDGE.search(text, position)) is not None:
            start, position = edge.span()
            if edge[0] != self.CALL:
                found.hide((start, position))
                continue
            head = self.V3.match(text, position) or self.V31.match(text, position)
            if head is None:
                position = end_of_body(self.EDGE, text, position, self.CALL_END)
                found.fault(
                    "expected the name of a function after the token that begins a call",
                    (start, position),
                )
                continue
            try:
                data, end = read_json(text, head.end())
            except ValueError as e:
                position = end_of_body(self.EDGE, text, position, self.CALL_END)
                found.fault(str(e), (start, position), head[1])
                continue
            position = end_of_body(self.EDGE, text, end, self.CALL_END)
            if text[end:position].removesuffix(self.CALL_END).strip() not in ("", "```"):
                found.fault("not JSON: text follows the object", (start, position), head[1])
            else:
                found.call(head[1].strip(), data, (start, position))


@dataclass(frozen=True, kw_only=True)
class FunctionaryV32(ToolFormat):
    """A recipient, a line break, and the arguments as JSON; ``>>>`` before the next recipient. The
    recipient ``all`` is the user. Of Functionary 3.2, whose prompt ends with the first ``>>>``.
    """

    MARKS = ((">>>all",), (">>>",))
    CHANNELS = True
    EDGE = re.compile(r"(?:\A\s*+|>>>)(?P<name>[\w.:/-]{1,128})\n")

    def describe(self, tools: Sequence[ToolSpec]) -> str:
        if not tools:
            return ""
        return (
            f"You may call these functions:\n\n{listed(tools)}\n\nTo call one, write its name, and "
            f'its arguments on the next line:\n>>>NAME\n{{"KEY": "value"}}'
        )

    def _write(self, calls: Sequence[ToolCall], tools: Sequence[ToolSpec]) -> str:
        return ">>>".join(f"{c.name}\n{to_json(dict(c.arguments))}" for c in calls)

    def _scan(self, text: str, found: Found) -> None:
        position = 0
        while not found.full and (edge := self.EDGE.search(text, position)) is not None:
            start, position = edge.span()
            name = edge["name"]
            if name == "all":
                found.hide((start, position))
            elif found.specs and (name in found.specs or edge[0].startswith(">>>")):
                try:
                    data, position = read_json(text, position)
                except ValueError as e:
                    following = text.find(">>>", position)
                    position = following if following >= 0 else len(text)
                    found.fault(str(e), (start, position), name)
                else:
                    found.call(name, data, (start, position))
