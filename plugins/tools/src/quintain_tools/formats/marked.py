"""Formats whose calls are JSON between marks, one declaration per family."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from quintain import ToolCall, ToolSpec

from .text_format import CALL_LIMIT, Found, end_of_body, listed, named_call, to_json
from .tool_format import ToolFormat
from .values import read_json


@dataclass(frozen=True, kw_only=True)
class Style:
    """How a family marks its calls.

    Attributes:
        openings: each begins a call or a list of calls; the first is written.
        closing: what ends it; it may be absent at the end of a turn. Empty: the JSON alone says
            where a call ends.
        name: key of a call with the name of its tool; empty where the tool is the only key, and its
            value the arguments.
        arguments: keys that may hold the arguments; the first is written.
        head: pattern of what names the tool (group ``name``, and ``id`` of the call) between the
            opening and the arguments, which are then the whole JSON; empty where the JSON names it.
        head_text: the same as it is written, with ``{name}`` and ``{i}``, the number of the call.
        listed: the calls of a turn are one list.
        lines: one pair of marks may hold several values.
        pad: what is written after the opening and before the closing.
        section: marks that are written around all calls.
        hidden: marks of the family that are no part of a reply.
    """

    openings: tuple[str, ...]
    closing: str = ""
    name: str = "name"
    arguments: tuple[str, ...] = ("arguments", "parameters")
    head: str = ""
    head_text: str = ""
    listed: bool = False
    lines: bool = False
    pad: str = ""
    section: tuple[str, str] = ("", "")
    hidden: tuple[str, ...] = ()

    @cached_property
    def edge(self) -> re.Pattern[str]:
        """What may begin or end a call, or is hidden; the longest first."""
        marks = {*self.openings, self.closing, *self.section, *self.hidden} - {""}
        return re.compile("|".join(map(re.escape, sorted(marks, key=len, reverse=True))))

    @cached_property
    def start(self) -> re.Pattern[str]:
        """`head`, compiled."""
        return re.compile(self.head)


@dataclass(frozen=True, kw_only=True)
class Marked(ToolFormat):
    """Reads and writes calls in the way that `STYLE` declares."""

    STYLE: ClassVar[Style]

    def describe(self, tools: Sequence[ToolSpec]) -> str:
        if not tools:
            return ""
        form = self._write([ToolCall(name="NAME", arguments={"KEY": "value"})], tools)
        return (
            f"# Tools\n\nYou may call these functions:\n<tools>\n{listed(tools)}\n</tools>\n\nTo "
            f"call one, write its name and the object of its arguments in this form:\n{form}"
        )

    def _write(self, calls: Sequence[ToolCall], tools: Sequence[ToolSpec]) -> str:
        style, values = self.STYLE, list[str]()
        for i, call in enumerate(calls):
            arguments = dict(call.arguments)
            if style.head:
                values.append(style.head_text.format(name=call.name, i=i) + to_json(arguments))
            elif style.name:
                values.append(to_json({style.name: call.name, style.arguments[0]: arguments}))
            else:
                values.append(to_json({call.name: arguments}))
        if style.listed:
            values = [f"[{', '.join(values)}]"]
        opening, closing = style.openings[0] + style.pad, style.pad + style.closing
        blocks = [f"{opening}{value}{closing}" for value in values]
        return style.section[0] + style.pad.join(blocks) + style.section[1]

    def _scan(self, text: str, found: Found) -> None:
        style, position = self.STYLE, 0
        hidden = {*style.section, *style.hidden}
        while not found.full:
            edge = style.edge.search(text, position)
            if edge is None:
                return
            start, position = edge.span()
            if edge[0] in style.openings:
                position = self._block(text, start, position, found)
            elif edge[0] in hidden:
                found.hide((start, position))
            # a closing mark alone is text

    def _block(self, text: str, start: int, position: int, found: Found) -> int:
        """Read what stands after an opening, and return the index after it.

        The JSON says where it ends, since a text in it may hold the closing mark. Where it cannot
        be read, the marks say where to go on.
        """
        style, values = self.STYLE, list[Any]()
        named, reason, end = dict[str, str](), "", position
        head = style.start.match(text, position)
        if head is None:
            reason = f"expected the name of a tool after {style.openings[0]}"
        else:
            named, end = head.groupdict(), head.end()
            try:
                value, end = read_json(text, end)
                values.append(value)
                while style.lines and text[end : end + 64].lstrip()[:1] in ("{", "["):
                    value, end = read_json(text, end)
                    values.append(value)
            except ValueError as e:
                reason = str(e)
        after = end_of_body(style.edge, text, end, style.closing)
        if style.closing and not reason and text[end:after].removesuffix(style.closing).strip():
            reason = "not JSON: text follows the object"
        if reason:
            found.fault(reason, (start, after), named.get("name", ""))
        else:
            after = after if style.closing else end
            self._calls(named, values, (start, after), found)
        return after

    def _calls(
        self, named: Mapping[str, str], values: list[Any], span: tuple[int, int], found: Found
    ) -> None:
        style = self.STYLE
        if named:
            arguments = {} if values[0] is None else values[0]
            return found.call(named["name"], arguments, span, named.get("id"))
        rows = [row for value in values for row in (value if isinstance(value, list) else [value])]
        if not rows:
            return found.fault("expected a call, got an empty list", span)
        for row in rows[: CALL_LIMIT + 1]:
            if style.name:
                named_call(row, found, span, *style.arguments, name=style.name)
            elif isinstance(row, dict) and len(row) == 1:
                ((name, arguments),) = row.items()
                found.call(name, {} if arguments is None else arguments, span)
            else:
                found.fault("expected {NAME: {...}} with one key, the name of the tool", span)
        return None


@dataclass(frozen=True, kw_only=True)
class Hermes(Marked):
    """``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, of Hermes, Qwen2.5, Qwen3 and
    SmolLM3.
    """

    MARKS = (("<tool_call>",),)
    STYLE = Style(openings=("<tool_call>",), closing="</tool_call>", pad="\n")


@dataclass(frozen=True, kw_only=True)
class Kimi(Marked):
    """``<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{...}<|tool_call_end|>`` in
    a section, of Kimi K2.
    """

    MARKS = (("<|tool_call_begin|>", "<|tool_call_argument_begin|>"),)
    ID = re.compile(r"functions\.[^\s<|]{1,120}:\d{1,6}")
    STYLE = Style(
        openings=("<|tool_call_begin|>",),
        closing="<|tool_call_end|>",
        head=r"\s*(?P<id>(?:functions\.)?(?P<name>[^\s<|]{1,128}?)(?::\d{1,6})?)\s*"
        r"<\|tool_call_argument_begin\|>\s*",
        head_text="functions.{name}:{i}<|tool_call_argument_begin|>",
        section=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    )


@dataclass(frozen=True, kw_only=True)
class Cohere(Marked):
    """``<|START_ACTION|>[{"tool_name": ..., "parameters": {...}}]<|END_ACTION|>``, of Command R7B,
    Command A and later models.
    """

    MARKS = (("<|START_ACTION|>",),)
    THOUGHT = ("<|START_THINKING|>", "<|END_THINKING|>")
    STYLE = Style(
        openings=("<|START_ACTION|>",),
        closing="<|END_ACTION|>",
        name="tool_name",
        arguments=("parameters",),
        listed=True,
        hidden=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    )


@dataclass(frozen=True, kw_only=True)
class GigaChat(Marked):
    """``<|function_call|>{"name": ..., "arguments": {...}}``, or a message of the role
    ``function call``, of GigaChat 3.
    """

    MARKS = (
        ("<|function_call|>",),
        ("function call<|role_sep|>",),
        ("function call", "<|role_sep|>"),
    )
    STYLE = Style(
        openings=("<|function_call|>", "function call<|role_sep|>\n"), hidden=("<|message_sep|>",)
    )


@dataclass(frozen=True, kw_only=True)
class Apertus(Marked):
    """``<|tools_prefix|>[{NAME: {...}}]<|tools_suffix|>``, of Apertus."""

    MARKS = (("<|tools_prefix|>",),)
    THOUGHT = ("<|inner_prefix|>", "<|inner_suffix|>")
    STYLE = Style(openings=("<|tools_prefix|>",), closing="<|tools_suffix|>", name="", listed=True)


@dataclass(frozen=True, kw_only=True)
class Jamba(Marked):
    """``<tool_calls>[{"name": ..., "arguments": {...}}]</tool_calls>``, of Jamba and Hunyuan;
    MiniMax-M1 has an object per line in place of the list.
    """

    MARKS: ClassVar[tuple[tuple[str, ...], ...]] = (("<tool_calls>",),)
    STYLE = Style(
        openings=("<tool_calls>",),
        closing="</tool_calls>",
        listed=True,
        lines=True,
        hidden=("[BEGIN FINAL RESPONSE]", "[END FINAL RESPONSE]"),
    )


@dataclass(frozen=True, kw_only=True)
class Apriel(Jamba):
    """The calls of Jamba, and thoughts that the words of the prompt open, of Apriel."""

    MARKS = (("<tool_calls>", "[BEGIN FINAL RESPONSE]"),)
    THOUGHT = ("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]")


@dataclass(frozen=True, kw_only=True)
class Functionary(Marked):
    """``<function=NAME>{...}</function>``, of Functionary 3.1 and Llama 3.1 with functions of the
    user.
    """

    MARKS = (("<function=", "</function>", "ipython"),)
    STYLE = Style(
        openings=("<function=",),
        closing="</function>",
        head=r"(?P<name>[^>\n]{1,128})>\s*",
        head_text="{name}>",
    )


@dataclass(frozen=True, kw_only=True)
class Granite(Marked):
    """``<|tool_call|>[{"name": ..., "arguments": {...}}]``, of Granite 3 and, with a closing mark,
    Phi-4-mini.
    """

    MARKS = (("<|tool_call|>",),)
    STYLE = Style(openings=("<|tool_call|>",), listed=True, hidden=("<|/tool_call|>",))


@dataclass(frozen=True, kw_only=True)
class Nemotron(Marked):
    """``<TOOLCALL>[{"name": ..., "arguments": {...}}]</TOOLCALL>``, of Nemotron before 3."""

    MARKS = (("<TOOLCALL>",),)
    STYLE = Style(openings=("<TOOLCALL>",), closing="</TOOLCALL>", listed=True)


@dataclass(frozen=True, kw_only=True)
class InternLM(Marked):
    """``<|action_start|><|plugin|>{"name": ..., "parameters": {...}}<|action_end|>``, of
    InternLM.
    """

    MARKS = (("<|action_start|>", "<|plugin|>"),)
    STYLE = Style(
        openings=("<|action_start|><|plugin|>",),
        closing="<|action_end|>",
        arguments=("parameters", "arguments"),
    )
