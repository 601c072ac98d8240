"""Text of a tool for a model without a chat template, which tells speakers apart by their names
alone.

A tokenizer keeps control tokens that a tool spells as text. What it cannot keep apart is a line
``User:`` in a result from a line with which a turn begins. With a fence such a name gets a space
before its colon, and the same space leaves the arguments of calls again, so that a policy copies
what it read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

TAG = "untrusted"
_SPEAKERS = "System|User|Assistant|Tool|Human|AI|SYSTEM|USER|ASSISTANT|TOOL|HUMAN"
_SPEAKER = re.compile(
    rf"^([ \t]*(?:#+ *(?:{_SPEAKERS}|Instruction|Response|Input)|{_SPEAKERS}))( *)(?=:)",
    re.MULTILINE,
)
"""What begins a turn in transcripts of base models, and the spaces before its colon."""
_MARK = re.compile(rf"(<)( *)(?=(?:/\s*)?(?i:{TAG}))")
"""What begins or ends a fence, and the spaces behind its bracket."""


def escaped(text: str) -> str:
    """Return *text* with one more space in each name that begins a turn and each mark of a fence.

    `unescaped` takes it out again, whatever the text.
    """
    return _MARK.sub(r"\1\2 ", _SPEAKER.sub(r"\1\2 ", text))


def unescaped(value: Any) -> Any:
    """Return *value*, plain data, whose texts are as they were before `escaped`. Names without a
    space stay as they are.
    """
    if isinstance(value, str):
        return _MARK.sub(_one_less, _SPEAKER.sub(_one_less, value))
    if isinstance(value, Mapping):
        return {unescaped(key): unescaped(item) for key, item in value.items()}
    return [unescaped(item) for item in value] if isinstance(value, (list, tuple)) else value


def _one_less(match: re.Match[str]) -> str:
    return match[1] + match[2][1:]


def fenced(text: str, tool: str) -> str:
    """Return a text that is `escaped`, marked as data that came from *tool*."""
    return f'<{TAG} tool="{tool}">\n{text}\n</{TAG}>'


def shortened(text: str, limit: int) -> str:
    """Return at most *limit* characters of *text*, and how many it has if it is longer."""
    return text if len(text) <= limit else f"{text[:limit]} ... ({len(text):,} characters in all)"
