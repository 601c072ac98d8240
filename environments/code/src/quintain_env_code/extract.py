"""One rule for the code of a reply.

1. Reasoning, which is left out, is text between think tags at the very start, as for
   `quintain.Rollout.reply`. After an unclosed think tag at the very start there is no code. Where
   a chat template opens the tag itself, a reply begins within reasoning: blocks before the last
   ``</think>`` that is outside of fences do not count. In a fence, and in a reply without fences,
   tags are ordinary text.
2. A fence is a line of at least three backticks or tildes and the info string. White space, marks
   of quotations and lists, and invisible characters may stand before it. Backticks at the end of a
   line of text open a block, too, if the tag of a language follows. The block ends at the next line
   that begins with a fence of the same character, at least as long, and has nothing else, or a
   blank and text behind it. Such a line may be at most three columns deeper than the first one.
3. Lines of a block lose the marks of quotations of its fence, and the indentation of the first of
   them. Lines end with ``\\n``, ``\\r\\n`` or ``\\r``; other Unicode line ends and look-alike
   characters are ordinary text.
4. The code is the last block whose tag names the language; without such a block, the last one
   without a tag. The tag is the first word of the info string: braces, a version, and what follows
   a colon, a comma or an equals sign do not belong to it. Blocks of other languages never count,
   and blocks are never joined.
5. A block that is not closed is no block, and there is no code if the last fence is not closed. Two
   ends are mended: a fence at the end of the last line of the code, and the fence of a reply that
   begins with code, which the prompt has opened.
6. A reply without any fence is code as a whole, but for its reasoning. In a reply that begins with
   code, only fences of at most three spaces count.
7. A reply of more than a million characters, blank code, and text that UTF-8 cannot encode are no
   code.

A task of several files takes, for each file, the last block of the language whose info string has
the file's name as a further word: ````` ```python shapes.py `````. A file without a block leaves
the reply without code.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

from quintain.types import split_thought

LONGEST = 1_000_000
"""Characters of a reply that is looked at at all."""

TAGS = {
    "python": ("python", "py", "python3", "py3", "ipython", "ipython3"),
    "c": ("c",),
    "cpp": ("cpp", "c++", "cc", "cxx"),
    "java": ("java",),
    "javascript": ("javascript", "js", "node", "nodejs"),
    "bash": ("bash", "sh", "shell"),
    "perl": ("perl", "pl"),
}
"""Tags of a language; one that is not listed has its own name as tag."""

_KNOWN = frozenset(chain.from_iterable(TAGS.values()))
_THOUGHT = re.compile(r"\s*(?:<think(?:ing)?>|◁think▷)")
_LINES = re.compile(r"\r\n|\r|\n")
_INVISIBLE = "\ufeff\u200b\u200c\u200d\u200e\u200f\u2060\u00ad"
_BLANK = rf"[ \t\u00a0\u3000{_INVISIBLE}]"
_OPEN = re.compile(
    rf"((?:{_BLANK}|>|(?:[-*+]|\d{{1,9}}[.)])[ \t])*)(`{{3,}}(?=[^`]*$)|~{{3,}})(.*)"
)
_CLOSE = re.compile(rf"((?:{_BLANK}|>)*)(`{{3,}}|~{{3,}})(.*)")
_PLAIN = re.compile(r" {0,3}")
_TAG = re.compile(r"[{.]*([a-z+#]+)[\d.]*(?:$|[:,={}\[(])(.*)", re.IGNORECASE)
"""The tag in the first word of an info string, and what is behind it in this word."""
_CODE = re.compile(
    r"(?:import|package|use|using|my|const|let|var|function|public|class|def|async def)\s"
    r"|from\s+\S+\s+import\b|#include\b|#!|@[a-z]|int main\b|\"\"\"|\'\'\'"
    r"|[a-z_][\w.]*\(|[a-zA-Z_][\w.]*\s*[-+*/]?=[^=]"
)
"""How the first line of code begins, and hardly a sentence."""


@dataclass(frozen=True)
class Extraction:
    """The code of a reply by file name; empty where there is none, and then *reason* says why."""

    files: dict[str, str] = field(default_factory=dict)
    reason: str = ""


@dataclass(frozen=True)
class Block:
    """One closed fenced block: the words of its info string, the tag first, and its code."""

    words: tuple[str, ...]
    text: str


@dataclass
class _Fence:
    """An open fence: what stands before it in its line, its characters, and its lines so far."""

    before: str
    mark: str
    info: str
    lines: list[str] = field(default_factory=list)

    def ended_by(self, line: str) -> bool:
        """Return whether *line* ends the block."""
        found = _CLOSE.fullmatch(line)
        if not found or not found[2].startswith(self.mark):
            return False
        if _columns(found[1]) > _columns(self.before) + 3:
            return False  # such as one in a text of the program
        behind = found[3].strip(" \t" + _INVISIBLE)
        return not behind or (found[3][0] in " \t" and _words(behind)[0] not in _KNOWN)

    def block(self, lines: list[str]) -> Block:
        """Return the block with *lines* as its content."""
        mark = re.compile(r"^[ \t]*> ?" if "> " in self.before else r"^[ \t]*>")
        for _ in range(self.before.count(">")):
            lines = [mark.sub("", line) for line in lines]
        return Block(_words(self.info), "".join(f"{line}\n" for line in _outdented(lines)))


def extract(
    reply: str, *, language: str = "python", files: Sequence[str] = ("solution.py",)
) -> Extraction:
    """Return the code of *reply* for *files*, by the rule of this module."""
    if len(reply) > LONGEST:
        return Extraction(reason=f"the reply has more than {LONGEST} characters")
    text = reply.lstrip(_INVISIBLE)
    if _THOUGHT.match(text):
        _, rest = split_thought(text)
        if rest == text:
            return Extraction(reason="the reasoning is not closed")
        text = rest
    blocks, fences, closed = _fenced(text, language)
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


def _fenced(text: str, language: str) -> tuple[list[Block], int, bool]:
    """Return the closed blocks after the reasoning in order, the number of fences, and whether
    every fence is closed.
    """
    lines = _LINES.split(text)
    is_code = _begins_with_code(lines)
    blocks, fences, left = _blocks(lines, is_code)
    if left is None:
        return blocks, fences, True
    # the last line of the code ends with the fence
    for number, line in enumerate(left.lines):
        code = line.rstrip()
        if code.endswith(left.mark) and code.strip("`~ \t"):
            last = code.removesuffix(left.mark)
            rest = left.lines[number + 1 :]
            more, others, open_fence = _blocks(rest, is_code)
            ended = left.block([*left.lines[:number], last])
            return [*blocks, ended, *more], fences + others, open_fence is None
    # the prompt has opened the fence that the reply closes
    if is_code and fences == 1 and not left.info.strip():
        code_lines = lines[: len(lines) - len(left.lines) - 1]
        return [_Fence("", left.mark, language).block(code_lines)], 1, True
    return blocks, fences, False


def _blocks(lines: Sequence[str], is_code: bool) -> tuple[list[Block], int, _Fence | None]:
    """Return the closed blocks of *lines*, the number of fences, and the one that is not closed."""
    blocks: list[Block] = []
    fence: _Fence | None = None
    fences = 0
    for line in lines:
        if fence is None:
            if "</think>" in line:
                line = line.rpartition("</think>")[2]
                blocks.clear()
            fence = _opened(line, is_code)
            fences += fence is not None
        elif fence.ended_by(line):
            blocks.append(fence.block(fence.lines))
            fence = None
        else:
            fence.lines.append(line)
    return blocks, fences, fence


def _opened(line: str, is_code: bool) -> _Fence | None:
    """Return the fence that *line* opens; where the reply begins with code, none that could be in a
    text of the program.
    """
    found = _OPEN.fullmatch(line)
    if found:
        plain = _PLAIN.fullmatch(found[1]) is not None
        if is_code and not plain:
            return None
        pad, mark, info = found.groups()
        return _Fence(pad, mark, info)
    before, mark, info = line.rpartition("```")
    words = _words(info)
    within = bool(mark) and not is_code and words[:1] != () and words[0] in _KNOWN
    if not within or before.count("```") % 2:
        return None
    return _Fence("", "```", info)


def _begins_with_code(lines: Sequence[str]) -> bool:
    """Return whether the first line that is no comment looks like code."""
    for line in lines:
        text = line.strip()
        if text and not text.startswith(("//", "# ", "##")):
            return _CODE.match(text) is not None
    return False


def _outdented(lines: Sequence[str]) -> list[str]:
    """Return *lines* without the indentation of the first that is not blank."""
    first = next((line for line in lines if line.strip()), "")
    pad = first[: len(first) - len(first.lstrip(" \t"))]
    return [line.removeprefix(pad) for line in lines] if pad else list(lines)


def _columns(text: str) -> int:
    """Return the columns of what stands before a fence."""
    visible = (c for c in text if c not in _INVISIBLE)
    return sum(4 if character == "\t" else 1 for character in visible)


def _words(info: str) -> tuple[str, ...]:
    """Return the words of an info string: the tag in lower case, then names of files and more."""
    words = info.split()
    if not words:
        return ()
    found = _TAG.fullmatch(words[0])
    if not found:
        return words[0].lower(), *words[1:]
    more = [found[2], *words[1:]]
    return found[1].lower(), *(word.rpartition("=")[2].strip("\"'{}") for word in more)


def _chosen(blocks: Sequence[Block], language: str, name: str) -> str | None:
    tags = TAGS.get(language, (language,))
    tagged = [
        b for b in blocks if b.words and b.words[0] in tags and (not name or name in b.words[1:])
    ]
    if not tagged and not name:
        tagged = [b for b in blocks if not b.words]
    return tagged[-1].text if tagged else None
