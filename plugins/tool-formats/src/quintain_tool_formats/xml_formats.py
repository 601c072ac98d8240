"""Formats whose arguments are text between tags, converted by the schema: Qwen3-Coder, GLM, plain
tags.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quintain import ToolCall, ToolSpec

from .text_format import Found, end_of_body, listed
from .tool_format import ToolFormat
from .values import as_text, from_text, quoted, whole_json


class _Unreadable(Exception):
    """Why the body of a call cannot be read."""


@dataclass(frozen=True, kw_only=True)
class Qwen3Coder(ToolFormat):
    """``<tool_call><function=NAME><parameter=KEY>value</parameter></function></tool_call>``, of
    Qwen3-Coder.

    A value loses one line break at each end. It ends at the first closing tag, so that no text with
    that tag can be an argument.
    """

    MARKS = (("<function=", "<parameter="),)
    EDGE = re.compile(r"<tool_call>|</tool_call>|<function=")
    HEAD = re.compile(r"([^>\n]{1,128})>\s*")
    PARAMETER = re.compile(r"<parameter=([^>\n]{1,128})>")

    def describe(self, tools: Sequence[ToolSpec]) -> str:
        if not tools:
            return ""
        return (
            f"# Tools\n\nYou may call these functions:\n<tools>\n{listed(tools)}\n</tools>\n\nTo "
            f"call one, write\n"
            "<tool_call>\n<function=NAME>\n<parameter=KEY>\nvalue\n</parameter>\n</function>\n</tool_call>"
        )

    def _write(self, calls: Sequence[ToolCall], tools: Sequence[ToolSpec]) -> str:
        return "\n".join(self._one(c) for c in calls)

    def _one(self, call: ToolCall) -> str:
        arguments = [
            f"<parameter={k}>\n{as_text(v)}\n</parameter>\n" for k, v in call.arguments.items()
        ]
        return f"<tool_call>\n<function={call.name}>\n{''.join(arguments)}</function>\n</tool_call>"

    def _scan(self, text: str, found: Found) -> None:
        position, start = 0, -1  # start: of an opening tag that has had no function yet
        while not found.full and (edge := self.EDGE.search(text, position)) is not None:
            position = edge.end()
            if edge[0] == "<tool_call>":
                if start >= 0:
                    found.fault("no function between two opening tags", (start, edge.start()))
                start = edge.start()
            elif edge[0] == "</tool_call>":
                if start >= 0:
                    found.fault("expected <function=NAME> in the call", (start, position))
                    start = -1
            else:
                position = self._function(
                    text, start if start >= 0 else edge.start(), position, found
                )
                start = -1
        if start >= 0:
            found.fault("expected <function=NAME> in the call", (start, len(text)))

    def _function(self, text: str, start: int, position: int, found: Found) -> int:
        """Read the function whose name begins at *position*; the index after it."""
        head = self.HEAD.match(text, position)
        name = head[1] if head else ""
        try:
            if head is None:
                raise _Unreadable("expected a name and > after <function=")
            arguments, position = self._arguments(text, head.end(), found.specs.get(name))
        except _Unreadable as e:
            end = end_of_body(self.EDGE, text, position, "</tool_call>")
            found.fault(str(e), (start, end), name)
            return end
        closing = self.EDGE.search(text, position)
        end = (
            closing.end()
            if closing
            and closing[0] == "</tool_call>"
            and not text[position : closing.start()].strip()
            else position
        )
        found.call(name, arguments, (start, end))
        return end

    def _arguments(
        self, text: str, position: int, spec: ToolSpec | None
    ) -> tuple[dict[str, Any], int]:
        arguments: dict[str, Any] = {}
        while (parameter := self.PARAMETER.match(text, position)) is not None:
            end = text.find("</parameter>", parameter.end())
            if end < 0:
                raise _Unreadable(f"parameter {quoted(parameter[1])} is not closed")
            value = text[parameter.end() : end].removeprefix("\n").removesuffix("\n")
            _add(arguments, parameter[1], value, spec)
            position = _skip(text, end + len("</parameter>"))
        if not text.startswith("</function>", position):
            raise _Unreadable(
                f"expected <parameter=KEY> or </function>, got "
                f"{quoted(text[position : position + 40])}"
            )
        return arguments, position + len("</function>")


def _add(arguments: dict[str, Any], key: str, text: str, spec: ToolSpec | None) -> None:
    if key in arguments:
        raise _Unreadable(f"argument {quoted(key)} is given twice")
    try:
        arguments[key] = from_text(text, key, spec)
    except ValueError as e:
        raise _Unreadable(str(e)) from None


def _skip(text: str, position: int) -> int:
    """Return the index of the first character from *position* that is no blank."""
    while position < len(text) and text[position].isspace():
        position += 1
    return position


@dataclass(frozen=True, kw_only=True)
class GLM(ToolFormat):
    """``<tool_call>NAME`` and pairs of ``<arg_key>`` and ``<arg_value>``, of GLM-4.5."""

    MARKS = (("<tool_call>", "<arg_key>", "<arg_value>"),)
    EDGE = re.compile(r"</?tool_call>")
    NAME = re.compile(r"\s*([^\s<]{1,128})\s*")
    KEY = re.compile(r"<arg_key>([^<\n]{1,128})</arg_key>\s*<arg_value>")

    def describe(self, tools: Sequence[ToolSpec]) -> str:
        if not tools:
            return ""
        return (
            f"# Tools\n\nYou may call these functions:\n<tools>\n{listed(tools)}\n</tools>\n\nTo "
            f"call one, write\n"
            "<tool_call>NAME\n<arg_key>KEY</arg_key>\n<arg_value>value</arg_value>\n</tool_call>"
        )

    def _write(self, calls: Sequence[ToolCall], tools: Sequence[ToolSpec]) -> str:
        texts = []
        for c in calls:
            pairs = [
                f"<arg_key>{k}</arg_key>\n<arg_value>{as_text(v)}</arg_value>\n"
                for k, v in c.arguments.items()
            ]
            texts.append(f"<tool_call>{c.name}\n{''.join(pairs)}</tool_call>")
        return "\n".join(texts)

    def _scan(self, text: str, found: Found) -> None:
        position = 0
        while not found.full and (edge := self.EDGE.search(text, position)) is not None:
            start, position = edge.span()
            if edge[0] != "<tool_call>":
                continue
            head = self.NAME.match(text, position)
            try:
                if head is None:
                    raise _Unreadable("expected the name of a tool after <tool_call>")
                arguments, position = self._arguments(
                    text, head.end(), found.specs.get(head[1]), cut=found.cut
                )
            except _Unreadable as e:
                position = end_of_body(self.EDGE, text, position, "</tool_call>")
                found.fault(str(e), (start, position), head[1] if head else "")
            else:
                found.call(head[1], arguments, (start, position))

    def _arguments(
        self, text: str, position: int, spec: ToolSpec | None, *, cut: bool
    ) -> tuple[dict[str, Any], int]:
        arguments: dict[str, Any] = {}
        while (key := self.KEY.match(text, position)) is not None:
            end = text.find("</arg_value>", key.end())
            if end < 0:
                raise _Unreadable(f"the value of {quoted(key[1])} is not closed")
            _add(arguments, key[1], text[key.end() : end], spec)
            position = _skip(text, end + len("</arg_value>"))
        if text.startswith("</tool_call>", position):
            return arguments, position + len("</tool_call>")
        if position < len(text) or cut:
            raise _Unreadable(
                f"expected <arg_key> or </tool_call>, got {quoted(text[position : position + 40])}"
            )
        return arguments, position


@dataclass(frozen=True, kw_only=True)
class Tags(ToolFormat):
    """One tag per tool, ``<search>...</search>``, for base models without a template of their own
    (Search-R1).

    The text between the tags is the value of the tool's only parameter, or of its only required
    one; a tool with several takes a JSON object. A call without its closing tag at the end of a
    turn counts, because a stop string cuts it off, unless the turn ended by its length.

    Attributes:
        result: the tag around a result.
    """

    result: str = "information"

    def describe(self, tools: Sequence[ToolSpec]) -> str:
        if not tools:
            return ""
        lines = []
        for tool in tools:
            key = _only(tool)
            inside = key or "JSON object of arguments"
            parameters = "" if key else f" Its parameters: {as_text(dict(tool.parameters))}"
            lines.append(
                f"<{tool.name}>{inside}</{tool.name}>: {tool.description}{parameters}".rstrip()
            )
        listing = "\n".join(lines)
        return (
            f"You may call these tools by writing their tags:\n{listing}\n"
            f"The result follows between <{self.result}> and </{self.result}>."
        )

    def render_result(self, call: ToolCall, result: str) -> str:
        return f"<{self.result}>{result}</{self.result}>"

    def _write(self, calls: Sequence[ToolCall], tools: Sequence[ToolSpec]) -> str:
        specs = {t.name: t for t in tools}
        texts = []
        for c in calls:
            key = _only(specs[c.name]) if c.name in specs else ""
            alone = key and set(c.arguments) == {key}
            body = as_text(c.arguments[key]) if alone else as_text(dict(c.arguments))
            texts.append(f"<{c.name}>{body}</{c.name}>")
        return "\n".join(texts)

    def _scan(self, text: str, found: Found) -> None:
        names = "|".join(map(re.escape, sorted(found.specs, key=len, reverse=True)))
        opening, position = re.compile(f"<({names})>"), 0
        while not found.full and (edge := opening.search(text, position)) is not None:
            spec, closing = found.specs[edge[1]], f"</{edge[1]}>"
            end = text.find(closing, edge.end())
            position = end + len(closing) if end >= 0 else len(text)
            span, body = (edge.start(), position), text[edge.end() : end if end >= 0 else position]
            if end < 0 and found.cut:
                found.fault(f"cut off before {closing}", span, edge[1])
                continue
            key = _only(spec)
            try:
                arguments = (
                    {key: from_text(body, key, spec)}
                    if key
                    else whole_json(body)
                    if body.strip()
                    else {}
                )
            except ValueError as e:
                found.fault(str(e), span, edge[1])
            else:
                found.call(edge[1], arguments, span)


def _only(spec: ToolSpec) -> str:
    """Return the one parameter that text between tags can stand for; empty if there is none."""
    properties: Mapping[str, Any] = spec.parameters.get("properties") or {}
    for names in (list(properties), list(spec.parameters.get("required") or ())):
        if len(names) == 1:
            return str(names[0])
    return ""
