"""Formats whose arguments are text between tags, converted by the schema: Qwen3-Coder, DSML, GLM,
plain tags.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from quintain import ToolCall, ToolSpec

from .pythonic import literal
from .text_format import Found, end_of_body, listed, to_json
from .tool_format import ToolFormat
from .values import as_text, from_text, quoted, whole_json


class _Unreadable(Exception):
    """Why the body of a call cannot be read."""


@dataclass(frozen=True, kw_only=True)
class Qwen3Coder(ToolFormat):
    """``<tool_call><function=NAME><parameter=KEY>value</parameter></function></tool_call>``, of
    Qwen3-Coder.

    A value loses one line break at each end. It ends at the first closing tag, so that no text with
    that tag can be an argument. A tag of the format in a value shows that the value was not closed.
    """

    MARKS: ClassVar[tuple[tuple[str, ...], ...]] = (("<function=", "<parameter="),)
    OPENING, CLOSING = "<tool_call>", "</tool_call>"
    EDGE = re.compile(r"<tool_call>|</tool_call>|<function=")
    HEAD = re.compile(r"([^>\n]{1,128})>\s*")
    PARAMETER = re.compile(r"<parameter=([^>\n]{1,128})>")
    TAGS = re.compile(r"</parameter>|<parameter=|</?function\b")

    def describe(self, tools: Sequence[ToolSpec]) -> str:
        if not tools:
            return ""
        return (
            f"# Tools\n\nYou may call these functions:\n<tools>\n{listed(tools)}\n</tools>\n\nTo "
            f"call one, write\n"
            f"{self.OPENING}\n<function=NAME>\n<parameter=KEY>\nvalue\n</parameter>\n</function>\n"
            f"{self.CLOSING}"
        )

    def _write(self, calls: Sequence[ToolCall], tools: Sequence[ToolSpec]) -> str:
        return "\n".join(self._one(c) for c in calls)

    def _one(self, call: ToolCall) -> str:
        arguments = [
            f"<parameter={k}>\n{as_text(v)}\n</parameter>\n" for k, v in call.arguments.items()
        ]
        inside = f"<function={call.name}>\n{''.join(arguments)}</function>"
        return f"{self.OPENING}\n{inside}\n{self.CLOSING}"

    def _scan(self, text: str, found: Found) -> None:
        position, start = 0, -1  # start: of an opening tag that has had no function yet
        while not found.full and (edge := self.EDGE.search(text, position)) is not None:
            position = edge.end()
            if edge[0] == self.OPENING:
                if start >= 0:
                    found.fault("no function between two opening tags", (start, edge.start()))
                start = edge.start()
            elif edge[0] == self.CLOSING:
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
            end = end_of_body(self.EDGE, text, position, self.CLOSING)
            found.fault(str(e), (start, end), name)
            return end
        closing = self.EDGE.search(text, position)
        end = (
            closing.end()
            if closing
            and closing[0] == self.CLOSING
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
            end = _closed(self.TAGS, text, parameter.end(), "</parameter>", parameter[1])
            value = text[parameter.end() : end].removeprefix("\n").removesuffix("\n")
            _add(arguments, parameter[1], value, spec)
            position = _skip(text, end + len("</parameter>"))
        if not text.startswith("</function>", position):
            raise _Unreadable(
                f"expected <parameter=KEY> or </function>, got "
                f"{quoted(text[position : position + 40])}"
            )
        return arguments, position + len("</function>")


@dataclass(frozen=True, kw_only=True)
class SeedOSS(Qwen3Coder):
    """The calls of Qwen3-Coder between ``<seed:tool_call>`` and ``</seed:tool_call>``, of
    Seed-OSS.
    """

    MARKS = (("<seed:tool_call>", "<function=", "<parameter="),)
    THOUGHT = ("<seed:think>", "</seed:think>")
    OPENING, CLOSING = "<seed:tool_call>", "</seed:tool_call>"
    EDGE = re.compile(r"<seed:tool_call>|</seed:tool_call>|<function=")


@dataclass(frozen=True, kw_only=True)
class Invoke(ToolFormat):
    """``<invoke name="NAME"><parameter name="KEY">value</parameter></invoke>`` with a family's
    prefix, of DeepSeek V3.2 and V4, MiniMax-M2 and MiniCPM.

    DeepSeek says of each value whether it is text: ``string="true"``, else JSON.

    Attributes:
        layout: what `render_calls` writes; all are read.
    """

    layout: Literal["dsml", "minimax"] = "dsml"

    MARKS = (("DSML", "invoke name="), ("<invoke name=",), ("<function name=", "<param name="))
    PREFIX = r"(?:\uff5cDSML\uff5c|[a-z]{1,16}:)?"
    EDGE = re.compile(
        rf"<(?P<prefix>{PREFIX})(?P<word>invoke|function) name=\"(?P<name>[^\"\n]{{1,128}})\">\s*"
        rf"|</?{PREFIX}(?:tool_calls?|function_calls)>|</{PREFIX}(?:invoke|function)>"
    )
    PARAMETER = re.compile(
        rf"<(?P<tag>{PREFIX}param(?:eter)?) name=\"(?P<key>[^\"\n]{{1,128}})\""
        r"(?: string=\"(?P<text>true|false)\")?>"
    )
    LAYOUTS: ClassVar[dict[str, tuple[str, str]]] = {
        "dsml": ("\uff5cDSML\uff5c", "\uff5cDSML\uff5cfunction_calls"),
        "minimax": ("", "minimax:tool_call"),
    }

    def describe(self, tools: Sequence[ToolSpec]) -> str:
        if not tools:
            return ""
        form = self._write([ToolCall(name="NAME", arguments={"KEY": "value"})], tools)
        return f"You may call these functions:\n{listed(tools)}\n\nTo call one, write\n{form}"

    def _write(self, calls: Sequence[ToolCall], tools: Sequence[ToolSpec]) -> str:
        prefix, section = self.LAYOUTS[self.layout]
        texts = [f"<{section}>"]
        for call in calls:
            texts.append(f'<{prefix}invoke name="{call.name}">')
            for key, value in call.arguments.items():
                kind = f' string="{to_json(isinstance(value, str))}"' if prefix else ""
                inside = f"{as_text(value)}</{prefix}parameter>"
                texts.append(f'<{prefix}parameter name="{key}"{kind}>{inside}')
            texts.append(f"</{prefix}invoke>")
        return "\n".join([*texts, f"</{section}>"])

    def _scan(self, text: str, found: Found) -> None:
        position = 0
        while not found.full and (edge := self.EDGE.search(text, position)) is not None:
            start, position = edge.span()
            if edge["name"] is None:
                found.hide((start, position))
                continue
            closing, spec = f"</{edge['prefix']}{edge['word']}>", found.specs.get(edge["name"])
            try:
                arguments, position = self._arguments(text, position, closing, spec)
            except _Unreadable as e:
                position = end_of_body(self.EDGE, text, position, closing)
                found.fault(str(e), (start, position), edge["name"])
            else:
                found.call(edge["name"], arguments, (start, position))

    def _arguments(
        self, text: str, position: int, closing: str, spec: ToolSpec | None
    ) -> tuple[dict[str, Any], int]:
        arguments: dict[str, Any] = {}
        word = closing.removeprefix("</").removesuffix(">")
        while (parameter := self.PARAMETER.match(text, position)) is not None:
            key, tag = parameter["key"], parameter["tag"]
            tags = re.compile(rf"</{re.escape(tag)}>|</?(?:{re.escape(tag)}|{re.escape(word)})\b")
            end = _closed(tags, text, parameter.end(), f"</{tag}>", key)
            value = text[parameter.end() : end]
            if value.startswith("<![CDATA[") and value.endswith("]]>"):
                value = value[len("<![CDATA[") : -len("]]>")]
            if parameter["text"] is None:
                _add(arguments, key, value, spec)
            elif key in arguments:
                raise _Unreadable(f"argument {quoted(key)} is given twice")
            else:
                arguments[key] = value if parameter["text"] == "true" else _json(value, key)
            position = _skip(text, end + len(f"</{tag}>"))
        if not text.startswith(closing, position):
            got = quoted(text[position : position + 40])
            raise _Unreadable(f"expected a parameter or {closing}, got {got}")
        return arguments, position + len(closing)


def _json(text: str, key: str) -> Any:
    try:
        return whole_json(text)
    except ValueError as e:
        raise _Unreadable(f"argument {key}: {e}") from None


def _add(arguments: dict[str, Any], key: str, text: str, spec: ToolSpec | None) -> None:
    if key in arguments:
        raise _Unreadable(f"argument {quoted(key)} is given twice")
    try:
        arguments[key] = _value(text, key, spec)
    except ValueError as e:
        raise _Unreadable(str(e)) from None


def _value(text: str, key: str, spec: ToolSpec | None) -> Any:
    """Return what `from_text` does, or the object or list that *text* is in Python, as templates
    without a filter for JSON write it.
    """
    try:
        return from_text(text, key, spec)
    except ValueError:
        if not text.strip().startswith(("{", "[")):
            raise
        with suppress(ValueError):
            return literal(text)
        raise


def _closed(tags: re.Pattern[str], text: str, position: int, closing: str, key: str) -> int:
    """Return the index of the tag *closing*, where the value of *key* ends.

    Raises:
        _Unreadable: another of the *tags* comes before it, or none: the value has no end, and must
            not swallow what follows.
    """
    tag = tags.search(text, position)
    if tag is None or tag[0] != closing:
        raise _Unreadable(f"the value of {quoted(key)} is not closed")
    return tag.start()


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
    TAGS = re.compile(r"</?arg_value>|</?arg_key>|</?tool_call>")
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
            end = _closed(self.TAGS, text, key.end(), "</arg_value>", key[1])
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
    one; a tool with several takes a JSON object of them. A call without its closing tag at the end of a
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
            several = len(tool.parameters.get("properties") or {}) > 1
            inside = key or "JSON object of arguments"
            parameters = ""
            if key and several:
                parameters = " A JSON object gives further arguments."
            if several or not key:
                parameters += f" Its parameters: {as_text(dict(tool.parameters))}"
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
        tag, position = re.compile(f"<(/?)({names})>"), 0
        while not found.full and (edge := tag.search(text, position)) is not None:
            start, position = edge.span()
            if edge[1]:
                continue  # a closing tag alone is text
            name = edge[2]
            end = tag.search(text, position)
            while end is not None and end[1] and end[2] != name:
                end = tag.search(text, end.end())
            stop = len(text) if end is None else end.start()
            body, position = text[position:stop], len(text) if end is None else end.end()
            if end is not None and not end[1]:
                position = stop
                found.fault(f"<{end[2]}> stands before </{name}>", (start, stop), name)
            elif end is None and found.cut:
                found.fault(f"cut off before </{name}>", (start, stop), name)
            else:
                self._add(name, body, (start, position), found)

    def _add(self, name: str, body: str, span: tuple[int, int], found: Found) -> None:
        spec = found.specs[name]
        key, table = _only(spec), _table(body, spec)
        try:
            if table is not None:
                arguments = table
            elif key:
                arguments = {key: from_text(body, key, spec)}
            else:
                arguments = whole_json(body) if body.strip() else {}
        except ValueError as e:
            found.fault(str(e), span, name)
        else:
            found.call(name, arguments, span)


def _table(body: str, spec: ToolSpec) -> dict[str, Any] | None:
    """Return the arguments if *body* is an object of some of the tool's several parameters."""
    properties = spec.parameters.get("properties") or {}
    if len(properties) < 2 or not body.lstrip().startswith("{"):
        return None
    try:
        value = whole_json(body)
    except ValueError:
        return None
    return (
        value if isinstance(value, dict) and value and value.keys() <= properties.keys() else None
    )


def _only(spec: ToolSpec) -> str:
    """Return the one parameter that text between tags can stand for; empty if there is none."""
    properties: Mapping[str, Any] = spec.parameters.get("properties") or {}
    for names in (list(properties), list(spec.parameters.get("required") or ())):
        if len(names) == 1:
            return str(names[0])
    return ""
