"""Choices of a question: the letter that an answer gives, and whether it gives another one, too."""

from __future__ import annotations

import re

_CHOICE = re.compile(
    r"(?i)(?:\\text\{)?\s*(?:(?:option|choice|answer)\s*)?\(?\s*(?:\\text\{)?\(?([A-J])\)?\}?\s*\)?\s*(?:[.):]\s*\}?\s*(?P<content>.*))?\}?\.?"
)
_CHOICE_SPACE = re.compile(r"(?:\\text\{)?\(([A-J])\)\}?\s*(?P<content>.+)")
_COUNTED_CHOICES = re.compile(
    r"(?i)(?:all|both|neither|none|only|each|any|either|one)\b(?: (?:of|choices?|options?|statements?))*"
    r" \(?[A-J]\)?(?:(?:, ?|,? ?(?:and|or|nor|&) )\(?[A-J]\)?)*(?: (?:alone|only|above|(?:is|are|hold)\b.*))?"
)
"""The content of a choice such as "Both A and B are true"."""
_BREAK = re.compile(r"[.,;:/|&()\n]+|(?<![A-Za-z])(?:and|or|nor|but|not|versus|vs)(?![A-Za-z])")
_FILLER = re.compile(
    r"(?i)(?:(?:no|nope|wait|hmm+|sorry|actually|rather|instead|then|also|maybe|perhaps|possibly|probably|"
    r"either|else|even|alternatively|otherwise|i mean|i think|it is|it's|the|correct|answer|option|choice|is)\s+)*"
)
_LETTER = re.compile(r"[A-J]|(?<=\()[a-j](?=\))")
_LABEL = re.compile(r"(?:^|[\s;,])\(?([A-Ja-j])(?:\)|[.:](?=\s))")
_TAKEN_BACK = re.compile(
    r"(?i)(?:(?:this|that|it|which)\s+)?(?:(?:is|was|seems)\s+)?(?:wrong|incorrect|mistaken|"
    r"not (?:it|this|that|so|correct|right|the answer)|isn't (?:it|right|correct))[.!]*"
)


def choice(text: str) -> tuple[str, str] | None:
    """Return the letter and the content of a choice, such as ``(B) 18``; ``None`` for other
    text.
    """
    match = _CHOICE.fullmatch(text) or _CHOICE_SPACE.fullmatch(text)
    return (match[1].upper(), (match["content"] or "").strip("{} ")) if match else None


def another_choice(letter: str, content: str) -> bool:
    """Return whether *content*, behind *letter*, names another choice or takes the letter back.

    "Both B and C" is the content of a choice, "or B" is another choice.
    """
    plain = re.sub(r"\\text\{([^{}]*)\}", r" \1 ", content).replace("{", " ").replace("}", " ")
    plain = re.sub(r"\\(?:lor|land)(?![A-Za-z])", " or ", plain)
    plain = " ".join(plain.split()).strip(" .")
    if _COUNTED_CHOICES.fullmatch(plain):
        return False
    if _TAKEN_BACK.fullmatch(plain) or re.search(rf"(?i)\bnot \(?{letter}\b", plain):
        return True
    plain = re.sub(r"\bI{1,3}(?=.*\bIII?\b)|\bIII?\b", "1", plain)  # statements I and II
    if any(label.upper() != letter for label in _LABEL.findall(plain)):
        return True
    for part in _BREAK.split(plain):
        rest = part.strip()[_FILLER.match(part.strip()).end() :]  # type: ignore[union-attr]
        if _LETTER.fullmatch(rest) and rest.upper() != letter:
            return True
    return False
