"""A tokenizer with several tokenisations of one text, so that encoding a reply again is seen."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from random import Random

from quintain import Message, ToolSpec
from quintain.interfaces import LITERAL, Offsets
from quintain_authoring.byte_tokenizer import ByteTokenizer

__all__ = ["MARKERS", "WORDS", "MergingTokenizer"]

WORDS: tuple[bytes, ...] = tuple(
    word.encode() if isinstance(word, str) else word
    for word in (
        " the",
        " a",
        " is",
        "in",
        "er",
        "ll",
        "ea",
        "on",
        " t",
        "ing",
        "and",
        "answer",
        "part",
        "reply",
        "add",
        "\n\n",
        '{"',
        '": ',
        '", "',
        '"}',
        "}}",
        "name",
        "arguments",
        "é",
        b"\xf0\x9f",  # the first half of most emoji
        b"\x98\x80",
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "<tool_response>",
        "</tool_response>",
        "zz",  # in no script: trainers may take the last id for a place to fill
    )
)
"""The ids after the special tokens, in this order."""
MARKERS = tuple(word for word in WORDS if word[:1] == b"<" and word[-1:] == b">")
"""Words that models write as one token always."""
_THOUGHT = re.compile(r"\A<think>.*?</think>", re.DOTALL)


class MergingTokenizer(ByteTokenizer):
    """Bytes, special tokens and `WORDS`. `encode` takes the longest word at each place, so that a
    policy which writes a word in smaller parts is not what its text encodes to.

    Ids from ``vocab_size`` on, which the rows of a padded embedding have, decode to nothing.

    Args:
        strips_thoughts: the template leaves thoughts before the last message of the user out, as
            that of Qwen3 does, so that it rewrites what was sampled.
    """

    name = "merging-bytes"

    def __init__(self, *, strips_thoughts: bool = False) -> None:
        super().__init__()
        self.strips_thoughts = strips_thoughts
        self._first = self.vocab_size
        self._words = {word: self._first + i for i, word in enumerate(WORDS)}
        self._longest = max(map(len, WORDS))
        self.vocab_size += len(WORDS)

    def render(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), *, prompt: bool = True
    ) -> str:
        render = super().render
        last = max((i for i, m in enumerate(messages) if m.role == "user"), default=-1)
        shown = [
            self._assistant(m, stripped=self.strips_thoughts and i < last)
            if m.role == "assistant"
            else replace(m, content=self._as_text(m.content))
            for i, m in enumerate(messages)
        ]
        head = [i for i, m in enumerate(shown) if m.role == "system"][:1]
        # a later system message stands where it came
        parts = [
            render([m], prompt=False)
            for i, m in enumerate(shown)
            if i not in head and (m.role != "system" or m.content)
        ]
        first = render([shown[i] for i in head], tools, prompt=False)
        return first + "".join(parts) + ("<|im_start|>assistant\n" if prompt else "")

    def encode_with_offsets(self, text: str) -> tuple[list[int], Offsets]:
        small, places = self._small(text)
        ids: list[int] = []
        spans: Offsets = []
        at = 0
        while at < len(small):
            word, length = self._word(small, at)
            ids.append(word)
            spans.append((places[at][0], places[at + length - 1][1]))
            at += length
        return ids, spans

    def decode(self, ids: Sequence[int], *, special: bool = True) -> str:
        small: list[int] = []
        for i in ids:
            if i < self._first:
                small.append(i)
            elif i < self.vocab_size:
                small.extend(WORDS[i - self._first])
        return super().decode(small, special=special)

    def bytes_of(self, token: int) -> bytes:
        """Return what a token adds to the text."""
        if token < 256:
            return bytes([token])
        return WORDS[token - self._first] if self._first <= token < self.vocab_size else b""

    def written(self, text: str, rng: Random) -> list[int]:
        """Return *text* as a policy may write it: `MARKERS` whole, other words whole or, one time in
        two, in bytes. Special tokens that the text spells are spelt in bytes.
        """
        small, at = list(text.encode("utf-8", "surrogatepass")), 0
        ids: list[int] = []
        while at < len(small):
            word, length = self._word(small, at)
            marker = bytes(small[at : at + length]) in MARKERS
            if length > 1 and (marker or rng.random() < 0.5):
                ids.append(word)
                at += length
            else:
                ids.append(small[at])
                at += 1
        return ids

    def _assistant(self, message: Message, *, stripped: bool) -> Message:
        """Return a turn of the assistant as the template writes it: with its thought, or not."""
        if stripped:
            return replace(message, content=_THOUGHT.sub("", message.content), reasoning="")
        thought = f"<think>{message.reasoning}</think>" if message.reasoning else ""
        return replace(message, content=thought + message.content, reasoning="")

    def _as_text(self, content: str) -> str:
        """Return *content* with a mark inside of every special token that it spells."""
        for special in self.SPECIAL:
            content = content.replace(special, f"{special[:2]}{LITERAL}{special[2:]}")
        return content

    def _small(self, text: str) -> tuple[list[int], Offsets]:
        """Return *text* in bytes and special tokens, without marks."""
        small, places = super().encode_with_offsets(text)
        if LITERAL not in text:
            return small, places
        marks = 0
        kept: list[tuple[int, tuple[int, int]]] = []
        mark = LITERAL.encode()
        at = 0
        while at < len(small):
            if bytes(i for i in small[at : at + len(mark)] if i < 256) == mark:
                marks += 1
                at += len(mark)
                continue
            start, end = places[at]
            kept.append((small[at], (start - marks, end - marks)))
            at += 1
        return [i for i, _ in kept], [place for _, place in kept]

    def _word(self, small: Sequence[int], at: int) -> tuple[int, int]:
        """Return the longest word at a place, and its length in bytes."""
        for length in range(min(self._longest, len(small) - at), 1, -1):
            part = small[at : at + length]
            if max(part) < 256 and (word := self._words.get(bytes(part))) is not None:
                return word, length
        return small[at], 1
