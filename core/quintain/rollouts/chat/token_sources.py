"""Where the tokens of a rendered text come from: the content of a message, or the template."""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import islice
from operator import le

from ...interfaces.tokenizer import LITERAL, ChatTokenizer, Offsets
from ...types.task import Message
from ...types.transcript import TokenSource

_SOURCES = {
    "system": TokenSource.PROMPT,
    "user": TokenSource.PROMPT,
    "tool": TokenSource.TOOL,
    "assistant": TokenSource.COPY,
}


def encoded_with_sources(
    tokenizer: ChatTokenizer, text: str, messages: Sequence[Message]
) -> tuple[list[int], bytearray]:
    """Return the ids of *text*, and the source of each: that of the message whose content it
    touches, or the template.
    """
    ids, spans = tokenizer.encode_with_offsets(text)
    regions: list[tuple[int, int, TokenSource]] = []
    text, offset = text.replace(LITERAL, ""), 0
    for m in messages:
        start, end = _find(text, offset, (m.content, m.content.strip()))
        # some templates write results as JSON, and replies without thoughts and calls
        if start < 0:
            inside_json = json.dumps(m.content, ensure_ascii=False)[1:-1]
            start, end = _find(text, offset, (inside_json, tokenizer.parse(m.content).reply))
        if start >= 0:
            offset = end
            regions.append((start, end, _SOURCES[m.role]))
    return ids, _sources(spans, regions)


def _sources(spans: Offsets, regions: Sequence[tuple[int, int, TokenSource]]) -> bytearray:
    """Return the source of each token: that of the first of *regions* that its span touches, or the
    template.

    Args:
        regions: half-open spans of characters in order, without overlap.
    """
    starts, ends = [start for start, _ in spans], [end for _, end in spans]
    sources = bytearray(len(spans))  # of the template
    if _ordered(starts) and _ordered(ends):
        for start, end, source in reversed(regions):
            first, after = bisect_right(ends, start), bisect_left(starts, end)
            sources[first:after] = bytes([source]) * max(0, after - first)
        return sources
    k = 0
    for i, (start, end) in enumerate(spans):
        while k < len(regions) and regions[k][1] <= start:
            k += 1
        if k < len(regions) and end > regions[k][0]:
            sources[i] = regions[k][2]
    return sources


def _ordered(numbers: Sequence[int]) -> bool:
    return all(map(le, numbers, islice(numbers, 1, None)))


def _find(text: str, offset: int, contents: Sequence[str]) -> tuple[int, int]:
    """Return the span of the first of *contents* that occurs in *text* from *offset*; (-1, -1)
    if none does.
    """
    for content in filter(None, contents):
        # a short content such as "a" also occurs inside the template's words
        for lead in ("\n", " ", ""):
            start = text.find(lead + content, offset)
            if start >= 0:
                start += len(lead)
                return start, start + len(content)
    return -1, -1
