"""Summaries and character sheets without a model: sentences of the text itself, chosen by word frequency."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence

_SENTENCE = re.compile(r"(?<=[.!?])[\"'\u201d\u2019)\]]*\s+(?=[\"'\u201c\u2018(\[]*[A-Z\d])")
_ABBREVIATION = re.compile(
    r"\b(?:Mr|Mrs|Ms|Dr|St|Mme|Mlle|Prof|Capt|Col|Gen|Rev|Hon|Sr|Jr|vs|etc|[A-Z])\.$"
)
_WORD = re.compile(r"[^\W\d_]+(?:['\u2019][^\W\d_]+)*")
_NAME = re.compile(r"(?:[A-Z][\w\u2019'-]+)(?:\s+[A-Z][\w\u2019'-]+){0,2}")
STOP_WORDS = frozenset(
    """a about after again all also am an and any are as at be because been before being but by can could did do does
    down each even for from had has have he her here hers him his how i if in into is it its just like little made make
    me more most much must my no nor not now of off on one only or other our out over said say says see she should so
    some such than that the their them then there these they thing this those though thought through to too two up upon
    us very was way we well went were what when where which while who whom why will with would you your""".split()
)
SHORTEST = 8
"""Words of a sentence below which a summary leaves it out: exclamations are made of frequent words."""
MENTIONS = 3
"""A name that stands inside sentences less often is no character."""


def sentences(text: str) -> list[str]:
    """Return the sentences of *text*, each on one line; a break after an abbreviation is none."""
    texts: list[str] = []
    for paragraph in re.split(r"\n\s*\n", text):
        joined = ""
        for piece in _SENTENCE.split(" ".join(paragraph.split())):
            joined = f"{joined} {piece}".strip()
            if joined and not _ABBREVIATION.search(joined):
                texts.append(joined)
                joined = ""
        if joined:
            texts.append(joined)
    return texts


def summary(text: str, words: int) -> str:
    """Return at most *words* words of *text*: sentences by SumBasic (Nenkova and Vanderwende 2005),
    in their order.

    The sentence whose content words are the most probable is taken, then the probability of its
    words is squared, and so on. A sentence that does not fit is passed over; if none fits, the text
    is cut.
    """
    every = sentences(text)
    lines = [s for s in every if len(s.split()) >= SHORTEST] or every
    contents = [
        [w for w in map(str.casefold, _WORD.findall(s)) if w not in STOP_WORDS] for s in lines
    ]
    counts = Counter(w for content in contents for w in content)
    total = max(1, counts.total())
    weight = {w: n / total for w, n in counts.items()}
    chosen: set[int] = set()
    left, open_ = words, {i for i, content in enumerate(contents) if content}
    while open_:
        best = max(
            open_, key=lambda i: (sum(weight[w] for w in contents[i]) / len(contents[i]), -i)
        )
        open_.discard(best)
        size = len(lines[best].split())
        if size > left:
            continue
        chosen.add(best)
        left -= size
        for w in set(contents[best]):
            weight[w] **= 2
    return " ".join(lines[i] for i in sorted(chosen)) or " ".join(text.split()[:words])


def names(text: str) -> list[str]:
    """Return the names in *text*, the most frequent first: capitalised words inside sentences, rarely written small."""
    inside: Counter[str] = Counter()
    for sentence in sentences(text):
        body = sentence.partition(" ")[2]  # any first word is capitalised
        for match in _NAME.finditer(body):
            before = body[: match.start()].rstrip()
            if not before.endswith((".", "!", "?", "\u201c", "\u2018", '"', "'", ":", ";")):
                inside[re.sub(r"[\u2019']s$", "", match[0])] += 1
    small = Counter(w for w in _WORD.findall(text) if w.islower())

    def is_name(name: str, n: int) -> bool:
        word = name.casefold()
        pronoun = re.match(r"I[\u2019']", name) or word in STOP_WORDS
        return n >= MENTIONS and small[word] < n and not pronoun and not name.isupper()

    ranked = sorted(inside.items(), key=lambda item: (-item[1], item[0]))
    return [name for name, n in ranked if is_name(name, n)]


def sheets(text: str, *, people: int, words: int) -> dict[str, str]:
    """Return what *text* says about its most frequent names: a summary of the sentences that mention each."""
    mentions: dict[str, list[str]] = defaultdict(list)
    chosen = names(text)[:people]
    lines = sentences(text)
    for name in chosen:
        mentions[name] = [s for s in lines if re.search(rf"\b{re.escape(name)}\b", s)]
    return {name: summary("\n\n".join(mentions[name]), words) for name in chosen}


def cut(text: str, words: int) -> str:
    """Return the first *words* words of *text*, blanks and line breaks as they are."""
    pieces: Sequence[str] = re.findall(r"\s*\S+", text)
    return text if len(pieces) <= words else "".join(pieces[:words])
