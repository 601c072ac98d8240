"""Replies that satisfy constraints by construction: an outline collects what they ask for, and is
written out once.

The text is made of plain words without commas, digits and capitals of its own, so that what no
constraint asks for is not in it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import cycle
from random import Random
from typing import Literal

Shape = Literal["prose", "lines", "paragraphs", "items", "stars", "sections"]
MANY = 10**6

NOUNS = (
    "bird boat book bridge cat cloud dog door farm field fish flower forest friend garden girl hill "
    "horse house lake leaf letter light man map market moon mountain path road room ship shop song "
    "star stone street table teacher tower town train tree village wall wave window woman"
).split()
VERBS = (
    "sees finds helps knows likes meets needs paints passes reaches shows visits watches".split()
)
ADJECTIVES = (
    "bright calm clean dark deep gentle green large little old quiet round small tall".split()
)


@dataclass
class Outline:
    """What a reply must have.

    Attributes:
        words, sentences: lowest and highest number.
        blocks: lines, paragraphs or items, as *shape* says; 0 where nothing asks for any.
        tokens: words that must occur, in this order.
        begin, end: what the text begins and ends with; *end* has its mark.
        exclamations: sentences that end with an exclamation mark.
        title, postscript: a line before, and one behind.
        whole: the reply, where one constraint says all of it.
    """

    words: tuple[int, int] = (0, MANY)
    sentences: tuple[int, int] = (1, MANY)
    shape: Shape = "prose"
    blocks: int = 0
    tokens: list[str] = field(default_factory=list)
    begin: str = ""
    end: str = ""
    exclamations: int = 0
    title: str = ""
    postscript: str = ""
    case: Literal["", "lower", "upper"] = ""
    quoted: bool = False
    whole: str = ""

    @property
    def _least_sentences(self) -> int:
        plain = 1 if self.end or not self.exclamations else 0  # the last one may be asked for
        return max(self.sentences[0], self.blocks, self.exclamations + plain)

    @property
    def _least_words(self) -> int:
        asked = len(self.tokens) + len(self.begin.split()) + len(self.end.split())
        return max(asked + self._least_sentences, self.words[0])

    @property
    def feasible(self) -> bool:
        """Whether the numbers leave room for one another."""
        enough = self._least_words <= self.words[1] and self._least_sentences <= self.sentences[1]
        return bool(self.whole) or enough

    def text(self, rng: Random) -> str:
        """Return a reply that has all of it and no more."""
        if self.whole:
            return self.whole
        sentences = self._sentences(rng)
        count = max(self.blocks, 1)
        blocks: list[list[str]] = [[] for _ in range(count)]
        for number, sentence in enumerate(sentences):
            blocks[number * count // len(sentences)].append(sentence)
        body = self._joined([" ".join(block) for block in blocks])
        body = "\n".join(filter(None, (self.title, body, self.postscript)))
        body = f'"{body}"' if self.quoted else body
        cases = {"": body, "lower": body.lower(), "upper": body.upper()}
        return cases[self.case]

    def _joined(self, blocks: list[str]) -> str:
        if self.shape == "items":
            blocks = [f"- {block}" for block in blocks]
        if self.shape == "sections":
            blocks = [f"Section {number}\n{block}" for number, block in enumerate(blocks, 1)]
        between = {"stars": "\n***\n", "paragraphs": "\n\n", "sections": "\n\n", "prose": " "}
        return between.get(self.shape, "\n").join(blocks)

    def _sentences(self, rng: Random) -> list[str]:
        """Return the sentences, all different, with the words that are asked for spread over
        them.
        """
        count = self._least_sentences
        goal = max(self._least_words, min(self.words[1], 5 * count))
        opening = self.begin.split()
        closing = self.end.split()
        parts: list[list[str]] = [[] for _ in range(count)]
        for number, token in enumerate(self.tokens):
            parts[number * count // len(self.tokens)].append(token)
        free = goal - len(self.tokens) - len(opening) - len(closing)
        filler = _filler(rng)
        for number, part in enumerate(parts):
            share = free // count + (number < free % count)
            part[:0] = [next(filler) for _ in range(share)]
        parts[0][:0] = opening
        marks = ["!"] * self.exclamations + ["."] * (count - self.exclamations)
        written = [
            _capitalised(" ".join(part)) + mark for part, mark in zip(parts, marks, strict=True)
        ]
        if closing:
            written[-1] = _capitalised(" ".join([*parts[-1], self.end]))
        return written


def _filler(rng: Random) -> cycle[str]:
    """Return an endless text of clauses, none of whose words comes twice in a clause."""
    words: list[str] = []
    nouns = rng.sample(NOUNS, len(NOUNS))
    for number in range(0, len(nouns) - 1, 2):
        adjective = rng.choice(ADJECTIVES)
        words += [nouns[number], rng.choice(VERBS), "one", adjective, nouns[number + 1], "and"]
    return cycle(words)


def _capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]
