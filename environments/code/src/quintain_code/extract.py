"""One rule for the code of a reply.

1. Reasoning, which is left out, is text between think tags at the very start, as for
   `quintain.Rollout.reply`. After an unclosed ``<think>`` at the very start there is no code. Where
   a chat template opens the tag itself, a reply begins within reasoning: blocks before the last
   ``</think>`` that is outside of fences do not count. In a fence, and in a reply without fences,
   tags are ordinary text.
2. A fence is a line of at most three spaces, then at least three backticks or tildes, then the info
   string. The block ends at the next line with only a fence of the same character, at least as
   long. Lines end with ``\\n``, ``\\r\\n`` or ``\\r``; other Unicode line ends and look-alike
   characters are ordinary text.
3. The code is the last block whose tag (the first word of the info string) names the language;
   without such a block, the last one without a tag. Blocks of other languages never count, and
   blocks are never joined.
4. A block that is not closed is no block, and there is no code if the last fence is not closed.
5. A reply without any fence is code as a whole, but for its reasoning.
6. A reply of more than a million characters, blank code, and text that UTF-8 cannot encode are no
  code.

A task of several files takes, for each file, the last block of the language whose info string has
the file's name as a further word: ````` ```python shapes.py `````. A file without a block leaves
the reply without code.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

LONGEST = 1_000_000
"""Characters of a reply that is looked at at all."""

TAGS = {
    "python": ("python", "py", "python3"),
    "c": ("c",),
    "cpp": ("cpp", "c++", "cc"),
    "java": ("java",),
    "javascript": ("javascript", "js", "node"),
    "bash": ("bash", "sh", "shell"),
    "perl": ("perl",),
}
"""Tags of a language; one that is not listed has its own name as tag."""

_THOUGHT = re.compile(r"\s*<think>(?:.*?</think>)?", re.DOTALL)
_LINES = re.compile(r"\r\n|\r|\n")
_OPEN = re.compile(r" {0,3}(`{3,}(?=[^`]*$)|~{3,})(.*)")


@dataclass(frozen=True)
class Extraction:
    """The code of a reply by file name; empty where there is none, and then *reason* says why."""

    files: dict[str, str] = field(default_factory=dict)
    reason: str = ""


@dataclass(frozen=True)
class Block:
    """One closed fenced block."""

    words: tuple[str, ...]
    text: str


def extract(
    reply: str, *, language: str = "python", files: Sequence[str] = ("solution.py",)
) -> Extraction:
    """Return the code of *reply* for *files*, by the rule of this module."""
    if len(reply) > LONGEST:
        return Extraction(reason=f"the reply has more than {LONGEST} characters")
    thought = _THOUGHT.match(reply)
    if thought and not thought[0].endswith("</think>"):
        return Extraction(reason="the reasoning is not closed")
    text = reply[thought.end() :] if thought else reply
    blocks, fences, closed = fenced(text)
    if not closed:
        return Extraction(reason="the last fence is not closed")
    sources: dict[str, str] = {}
    for name in files:
        code = _chosen(blocks, language, name if len(files) > 1 else "")
        if not fences and len(files) == 1:
            code = text
        if code is None or not code.strip():
            return Extraction(
                reason=f"there is no block of {language}"
                + (f" for {name}" if len(files) > 1 else "")
            )
        sources[name] = code
    try:
        "".join(sources.values()).encode()
    except UnicodeEncodeError:
        return Extraction(reason="the code is not valid Unicode")
    return Extraction(files=sources)


def fenced(text: str) -> tuple[list[Block], int, bool]:
    """Return the closed blocks after the reasoning in order, the number of fences, and whether
    every fence is closed.
    """
    blocks: list[Block] = []
    fence, words, lines, fences = "", (), list[str](), 0
    for line in _LINES.split(text):
        if not fence and "</think>" in line:
            line = line.rpartition("</think>")[2]
            blocks.clear()
        opened = _OPEN.fullmatch(line)
        if not fence:
            if opened:
                fence, words, lines, fences = opened[1], tuple(opened[2].split()), [], fences + 1
        elif opened and opened[1].startswith(fence) and not opened[2].strip(" \t"):
            blocks.append(Block(words, "".join(part + "\n" for part in lines)))
            fence = ""
        else:
            lines.append(line)
    return blocks, fences, not fence


def _chosen(blocks: Sequence[Block], language: str, name: str) -> str | None:
    tags = TAGS.get(language, (language,))
    tagged = [
        b
        for b in blocks
        if b.words and b.words[0].lower() in tags and (not name or name in b.words[1:])
    ]
    if not tagged and not name:
        tagged = [b for b in blocks if not b.words]
    return tagged[-1].text if tagged else None
