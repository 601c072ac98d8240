"""An n-gram model that learns from the prompt: log-probs of text without any trained model."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Sequence

from quintain import Message
from quintain.errors import UsageError

from .text import Pair, Prompt, TextLikelihood, TextScore

_PIECES = re.compile(r"\w+|[^\w\s]")
LETTERS = 64
"""Letters that an unknown word is spelled with, all as probable, its end included."""


class NGram(TextLikelihood):
    """Scores a text under an interpolated n-gram model of its prompt and of the text up to each
    token.

    Absolute discounting (Ney, Essen and Kneser 1994) of sets instead of counts: S(c) are the
    distinct words seen after the words c, and each of them counts once, however often it came::

        p(w | c) = (1 - D) [w in S(c)] / |S(c)| + D p(w | c without its first word)

    A single word has the probability of Kneser and Ney 1995, its number of distinct words before it
    as a share of all such pairs, discounted by D. So text that repeats an earlier passage word for
    word changes nothing but its two ends. An unknown word is spelled with `LETTERS` equally
    probable letters. Tokens are words and single marks, whatever the blanks between them. Ids are
    not accepted.

    It knows no language: an improvement under it means that the prompt contains wording of the
    text. It is exact (its noise floor is 0), needs no torch, and takes a millisecond for 200 words
    of prompt.

    Args:
        order: longest n-gram.
        discount: D, between 0 and 1.
    """

    def __init__(self, *, order: int = 4, discount: float = 0.4) -> None:
        super().__init__()
        if order < 1 or not 0 < discount < 1:
            raise UsageError(
                f"ngram: order {order}, discount {discount}; expected at least 1, and between 0 "
                f"and 1"
            )
        self._order, self._discount = order, discount

    async def score(self, pairs: Sequence[Pair], *, max_tokens: int = 0) -> list[TextScore]:
        self.computed += len(pairs)
        return [self._score(pair, max_tokens) for pair in pairs]

    def _score(self, pair: Pair, max_tokens: int) -> TextScore:
        words = _PIECES.findall(_text(pair.prompt))
        if not words:
            raise ValueError(
                "an empty prompt: the first token of the reply would have no condition"
            )
        if not isinstance(pair.reply, str):
            raise UsageError(
                "ngram scores text, not ids; use a scorer with a tokenizer (frozen-policy, "
                "frozen-model)"
            )
        reply = _PIECES.findall(pair.reply)
        reply = reply[:max_tokens] if max_tokens else reply
        counts = _Counts(self._order, self._discount)
        for word in words:
            counts.add(word)
        logprobs = []
        for word in reply:
            logprobs.append(math.log(counts.probability(word)))
            counts.add(word)
        return TextScore(tuple(logprobs))


class _Counts:
    """The distinct n-grams of the words so far."""

    def __init__(self, order: int, discount: float) -> None:
        self.order, self.discount = order, discount
        self.past: list[str] = []
        # of contexts of one word and more
        self.after: dict[tuple[str, ...], set[str]] = defaultdict(set)
        self.before: dict[str, set[str]] = defaultdict(set)
        self.pairs = 0

    def add(self, word: str) -> None:
        left = self.past[-1] if self.past else ""
        if left not in self.before[word]:
            self.before[word].add(left)
            self.pairs += 1
        for size in range(1, min(self.order, len(self.past) + 1)):
            self.after[tuple(self.past[-size:])].add(word)
        self.past.append(word)

    def probability(self, word: str) -> float:
        p, share = float(LETTERS) ** -(len(word) + 1), self.discount
        if self.pairs:
            seen = len(self.before[word]) if word in self.before else 0
            p = (max(seen - share, 0.0) + share * len(self.before) * p) / self.pairs
        for size in range(1, min(self.order, len(self.past) + 1)):
            followers = self.after.get(tuple(self.past[-size:]))
            if not followers:
                break
            p = (1 - share) * (word in followers) / len(followers) + share * p
        return p


def _text(prompt: Prompt) -> str:
    if isinstance(prompt, str):
        return prompt
    if not all(isinstance(m, Message) for m in prompt):
        raise UsageError(
            "ngram scores text, not ids; use a scorer with a tokenizer (frozen-policy, "
            "frozen-model)"
        )
    return "\n".join(m.content for m in prompt if isinstance(m, Message))
