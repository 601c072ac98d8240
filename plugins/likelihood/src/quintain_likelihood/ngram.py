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
    """Scores a text under an interpolated Kneser-Ney model of its prompt and of the text up to each token.

    Kneser and Ney 1995, in the form of Chen and Goodman 1999 (equation 17)::

        p(w | c) = max(N(c w) - D, 0) / N(c) + D * T(c) / N(c) * p(w | c without its first word)

    N counts the distinct words before, so that text which repeats an earlier passage word for word changes nothing but
    its two ends; at the highest order a continuation counts once, however often it occurs. T(c) is the number of
    distinct words after c. Below the unigrams an unknown word is spelled with `LETTERS` equally probable letters.
    Tokens are words and single marks, whatever the blanks between them. Ids are not accepted.

    It knows no language: an improvement under it means that the prompt contains wording of the text. It is exact (its
    noise floor is 0), needs no torch, and takes a millisecond for 200 words of prompt.

    Args:
        order: longest n-gram.
        discount: D, between 0 and 1.
    """

    def __init__(self, *, order: int = 4, discount: float = 0.4) -> None:
        super().__init__()
        if order < 1 or not 0 < discount < 1:
            raise UsageError(f"ngram: order {order}, discount {discount}; expected at least 1, and between 0 and 1")
        self._order, self._discount = order, discount

    async def score(self, pairs: Sequence[Pair], *, max_tokens: int = 0) -> list[TextScore]:
        self.computed += len(pairs)
        return [self._score(pair, max_tokens) for pair in pairs]

    def _score(self, pair: Pair, max_tokens: int) -> TextScore:
        words = _PIECES.findall(_text(pair.prompt))
        if not words:
            raise ValueError("an empty prompt: the first token of the reply would have no condition")
        if not isinstance(pair.reply, str):
            raise UsageError("ngram scores text, not ids; use a scorer with a tokenizer (frozen-policy, frozen-model)")
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
    """Distinct n-grams of the words so far."""

    def __init__(self, order: int, discount: float) -> None:
        self.order, self.discount = order, discount
        self.past: list[str] = []
        self.seen: set[tuple[str, ...]] = set()
        # per context (up to order - 1 words): how many distinct words precede context + word, for each word
        self.after: dict[tuple[str, ...], dict[str, int]] = defaultdict(dict)
        self.total: dict[tuple[str, ...], int] = defaultdict(int)

    def add(self, word: str) -> None:
        self.past.append(word)
        longest = tuple(self.past[-self.order - 1 :])
        for size in range(1, self.order + 1):
            # An n-gram counts once for each distinct word before it, at the highest order once at all.
            evidence = longest[-size:] if size == self.order else longest[-size - 1 :]
            gram = longest[-size:]
            if len(gram) < size or (key := (str(size), *evidence)) in self.seen:
                continue
            self.seen.add(key)
            context = gram[:-1]
            self.after[context][word] = self.after[context].get(word, 0) + 1
            self.total[context] += 1

    def probability(self, word: str) -> float:
        p = float(LETTERS) ** -(len(word) + 1)
        for size in range(self.order):
            context = tuple(self.past[len(self.past) - size :])
            if len(context) < size or not (total := self.total.get(context, 0)):
                break
            followers = self.after[context]
            p = (max(followers.get(word, 0) - self.discount, 0.0) + self.discount * len(followers) * p) / total
        return p


def _text(prompt: Prompt) -> str:
    if isinstance(prompt, str):
        return prompt
    if not all(isinstance(m, Message) for m in prompt):
        raise UsageError("ngram scores text, not ids; use a scorer with a tokenizer (frozen-policy, frozen-model)")
    return "\n".join(m.content for m in prompt if isinstance(m, Message))
