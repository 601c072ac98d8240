"""Text of calls, results and descriptions of tools, and the way back, whatever the tokenizer."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from quintain import ToolCall, ToolSpec, Turn
from quintain.errors import UsageError

from .values import fault_of, quoted

CALL_LIMIT = 256
"""Calls that one turn may have; what follows is one fault, so that a loop of the policy starts no
thousand tools.
"""


NAME_LIMIT = 128
"""Characters of the name or the id of a call."""


IDS = ("id", "tool_call_id")
"""Keys of a call that may hold its id."""


@dataclass(frozen=True, kw_only=True)
class TextFormat(ABC):
    """Write tool calls as text in one way, and read them back.

    Attributes:
        thought_open: the template's generation prompt already opened the thought, so that the
            sampled text only closes it.
    """

    thought_open: bool = False

    MARKS: ClassVar[tuple[tuple[str, ...], ...]] = ()
    """Each is a group of texts; a chat template that contains all texts of a group writes this
    format.
    """

    THOUGHT: ClassVar[tuple[str, str]] = ("<think>", "</think>")

    ID: ClassVar[re.Pattern[str]] = re.compile(r"[A-Za-z0-9]{9}")
    """Ids of calls that the chat template gets as they are; Mistral's demands nine letters or
    digits.
    """

    CHANNELS: ClassVar[bool] = False
    """Whether text without tools has a structure to read, too."""

    @classmethod
    def evidence(cls, template: str) -> int:
        """Return the length of the longest group of marks that *template* contains; 0 if it has
        none.
        """
        return max(
            (sum(map(len, g)) for g in cls.MARKS if all(m in template for m in g)), default=0
        )

    def parse(self, text: str, *, tools: Sequence[ToolSpec] = (), **turn_fields: Any) -> Turn:
        """Split a sampled *text* into thought, reply and, if *tools* are offered, calls. Raises
        nothing.

        A call that cannot be read, or whose arguments do not fit the schema of its tool, has an
        ``error`` with the reason. Calls within a thought are text. *turn_fields* are the other
        fields of the turn; with ``finish="length"`` a call without its end was cut off. Time is
        linear in the length of *text*.
        """
        return self.read(text, tools=tools, **turn_fields)[0]

    def read(
        self, text: str, *, tools: Sequence[ToolSpec] = (), **turn_fields: Any
    ) -> tuple[Turn, list[str]]:
        """Return what `parse` returns, and the text of each call."""
        reasoning, rest = self._thought(text)
        found = Found(rest, tools, cut=turn_fields.get("finish") == "length")
        if tools or self.CHANNELS:
            self._scan(rest, found)
        reasoning = "\n\n".join(filter(None, [reasoning, *found.thoughts]))
        turn = Turn(
            text=text,
            reply=found.reply().strip(),
            reasoning=reasoning,
            calls=tuple(found.calls),
            **turn_fields,
        )
        return turn, [rest[start:end] for start, end in found.places]

    def render_calls(self, calls: Sequence[ToolCall], tools: Sequence[ToolSpec] = ()) -> str:
        """Write *calls* as the model does, so that `parse` with *tools* gives them back.

        Raises:
            UsageError: the format cannot express a call, such as text that contains its closing
                tag.
        """
        if not calls:
            return ""
        specs = tools or tuple(ToolSpec(name=c.name) for c in calls)
        text = self._write(calls, specs)
        back = self.parse(
            text if not self.thought_open else f"{self.THOUGHT[1]}{text}", tools=specs
        )
        for i, call in enumerate(calls):
            read = back.calls[i] if i < len(back.calls) else None
            if (
                read is None
                or read.error
                or (read.name, read.arguments) != (call.name, call.arguments)
            ):
                reason = f": {read.error}" if read is not None and read.error else ""
                raise UsageError(
                    f"{type(self).__name__} cannot express call {i + 1} to {call.name!r}{reason}"
                )
        if len(back.calls) > len(calls) or back.reply:
            raise UsageError(
                f"{type(self).__name__} cannot express these calls: they contain its own tags"
            )
        return text

    def render_result(self, call: ToolCall, result: str) -> str:
        """Return the *result* of *call* as the model reads it, for templates without a tool
        role.
        """
        return f"<tool_response>\n{result}\n</tool_response>"

    @abstractmethod
    def describe(self, tools: Sequence[ToolSpec]) -> str:
        """Return the part of a system message that lists *tools* and says how to call one; empty
        for none.
        """

    @abstractmethod
    def _write(self, calls: Sequence[ToolCall], tools: Sequence[ToolSpec]) -> str: ...

    @abstractmethod
    def _scan(self, text: str, found: Found) -> None:
        """Add to *found* what *text* has, with the spans that are no part of the reply."""

    def _thought(self, text: str) -> tuple[str, str]:
        """Return the thought at the start of *text*, and the rest; an unclosed thought is text, for
        rewards must see it.
        """
        opening, closing = self.THOUGHT
        start = len(text) - len(text.lstrip())
        if text.startswith(opening, start):
            start += len(opening)
        elif not self.thought_open:
            return "", text
        end = text.find(closing, start)
        return ("", text) if end < 0 else (text[start:end].strip(), text[end + len(closing) :])


class Found:
    """Calls of a text in their order, and the spans that they take."""

    def __init__(self, text: str, tools: Sequence[ToolSpec], *, cut: bool = False) -> None:
        self.calls: list[ToolCall] = []
        self.thoughts: list[str] = []
        self.specs: Mapping[str, ToolSpec] = {t.name: t for t in tools}
        self.places: list[tuple[int, int]] = []  # of each call
        self.cut = cut
        self._text, self._spans = text, list[tuple[int, int]]()

    @property
    def full(self) -> bool:
        """Whether the turn has as many calls as it may have; the next one to be added is a
        fault.
        """
        return len(self.calls) > CALL_LIMIT

    def call(self, name: Any, arguments: Any, span: tuple[int, int], id_: Any = None) -> None:
        """Add a call that was read; its name and arguments are checked here."""
        if not isinstance(name, str) or not 0 < len(name) <= NAME_LIMIT or not _clean(name):
            return self.fault(
                f"expected the name of a tool, of at most {NAME_LIMIT} characters", span
            )
        error = fault_of(arguments, self.specs.get(name))
        return self._add(name, {} if error else arguments, error, span, id_)

    def fault(self, reason: str, span: tuple[int, int], name: str = "") -> None:
        """Add a call that cannot be read."""
        self._add(name if _clean(name[:NAME_LIMIT]) else "", {}, reason, span, None)

    def hide(self, span: tuple[int, int]) -> None:
        """Leave *span* out of the reply."""
        self._spans.append(span)

    def reply(self) -> str:
        parts, position = [], 0
        for start, end in sorted(self._spans):
            parts.append(self._text[position:start])
            position = max(position, end)
        return "".join([*parts, self._text[position:]])

    def _add(self, name: str, arguments: Any, error: str, span: tuple[int, int], id_: Any) -> None:
        self.hide(span)
        if self.full:
            return
        if len(self.calls) == CALL_LIMIT:
            name, arguments, error, id_ = "", {}, f"more than {CALL_LIMIT} calls in one turn", None
            self.hide((span[0], len(self._text)))
        valid_id = (
            id_ if isinstance(id_, str) and 0 < len(id_) <= NAME_LIMIT and _clean(id_) else ""
        )
        # nine letters and digits, as Mistral's template demands
        id_ = valid_id or f"call{len(self.calls):05d}"
        self.calls.append(
            ToolCall(name=name[:NAME_LIMIT], arguments=arguments, id=id_, error=error)
        )
        self.places.append(span)


def _clean(text: str) -> bool:
    """Return whether *text* can be encoded: it has no lone surrogate."""
    return not any("\ud800" <= c <= "\udfff" for c in text)


def to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def listed(tools: Sequence[ToolSpec]) -> str:
    """Return one line of JSON per tool."""
    return "\n".join(to_json(tool.to_json()) for tool in tools)


def named_call(
    data: Any, found: Found, span: tuple[int, int], *keys: str, name: str = "name"
) -> None:
    """Add the call of an object such as ``{"name": ..., "arguments": {...}}``; *keys* may hold the
    arguments, and *name* has the name of the tool.
    """
    if not isinstance(data, dict) or not isinstance(data.get(name), str):
        return found.fault(f'expected {{"{name}": ..., "{keys[0]}": {{...}}}}', span)
    extra = next((k for k in data if k not in (name, *IDS, "type", *keys)), None)
    if extra is not None:
        return found.fault(
            f"unknown key {quoted(extra)} beside {name} and {keys[0]}", span, data[name]
        )
    arguments = next((data[k] for k in keys if k in data), None)
    id_ = next((data[k] for k in IDS if k in data), None)
    return found.call(data[name], {} if arguments is None else arguments, span, id_)


def end_of_body(edge: re.Pattern[str], text: str, position: int, closing: str) -> int:
    """Return the index where a body ends: after its closing tag, or before the next opening one, or
    at the end of the text.
    """
    match = edge.search(text, position)
    if match is None:
        return len(text)
    return match.end() if match[0] == closing else match.start()
