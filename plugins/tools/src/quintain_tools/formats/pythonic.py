"""Python calls with literal arguments, of Llama 3.2 and Llama 4."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from quintain import ToolCall, ToolSpec

from .text_format import Found, listed, to_json
from .tool_format import ToolFormat
from .values import MAX_DEPTH, whole_json

STRING = (
    r'"""(?:[^"\\]++|\\.|"(?!""))*+"""'
    r"|'''(?:[^'\\]++|\\.|'(?!''))*+'''"
    r'|"(?!"")[^"\\\n]*+(?:\\.[^"\\\n]*+)*+"'
    r"|'(?!'')[^'\\\n]*+(?:\\.[^'\\\n]*+)*+'"
    r"|\"\"|''"
)
PIECE = re.compile(
    rf"(?P<string>{STRING})|(?P<call>(?<![\w.])[^\W\d][\w.]*+\s*\()|(?P<key>(?<![\w.])[^\W\d]\w*+\s*=(?!=))"
    rf"|(?P<name>(?<![\w.])[^\W\d]\w*)|(?P<comma>,\s*+(?=[\])}}]))|(?P<open>[\[{{])|(?P<close>[\]}}])|(?P<end>\))"
    r"|(?P<other>[\"'(=#\\;@<>])",
    re.DOTALL,
)
"""What differs from JSON, and brackets. Numbers, blanks, colons and commas are the same in both
languages.
"""

STRINGS = re.compile(STRING, re.DOTALL)
AS_JSON = re.compile(
    r'"(?:[^"\\\x00-\x1f]|\\(?:[bfnrt"\\]|u[0-9a-fA-F]{4}))*+"'
    + r"|'(?:[^'\"\\\x00-\x1f]|\\(?:[bfnrt\\]|u[0-9a-fA-F]{4}))*+'"
)
"""Strings whose inside is the same in JSON."""

CONSTANTS = {"True": "true", "False": "false", "None": "null"} | {
    word: word for word in ("true", "false", "null")
}


@dataclass(frozen=True, kw_only=True)
class Pythonic(ToolFormat):
    """A reply that is ``[name(key=value, ...), ...]`` with literals as values; anything else is
    text.

    Nothing is evaluated: the calls are rewritten as JSON, and `ast.literal_eval` reads the strings
    that have escapes. The whole list is one fault if any part of it cannot be read.
    """

    MARKS: ClassVar[tuple[tuple[str, ...], ...]] = (
        ("func_name1(params_name1=",),
        ("<|python_start|>", "func_name"),
        ("<|python_start|>",),
    )
    START, END = "<|python_start|>", "<|python_end|>"
    LOOKS = re.compile(r"\s*\[\s*[^\W\d][\w.]*\s*\(")

    def describe(self, tools: Sequence[ToolSpec]) -> str:
        if not tools:
            return ""
        return (
            f"You may call these functions:\n\n{listed(tools)}\n\nTo call some, answer with "
            f"nothing but a list of "
            'calls with literal arguments:\n[name1(key1=1, key2="text"), name2(key=None)]'
        )

    def render_result(self, call: ToolCall, result: str) -> str:
        return result

    def _write(self, calls: Sequence[ToolCall], tools: Sequence[ToolSpec]) -> str:
        texts = [
            f"{c.name}({', '.join(f'{k}={v!r}' for k, v in c.arguments.items())})" for c in calls
        ]
        return f"[{', '.join(texts)}]"

    def _scan(self, text: str, found: Found) -> None:
        start = len(text) - len(text.lstrip())
        body_start = start + len(self.START) if text.startswith(self.START, start) else start
        if body_start == start and not self.LOOKS.match(text, body_start):
            return
        body = text[body_start:].rstrip().removesuffix(self.END)
        try:
            calls = _read(body)
        except ValueError as e:
            found.fault(str(e), (start, len(text)))
            return
        for call in calls:
            found.call(call["name"], call["arguments"], (start, len(text)))


@dataclass(frozen=True, kw_only=True)
class LFM2(Pythonic):
    """``<|tool_call_start|>[name(key=value), ...]<|tool_call_end|>``, of LFM2, with text before and
    after it.
    """

    MARKS = (
        ("<|tool_call_start|>",),
        ("<|tool_list_start|>",),
        ("List of tools: [", "keep_past_thinking"),
    )
    START, END = "<|tool_call_start|>", "<|tool_call_end|>"

    def describe(self, tools: Sequence[ToolSpec]) -> str:
        """Return what `Pythonic.describe` does, with the marks of a call."""
        form = super().describe(tools)
        return form.replace("\n[name1", f"\n{self.START}[name1") + self.END if form else ""

    def _write(self, calls: Sequence[ToolCall], tools: Sequence[ToolSpec]) -> str:
        return f"{self.START}{super()._write(calls, tools)}{self.END}"

    def _scan(self, text: str, found: Found) -> None:
        end = 0
        while not found.full and (start := text.find(self.START, end)) >= 0:
            body = start + len(self.START)
            close, following = text.find(self.END, body), text.find(self.START, body)
            if close < 0 or -1 < following < close:
                close = end = following if following >= 0 else len(text)
            else:
                end = close + len(self.END)
            self._list(text[body:close].strip(), (start, end), found)

    def _list(self, body: str, span: tuple[int, int], found: Found) -> None:
        try:
            calls = _read(body if body.startswith("[") else f"[{body}]")
        except ValueError as e:
            return found.fault(str(e), span)
        if not calls:
            return found.fault("expected a call, got an empty list", span)
        for call in calls:
            found.call(call["name"], call["arguments"], span)
        return None


def _read(text: str) -> list[dict[str, Any]]:
    """Return the calls of a list.

    Raises:
        ValueError: it is no list of calls with literal arguments by name.
    """
    translated = _Translation(text)
    calls = whole_json(translated.text)
    if not isinstance(calls, list) or len(calls) != translated.calls:
        raise ValueError("expected a list of calls: [name(key=value), ...]")
    return calls


def literal(text: str) -> Any:
    """Return the value of a Python literal of plain data. Nothing is evaluated.

    Raises:
        ValueError: it is none.
    """
    return whole_json(_Translation(text).text)


class _Translation:
    """A list of calls as JSON; *calls* counts them."""

    def __init__(self, text: str) -> None:
        self.calls, self._depth, self._inside = 0, 0, False
        self._escaped = self._literals(
            [s for s in STRINGS.findall(text) if "\\" in s and not AS_JSON.fullmatch(s)]
        )
        self._source = text
        self.text = PIECE.sub(self._piece, text)

    @staticmethod
    def _literals(strings: Sequence[str]) -> Iterator[str]:
        """Yield the values of *strings*, all read at once, since each call of `literal_eval` costs
        some microseconds.
        """
        if not strings:
            return iter(())
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # an unknown escape keeps its backslash
                values: list[str] = ast.literal_eval(f"[{','.join(strings)}]")
        except (SyntaxError, ValueError, MemoryError, RecursionError) as e:
            raise ValueError(f"not Python: {e.args[0] if e.args else type(e).__name__}") from None
        return iter(values)

    def _piece(self, match: re.Match[str]) -> str:
        kind, piece = match.lastgroup, match[0]
        if kind == "string":
            return self._string(match)
        if kind in ("open", "close"):
            self._depth += 1 if kind == "open" else -1
            if self._depth > MAX_DEPTH:
                raise ValueError(f"nested more than {MAX_DEPTH} levels deep")
            return piece
        if kind == "call":
            if self._inside or self._depth != 1:
                raise ValueError("arguments must be literals, not calls")
            self._inside, self.calls = True, self.calls + 1
            return f'{{"name": {to_json(piece[:-1].strip())}, "arguments": {{'
        if kind == "end" and self._inside and self._depth == 1:
            self._inside = False
            return "}}"
        if kind == "key" and self._inside and self._depth == 1:
            return f"{to_json(piece[:-1].strip())}: "
        if kind == "comma":
            return ""
        if kind == "name" and piece in CONSTANTS:
            return CONSTANTS[piece]
        raise ValueError(
            f"arguments must be literals given by name: {piece[:40]!r} at character {match.start()}"
        )

    def _string(self, match: re.Match[str]) -> str:
        piece = match[0]
        if (
            self._inside
            and self._depth == 1
            and self._source[match.end() : match.end() + 9].lstrip()[:1] == ":"
        ):
            raise ValueError("arguments must be given by name: key=value")
        if AS_JSON.fullmatch(piece):
            return f'"{piece[1:-1]}"'
        if "\\" in piece:
            return to_json(next(self._escaped))
        width = 3 if piece[:3] in ('"""', "'''") and len(piece) > 5 else 1
        return to_json(piece[width:-width])
