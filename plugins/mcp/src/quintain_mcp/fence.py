"""Text from a tool as data: it can neither close its fence nor contain control tokens of a chat
template.

A tokenizer turns special tokens that are spelled in a text into their ids, so that a search hit
with ``<|im_end|>`` would end the tool's message. The spellings of all models cannot be listed;
their shapes can. Each shape gets a space after its first character, which a model reads as before
and a tokenizer does not.
"""

from __future__ import annotations

import re

TAG = "untrusted"
LONGEST = 80
"""Characters of a special token at most."""
# normalisers make the wide forms the plain ones
_OPEN, _CLOSE, _BAR = "[<\uff1c]", "[>\uff1e]", "[|\uff5c]"
_LEFT, _RIGHT = r"[\[\uff3b]", r"[\]\uff3d]"
_SHAPES = re.compile(
    "|".join(
        [
            # <s>, </think>, <tool_call>, <function=name>, <|im_end|>, <turn|>, <seed:bos>, <<SYS>>
            rf"{_OPEN}(?=[^\s<>\uff1c\uff1e]{{1,{LONGEST}}}{_CLOSE})",
            rf"{_OPEN}(?={_BAR})",
            rf"{_OPEN}(?=(?:/\s*)?(?i:{TAG}))",
            # [INST], [/INST], [TOOL_CALLS], [gMASK], [|user|], [e~[, ]~b]
            rf"{_LEFT}(?=/?[a-z]?[A-Z][A-Z_]{{1,40}}{_RIGHT})",
            rf"{_LEFT}(?={_BAR})",
            r"\[(?=e~\[)",
            r"\](?=~)",
            # >>TITLE<<, |||EMAIL_ADDRESS|||
            r">(?=>[A-Z]+<<)",
            r"\|(?=\|\|[A-Z_]+\|\|\|)",
        ]
    )
)
_SPEAKERS = "System|User|Assistant|Tool|Human|AI|SYSTEM|USER|ASSISTANT|TOOL|HUMAN"
_SPEAKER = re.compile(
    rf"^([ \t]*(?:#+ *(?:{_SPEAKERS}|Instruction|Response|Input)|{_SPEAKERS}))(?=:)", re.MULTILINE
)
"""What begins a turn in the templates of base models."""
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
"""Control, format and tag characters, which a normaliser may drop and a person does not see;
joiners stay.
"""


def neutral(text: str) -> str:
    """Return *text* without control tokens: visible characters stay in their order, some get a
    space between them.
    """
    text = _INVISIBLE.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
    return _SPEAKER.sub(r"\1 ", _SHAPES.sub(lambda m: f"{m[0]} ", text))


def fenced(text: str, tool: str) -> str:
    """Return a `neutral` *text*, marked as data that came from *tool*."""
    return f'<{TAG} tool="{tool}">\n{text}\n</{TAG}>'


def shortened(text: str, limit: int) -> str:
    """Return at most *limit* characters of *text*, and how many it has if it is longer."""
    return text if len(text) <= limit else f"{text[:limit]} ... ({len(text):,} characters in all)"
