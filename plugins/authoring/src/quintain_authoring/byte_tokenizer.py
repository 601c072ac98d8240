"""A tokenizer over bytes that needs no library, so that authors test exact tokens in a bare
install.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from quintain import Message, ToolCall, ToolSpec, Turn
from quintain.interfaces import Offsets, Renderer
from quintain.models import parse
from quintain.types import Finish

__all__ = ["ByteTokenizer", "render_calls"]


class ByteTokenizer:
    """Bytes as ids (0-255) and four special tokens."""

    name = "bytes"
    appends = False  # the template rewrites nothing
    SPECIAL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|pad|>")

    def __init__(self) -> None:
        self._special = {text: 256 + i for i, text in enumerate(self.SPECIAL)}
        self.stop_ids: tuple[int, ...] = (
            self._special["<|im_end|>"],
            self._special["<|endoftext|>"],
        )
        self.stops: tuple[str, ...] = ()
        self.vocab_size = 256 + len(self.SPECIAL)

    def encode(self, text: str) -> list[int]:
        return self.encode_with_offsets(text)[0]

    def encode_with_offsets(self, text: str) -> tuple[list[int], Offsets]:
        ids: list[int] = []
        spans: Offsets = []
        position = 0
        while position < len(text):
            special = next((s for s in self.SPECIAL if text.startswith(s, position)), None)
            if special is not None:
                ids.append(self._special[special])
                spans.append((position, position + len(special)))
                position += len(special)
                continue
            for byte in text[position].encode("utf-8", "surrogatepass"):
                ids.append(byte)
                spans.append((position, position + 1))
            position += 1
        return ids, spans

    def decode(self, ids: Sequence[int], *, special: bool = True) -> str:
        out: list[str] = []
        raw = bytearray()
        for i in ids:
            if i < 256:
                raw.append(i)
                continue
            out.append(raw.decode("utf-8", "replace"))
            raw.clear()
            if special:
                out.append(self.SPECIAL[i - 256])
        out.append(raw.decode("utf-8", "replace"))
        return "".join(out)

    def render(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), *, prompt: bool = True
    ) -> str:
        parts: list[str] = []
        head = render_tools(tools)
        system = next((m.content for m in messages if m.role == "system"), "")
        if head or system:
            parts.append(f"<|im_start|>system\n{system}{head}<|im_end|>\n")
        for m in messages:
            if m.role == "system":
                continue
            body = (
                m.content if m.role != "tool" else f"<tool_response>\n{m.content}\n</tool_response>"
            )
            role = "user" if m.role == "tool" else m.role
            parts.append(f"<|im_start|>{role}\n{body}{render_calls(m.calls)}<|im_end|>\n")
        return "".join(parts) + ("<|im_start|>assistant\n" if prompt else "")

    def continuation(
        self, messages: Sequence[Message], turn: int, tools: Sequence[ToolSpec], last: int
    ) -> None:
        """Return nothing: all is rendered."""

    def renderer(self) -> Renderer:
        return lambda messages, tools, known: self.render(messages, tools)

    def parse(self, text: str, tools: Sequence[ToolSpec] = (), *, finish: Finish = "stop") -> Turn:
        return parse(text, tools=tools, finish=finish)


def render_calls(calls: Sequence[ToolCall]) -> str:
    """Render calls as the model writes them."""
    return "".join(
        "\n<tool_call>\n"
        + json.dumps({"name": c.name, "arguments": dict(c.arguments)})
        + "\n</tool_call>"
        for c in calls
    )


def render_tools(tools: Sequence[ToolSpec]) -> str:
    """Return the part of the system message that lists *tools*; empty for none."""
    if not tools:
        return ""
    specs = "\n".join(json.dumps(t.to_json()) for t in tools)
    return (
        "\n\n# Tools\n\nYou may call these functions:\n<tools>\n"
        + specs
        + "\n</tools>\n\nTo call one, write\n<tool_call>\n"
        '{"name": <function name>, "arguments": <object of arguments>}\n</tool_call>'
    )
