"""The channels of gpt-oss."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quintain import ToolCall, ToolSpec

from .text_format import Found, to_json
from .tool_format import ToolFormat
from .values import read_json, types_of


@dataclass(frozen=True, kw_only=True)
class Harmony(ToolFormat):
    """Messages with a header: thoughts in ``analysis``, calls to functions in ``commentary``, the
    reply in ``final``.

    A sampled text begins after ``<|start|>assistant``. The token that ends its last message may be
    absent.
    """

    MARKS = (("<|channel|>", "<|start|>"),)
    CHANNELS = True
    EDGE = re.compile(r"<\|(?:start|end|call|return)\|>")
    MESSAGE = re.compile(r"<\|message\|>|<\|(?:end|call|return)\|>")
    TO = re.compile(r"\bto=([^\s<]{1,128})")
    CHANNEL = re.compile(r"<\|channel\|>\s*(\w{1,32})")
    KINDS = {
        "string": "string",
        "number": "number",
        "integer": "number",
        "boolean": "boolean",
        "null": "null",
    }

    def describe(self, tools: Sequence[ToolSpec]) -> str:
        if not tools:
            return ""
        types = "\n\n".join(self._type(t) for t in tools)
        return (
            f"# Tools\n\n## functions\n\nnamespace functions {{\n\n{types}\n\n}} // namespace "
            f"functions"
        )

    def _type(self, tool: ToolSpec) -> str:
        comment = "".join(f"// {line}\n" for line in tool.description.splitlines())
        properties: Mapping[str, Any] = tool.parameters.get("properties") or {}
        if not properties:
            return f"{comment}type {tool.name} = () => any;"
        required = tool.parameters.get("required") or ()
        lines = []
        for name, schema in properties.items():
            if isinstance(schema, Mapping) and schema.get("description"):
                lines.append(f"// {schema['description']}")
            optional = "" if name in required else "?"
            lines.append(f"{name}{optional}: {self._kind(schema, tool.parameters)},")
        body = "\n".join(lines)
        return f"{comment}type {tool.name} = (_: {{\n{body}\n}}) => any;"

    def _kind(self, schema: Any, root: Mapping[str, Any]) -> str:
        if isinstance(schema, Mapping) and schema.get("enum"):
            return " | ".join(map(json.dumps, schema["enum"]))
        allowed = types_of(schema, root)
        if allowed == {"array"} and isinstance(schema, Mapping):
            return f"{self._kind(schema.get('items') or {}, root)}[]"
        return (
            " | ".join(dict.fromkeys(self.KINDS.get(kind, "any") for kind in sorted(allowed)))
            or "any"
        )

    def render_result(self, call: ToolCall, result: str) -> str:
        return (
            f"<|start|>functions.{call.name} "
            f"to=assistant<|channel|>commentary<|message|>{result}<|end|>"
        )

    def _write(self, calls: Sequence[ToolCall], tools: Sequence[ToolSpec]) -> str:
        head = "<|channel|>commentary to=functions.{} <|constrain|>json<|message|>{}<|call|>"
        return "<|start|>assistant".join(
            head.format(c.name, to_json(dict(c.arguments))) for c in calls
        )

    def _thought(self, text: str) -> tuple[str, str]:
        return "", text

    def _scan(self, text: str, found: Found) -> None:
        position = 0
        while position < len(text) and not found.full:
            start = position
            message = self.MESSAGE.search(text, position)
            if message is None or message[0] != "<|message|>":
                return  # no header: the rest is text
            header, body = text[position : message.start()], message.end()
            to, channel = self.TO.search(header), self.CHANNEL.search(header)
            if to and to[1] != "assistant" and found.specs:
                position = self._call(text, (start, body), to[1].removeprefix("functions."), found)
            else:
                edge = self.EDGE.search(text, body)
                end, position = edge.span() if edge else (len(text), len(text))
                if edge and edge[0] == "<|start|>":
                    position = edge.start()
                if channel and channel[1] == "analysis":
                    found.thoughts.append(text[body:end].strip())
                    found.hide((start, position))
                else:
                    found.hide((start, body))
                    found.hide((end, position))

    def _call(self, text: str, head: tuple[int, int], name: str, found: Found) -> int:
        start, body = head
        try:
            data, end = read_json(text, body)
        except ValueError as e:
            edge = self.EDGE.search(text, body)
            end = edge.end() if edge else len(text)
            found.fault(str(e), (start, end), name)
            return end
        edge = self.EDGE.search(text, end)
        position = (
            len(text) if edge is None else edge.start() if edge[0] == "<|start|>" else edge.end()
        )
        if text[end : edge.start() if edge else position].strip():
            found.fault("not JSON: text follows the object", (start, position), name)
        else:
            found.call(name, data, (start, position))
        return position
