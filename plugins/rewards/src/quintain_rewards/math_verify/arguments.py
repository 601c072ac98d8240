"""Arguments of LaTeX: which text a command, ``^`` or ``_`` takes, with braces or without."""

from __future__ import annotations

import re

_ARGUMENTS = {"frac": 2, "binom": 2, "sqrt": 1}
_WITH_BRACES = frozenset("text overline bar hat vec dot mathbb mathcal tilde underline".split())
_COMMAND = re.compile(r"\\([A-Za-z]+|.)")
_NUMBER = re.compile(r"\d+")
_SPACE = re.compile(r"\s*")
_SYMBOL = re.compile(r"\{\s*([A-Za-z]|\\[A-Za-z]+)\s*\}(?=\s*[_^'])")
_WORD_INDEX = re.compile(
    r"(?<=[A-Za-z'])_\s*(?:\{\s*)?(?:\\text\{([^{}]*)\}|\\(min|max)(?![A-Za-z]))\s*(?:\})?"
)
_DEEPEST = 60


def braced(text: str) -> str:
    """Return *text* with braces around each exponent, index and root that is a command with its
    arguments, and without braces around a single symbol that has an index.

    >>> braced("x^\\\\frac{1}{2}+{g}_{k}")
    'x^{\\\\frac{1}{2}}+g_{k}'
    """
    if "^" not in text and "_" not in text and r"\sqrt" not in text:
        return text
    inserted: dict[int, str] = {}
    taken: set[int] = set()  # where an argument of a command, of ^ or of _ begins
    place = 0
    while place < len(text):
        if text[place] in "^_":
            _enclose(text, place + 1, inserted)
            taken.add(_blank(text, place + 1))
        command = _COMMAND.match(text, place)
        if command is None:
            place += 1
            continue
        end = command.end()
        for _ in range(_ARGUMENTS.get(command[1], 1)):
            end = _option(text, end)
            if command[1] == "sqrt":
                _enclose(text, end, inserted)
            taken.add(_blank(text, end))
            end = _argument(text, end, 0)
        place = command.end()
    parts: list[str] = []
    place = 0
    while place < len(text):
        parts.append(inserted.get(place, ""))
        symbol = _SYMBOL.match(text, place)
        if symbol is not None and place not in taken:
            parts.append(symbol[1] + " " * (len(symbol[1]) > 1))
            place = symbol.end()
        else:
            parts.append(text[place])
            place += 1
    parts.append(inserted.get(place, ""))
    return _WORD_INDEX.sub(_index, "".join(parts))


def _index(match: re.Match[str]) -> str:
    word = re.sub(r"[^A-Za-z0-9,]", "", match[1] or match[2] or "")
    return f"_{{{word}}}" if word else match[0]


def _blank(text: str, start: int) -> int:
    """Return where the blanks from *start* on end."""
    return _SPACE.match(text, start).end()  # type: ignore[union-attr]


def _enclose(text: str, start: int, inserted: dict[int, str]) -> None:
    """Note braces around the argument at *start*, if it is a command that has arguments itself."""
    start = _blank(text, start)
    sign = start + (text[start : start + 1] in ("-", "+"))
    command = _COMMAND.match(text, sign)
    number = _NUMBER.match(text, sign)
    end = number.end() if number else _argument(text, sign, 0)
    takes = command is not None and end > command.end()
    signed = sign > start and end > sign and text[start - 1 : start] == "^"
    if takes or signed:
        inserted[start] = inserted.get(start, "") + "{"
        inserted[end] = "}" + inserted.get(end, "")


def _option(text: str, start: int) -> int:
    """Return where an option in square brackets ends, such as the 3 of ``\\sqrt[3]{x}``."""
    begin = _blank(text, start)
    if text[begin : begin + 1] != "[":
        return start
    end = text.find("]", begin)
    return start if end < 0 else end + 1


def _argument(text: str, start: int, depth: int) -> int:
    """Return where the argument that begins at *start* ends."""
    start = _blank(text, start)
    if start >= len(text) or depth > _DEEPEST:
        return len(text)
    if text[start] == "{":
        return _closing(text, start)
    command = _COMMAND.match(text, start)
    if command is None:
        return start + 1
    end = command.end()
    if command[1] in _WITH_BRACES:
        return _closing(text, end) if text[end : end + 1] == "{" else end
    for _ in range(_ARGUMENTS.get(command[1], 0)):
        end = _option(text, end) if command[1] == "sqrt" else end
        end = _argument(text, end, depth + 1)
    return end


def _closing(text: str, start: int) -> int:
    """Return where the group ends that the brace at *start* opens."""
    depth = 0
    for place in range(start, len(text)):
        if text[place] in "{}" and text[place - 1 : place] != "\\":
            depth += 1 if text[place] == "{" else -1
            if not depth:
                return place + 1
    return len(text)
