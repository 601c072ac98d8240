"""Where the tokens of a rendered text come from: the content of a message, or the template."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ...interfaces.tokenizer import LITERAL, ChatTokenizer
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
    text = text.replace(LITERAL, "")
    # Half-open spans of characters, in order and without overlap, with the source of each.
    regions: list[tuple[int, int, TokenSource]] = []
    offset = 0
    for m in messages:
        start, end = _find(text, offset, (m.content, m.content.strip()))
        # some templates write results as JSON, and replies without thoughts and calls
        if start < 0:
            inside_json = json.dumps(m.content, ensure_ascii=False)[1:-1]
            start, end = _find(text, offset, (inside_json, tokenizer.parse(m.content).reply))
        if start >= 0:
            offset = end
            regions.append((start, end, _SOURCES[m.role]))
    sources = bytearray(len(ids))  # of the template
    k = 0
    for i, (start, end) in enumerate(spans):
        # A token that two contents share is the first one's.
        while k < len(regions) and regions[k][1] <= start:
            k += 1
        if k == len(regions):
            break
        if end > regions[k][0]:
            sources[i] = regions[k][2]
    return ids, sources


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
