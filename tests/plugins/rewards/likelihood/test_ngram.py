"""The n-gram scorer by hand and as a distribution; the formula and the thresholds of VR-CLI."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintain.errors import UsageError
from quintain_rewards.likelihood import (
    NGram,
    NoiseFloor,
    Pair,
    TextScore,
    improvement,
    threshold_reward,
)
from quintain_rewards.likelihood.ngram import LETTERS, _Counts

from ....lanes import examples

words = st.lists(st.sampled_from(["a", "b", "c", "door", "key", "."]), min_size=1, max_size=40)


def logprobs(prompt: str, reply: str, **settings_: Any) -> list[float]:
    return asyncio.run(NGram(**settings_).logprobs(prompt, reply))


def test_bigrams_by_hand() -> None:
    """After "a b a c a": b and c each followed a, so p(b | a) = (1 - D) / 2 + D p(b)."""
    d = 0.5
    spelled = LETTERS**-2
    # a stands at the start, after b and after c; b and c after a only: 3 + 1 + 1 distinct pairs, 3
    # words
    unigram = (1 - d) / 5 + d * 3 / 5 * spelled
    expected = math.log((1 - d) / 2 + d * unigram)
    assert logprobs("a b a c a", "b", order=2, discount=d)[0] == pytest.approx(expected)


def test_unknown_words_are_spelled() -> None:
    (short,) = logprobs("a", "xy", order=1)
    (long,) = logprobs("a", "xyz", order=1)
    assert short - long == pytest.approx(math.log(LETTERS))


@given(words, st.integers(1, 5), st.floats(0.05, 0.95))
@examples(60)
def test_probabilities_sum_to_at_most_one(past: list[str], order: int, discount: float) -> None:
    """Known words and the mass of the unknown ones together are a distribution."""
    counts = _Counts(order, discount)
    for word in past:
        counts.add(word)
    known = set(past)
    total = sum(counts.probability(word) for word in known)
    # The spelled mass of all words of up to 3 letters that were not seen, plus that of longer ones,
    # is what is left.
    unseen = counts.probability("z") / LETTERS**-2
    assert 0 < total < 1
    assert total + unseen * (1 - sum(LETTERS ** -(len(w) + 1) for w in known)) <= 1 + 1e-9


@given(words, words)
@examples(60)
def test_a_copied_passage_changes_little(before: list[str], after: list[str]) -> None:
    """Its inner words add no count; only the seams at its ends do."""
    once, twice = _Counts(3, 0.4), _Counts(3, 0.4)
    passage = ["the", "lamp", "went", "out", "at", "nine", "and", "nobody", "spoke"]
    for word in [*before, *passage, *passage, *after]:
        once.add(word)
    for word in [*before, *passage, *passage, *passage, *after]:
        twice.add(word)
    assert once.after == twice.after
    assert once.before == twice.before


@given(st.lists(st.floats(-20, 0), min_size=1, max_size=30), st.floats(-1, 1))
def test_improvement_is_that_of_perplexities(logps: list[float], shift: float) -> None:
    baseline, planned = TextScore(tuple(logps)), TextScore(tuple(x + shift for x in logps))
    expected = (1 - planned.perplexity / baseline.perplexity) * 100
    assert improvement(planned, baseline) == pytest.approx(expected, rel=1e-6, abs=1e-9)
    assert improvement(baseline, baseline) == 0


def test_scores_of_two_texts_have_no_improvement() -> None:
    with pytest.raises(ValueError, match="scores of 1 and 2 tokens"):
        improvement(TextScore((-1.0,)), TextScore((-1.0, -1.0)))


def test_the_published_edges() -> None:
    """The values of the authors' code, at and beside each edge; the edges are in percent."""
    percents = (-3, 0, 0.0499, 0.05, 0.999, 1, 1.999, 2, 80)
    assert [threshold_reward(p) for p in percents] == [0, 0, 0, 0.5, 0.5, 0.9, 0.9, 1, 1]


def test_noise_does_not_earn() -> None:
    """Edges below two noise floors are raised; a floor above all edges leaves only what exceeds
    it.
    """
    noise = NoiseFloor(nats=math.log1p(0.004), texts=3)  # 0.4 %
    percents = (0.05, 0.79, 0.81, 1, 2)
    assert [threshold_reward(p, noise=noise) for p in percents] == [0, 0, 0.5, 0.9, 1]
    loud = NoiseFloor(nats=math.log1p(0.02), texts=3)
    assert [threshold_reward(p, noise=loud) for p in (2, 3.9, 4.1)] == [0, 0, 1]


@pytest.mark.parametrize("edges", [(1.0, 2.0), (2.0, 1.0, 3.0), (-1.0, 0.0, 1.0)])
def test_edges_rise(edges: tuple[float, ...]) -> None:
    with pytest.raises(UsageError, match="expected three rising percentages"):
        threshold_reward(1.0, edges=edges)


def test_ids_need_a_tokenizer() -> None:
    with pytest.raises(UsageError, match="use a scorer with a tokenizer"):
        asyncio.run(NGram().score([Pair((1, 2), "x")]))
    with pytest.raises(UsageError, match="use a scorer with a tokenizer"):
        asyncio.run(NGram().score([Pair("x", (1, 2))]))
    with pytest.raises(ValueError, match="an empty prompt"):
        asyncio.run(NGram().score([Pair("  ", "x")]))
    with pytest.raises(UsageError, match="order 0"):
        NGram(order=0)
