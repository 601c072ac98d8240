"""Finding the final answer in a reply. The rule, with its reasons, is in docs/math-verification.md."""

from __future__ import annotations

import re

LONGEST_STATEMENT = 300
"""Characters of a final statement without a box; longer text is an explanation, not an answer."""

MOST_BOXES = 64
"""Adjacent boxes that are joined; a list is as wrong with some of them as with all."""

_TAG = r"(?:think(?:ing)?|thoughts?|reasoning|reflection|scratchpad|analysis)"
_CLOSED = re.compile(rf"(?i)<\|?\s*/\s*{_TAG}\s*\|?>|\[/{_TAG}\]|<\|end_of_thought\|>|◁/think▷")
_OPENED = re.compile(rf"(?i)<\|?\s*{_TAG}\s*\|?>|\[{_TAG}\]|<\|begin_of_thought\|>|◁think▷")
_ANSWER_OPENED = re.compile(r"(?i)<\s*answer\s*>|<\|begin_of_solution\|>")
_ANSWER_CLOSED = re.compile(r"(?i)</\s*answer\s*>|<\|end_of_solution\|>")
_BRACE = re.compile(r"\\f?box(?:ed)?\s*\{|\\boxed[ \t](?P<bare>[-+]?[0-9A-Za-z.]+)(?=[\s$.,]|$)|\\.|[{}]", re.DOTALL)
_MARKER = re.compile(
    r"(?i)####|\b(?:final\s+)?(?:answer|result|solution)\s*\**\s*(?:is\s*:|is\b|:|=)|\banswer\s*(?=\$|\\[(\[])"
    r"|^[#*\s]*(?:the\s+)?final\s+answer[\s*:]*\n",
    re.MULTILINE,
)
_TRAILER = re.compile(r"(?i)[\s.]*i hope (?:it|this) is correct[\s.!]*$|<\|[a-z_]+\|>\s*$|</s>\s*$")
_SPACING = re.compile(r"\\(?:q?quad(?![A-Za-z])|[,;:! \[\]()]|text\w*(?=\{))")
_PUNCTUATION = re.compile(r"[\s$(){},;.&A-Za-z]*")
_CONJUNCTIONS = {"and", "or", "as", "well", "also"}
_ALTERNATIVE = re.compile(r"(?i)\b(?:or|either|alternatively|otherwise|perhaps|maybe|possibly|could\s+be|might\s+be)\b")
_NEXT_SENTENCE = re.compile(r"[.!?]\s*\**\s+\S|[.!?][)\"*]*\s*\n\s*\S")


def visible(reply: str) -> str:
    """*reply* after its reasoning: what follows the last end tag, up to a reasoning that never ends."""
    start = 0
    for match in _CLOSED.finditer(reply):
        start = match.end()
    text = reply[start:]
    opened = _OPENED.search(text)
    if opened:
        text = text[: opened.start()]
    openings = list(_ANSWER_OPENED.finditer(text))
    if openings:
        block = text[openings[-1].end() :]
        closed = _ANSWER_CLOSED.search(block)
        return block[: closed.start()] if closed else block
    return text


def final_answers(reply: str, *, boxed_only: bool = False) -> list[str]:
    """The final answer of *reply* as LaTeX: one text, or the texts of boxes that together are one answer.

    The answer is the last ``\\boxed{}`` after the reasoning; boxes with nothing but a conjunction between them belong
    together. Without a box it is the last final statement ("The answer is 5."), if nothing follows it, or a reply that
    is nothing but an expression.

    Args:
        boxed_only: take no answer but a box.
    """
    text = visible(reply)
    boxes = _boxes(text)
    if boxes:
        return _last_group(text, boxes)
    if boxed_only or "\\boxed" in text or "\\fbox" in text:  # an open box is not an answer
        return []
    statement = _statement(text)
    return [statement] if statement else []


def _boxes(text: str) -> list[tuple[int, int, str]]:
    """Start, end and content of the outermost balanced boxes of *text*, in order, in one pass."""
    found: list[tuple[int, int, str]] = []
    open_braces: list[tuple[int, int] | None] = []  # for each open brace: start and content of its box
    for match in _BRACE.finditer(text):
        token = match[0]
        if token == "{":
            open_braces.append(None)
        elif token == "}":
            box = open_braces.pop() if open_braces else None
            if box is not None:
                while found and found[-1][0] > box[0]:
                    found.pop()  # nested in this one
                found.append((box[0], match.end(), text[box[1] : match.start()]))
        elif match["bare"]:
            found.append((match.start(), match.end(), match["bare"].rstrip(".")))
        elif token.endswith("{") and len(token) > 2:
            open_braces.append((match.start(), match.end()))
    return found


def _last_group(text: str, boxes: list[tuple[int, int, str]]) -> list[str]:
    group = [boxes[-1]]
    for box in reversed(boxes[-MOST_BOXES:-1]):
        between = text[box[1] : group[0][0]]
        near = len(between) <= 80 and (_joins(between) or _ALTERNATIVE.search(between))
        if not near:
            break
        group.insert(0, box)
    contents = [content.strip() for _, _, content in group]
    return list(dict.fromkeys(c for c in contents if c))


def _joins(between: str) -> bool:
    """Whether there is nothing but punctuation and a conjunction between two boxes."""
    plain = _SPACING.sub(" ", between)
    return bool(_PUNCTUATION.fullmatch(plain)) and set(re.findall("[a-z]+", plain.lower())) <= _CONJUNCTIONS


def _statement(text: str) -> str:
    text = _TRAILER.sub("", text.strip()[-4 * LONGEST_STATEMENT :]).strip()
    last = None
    for match in _MARKER.finditer(text):
        last = match
    tail = text[last.end() :] if last else text
    tail = tail.strip().strip("*").strip().lstrip(":=").strip().rstrip(".!").strip().strip("*").strip()
    if not tail or len(tail) > LONGEST_STATEMENT or _NEXT_SENTENCE.search(tail) or "\n\n" in tail:
        return ""
    sentence = re.fullmatch(r"(?i)(?:the|our)\b[^.]*?\b(?:is|are|equals)\b:?\s*(.+)", tail) if last else None
    tail = sentence[1] if sentence else tail
    return tail if last or _bare(tail) else ""


def _bare(text: str) -> bool:
    """Whether *text* is an expression and no sentence: a formula in dollar signs, or no word of the language."""
    if text.count("$") == 2 and text[0] == text[-1] == "$":
        return True
    words = re.findall(r"(?<![\\A-Za-z])[A-Za-z]{2,}", re.sub(r"\\text\w*\{[^{}]*\}", "", text))
    return "\n" not in text and (not words or (len(words) == 1 and len(text) <= 30))
