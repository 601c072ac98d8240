"""Answers: extraction from replies, comparison as SQuAD does it, citations."""

from __future__ import annotations

import re
import string
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintain import Task, ToolCall
from quintain.errors import RewardFault
from quintain.testing import rollout
from quintain_authoring import RewardSuite
from quintain_env_search import (
    SearchResult,
    SearchTask,
    Seen,
    answer_f1,
    answer_format,
    citation,
    exact_match,
    tool_calls,
)
from quintain_env_search.answers import CitedAnswer, contains, exact, f1, normalized, read_answer


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("<answer>Mirel</answer> [17]", CitedAnswer("Mirel", ("17",), plain=True)),
        ("<answer> Mirel </answer>[17] [3]", CitedAnswer("Mirel", ("17", "3"), plain=True)),
        ("<answer>Mirel</answer>", CitedAnswer("Mirel", (), plain=True)),
        ("So it is [9]: <answer>Mirel</answer> [17].", CitedAnswer("Mirel", ("17",), plain=False)),
        (
            "<answer>a [b] c</answer> [notes/a.md#2]",
            CitedAnswer("a [b] c", ("notes/a.md#2",), plain=True),
        ),
        ("<answer>Mirel</answer> [17] [17]", CitedAnswer("Mirel", ("17",), plain=True)),
        ("Mirel [17]", None),
        ("<answer>Mirel", None),
        ("</answer>Mirel<answer>", None),
        ("<answer>Mirel</answer> <answer>Zubat</answer>", None),
        ("<answer><answer>Mirel</answer></answer>", None),
        ("<answer>Mirel</answer></answer>", None),
        ("", None),
    ],
)
def test_an_answer_is_read_only_where_there_is_exactly_one(
    reply: str, answer: CitedAnswer | None
) -> None:
    assert read_answer(reply) == answer


@given(st.text(st.sampled_from("<>/answer [1]")))
def test_reading_never_fails(reply: str) -> None:
    found = read_answer(reply)
    assert found is None or reply.count("<answer>") == 1 == reply.count("</answer>")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The Beatles!", "beatles"),
        ("  an   apple, a day ", "apple day"),
        ("theory of another", "theory of another"),
        ("U.S.A.", "usa"),
        ("10th-century", "10thcentury"),
    ],
)
def test_normalization(text: str, expected: str) -> None:
    assert normalized(text) == expected


def squad_f1(prediction: str, truth: str) -> float:
    """The definition of arXiv:1606.05250, section 6.1, as a direct computation over bags of
    words.
    """

    def words(text: str) -> list[str]:
        text = "".join(c for c in text.lower() if c not in set(string.punctuation))
        return re.sub(r"\b(a|an|the)\b", " ", text).split()

    one, other = words(prediction), words(truth)
    same = sum(min(one.count(w), other.count(w)) for w in set(one))
    if not same:
        return 0.0
    precision, recall = same / len(one), same / len(other)
    return 2 * precision * recall / (precision + recall)


WORDS = st.lists(
    st.sampled_from(["the", "Saint", "bernadette", "Soubirous,", "in", "1858"]), max_size=6
).map(" ".join)


@given(WORDS, WORDS)
def test_f1_is_the_harmonic_mean_of_precision_and_recall(answer: str, gold: str) -> None:
    assert f1(answer, gold) == pytest.approx(squad_f1(answer, gold))
    assert Counter(normalized(answer).split()) != Counter(normalized(gold).split()) or f1(
        answer, gold
    ) in (0.0, 1.0)


def test_f1_by_hand() -> None:
    """Two of three words are among the two expected ones: precision 2/3, recall 1, F1 0.8."""
    assert f1("Saint Bernadette Soubirous", "the Bernadette Soubirous") == pytest.approx(0.8)


def test_nothing_is_never_right() -> None:
    assert not exact("", "")
    assert not exact("the", "a")
    assert not contains("anything", "the")


def test_a_passage_contains_whole_words_only() -> None:
    assert contains("He lives in New York.", "new york")
    assert not contains("He lives in Newark.", "new")
    assert not contains("Tavolo lives here", "Tavo")


TASK = SearchTask(prompt="Where does Tavo live?", answer="Mirel", answers=("Mirel", "Mirel town"))
PAGES = SearchResult(
    seen=(Seen("17", "Tavo\nTavo lives in Mirel."), Seen("3", "Bena\nBena lives in Zubat.")),
    calls=2,
    final=True,
)


class TestExactMatch(RewardSuite):
    reward = exact_match

    def gold(self):  # type: ignore[no-untyped-def]
        return [
            (rollout(TASK, "<answer>Mirel</answer> [17]", result=PAGES), 1.0),
            (rollout(TASK, "<answer>the MIREL town.</answer>", result=PAGES), 1.0),
            (rollout(TASK, "<think>Zubat?</think><answer>Mirel</answer>", result=PAGES), 1.0),
            (rollout(TASK, "<answer>Zubat</answer> [3]", result=PAGES), 0.0),
        ]

    def exploits(self):  # type: ignore[no-untyped-def]
        return [
            rollout(TASK, "Mirel", result=PAGES),
            rollout(TASK, "<think><answer>Mirel</answer></think>", result=PAGES),
            rollout(TASK, "<answer>Mirel</answer><answer>Zubat</answer>", result=PAGES),
            rollout(TASK, "<answer>Mirel Zubat</answer>", result=PAGES),
            rollout(TASK, "<answer>Mirel</answer>", "See above.", result=PAGES),
            rollout(TASK, "<answer>Mirel</answer>", result=SearchResult(final=False)),
        ]


class TestF1(RewardSuite):
    reward = answer_f1

    def gold(self):  # type: ignore[no-untyped-def]
        return [
            (rollout(TASK, "<answer>Mirel</answer>", result=PAGES), 1.0),
            (rollout(TASK, "<answer>Mirel Zubat</answer>", result=PAGES), 2 / 3),
        ]

    def exploits(self):  # type: ignore[no-untyped-def]
        return [
            rollout(TASK, "Mirel", result=PAGES),
            rollout(TASK, "<answer></answer>", result=PAGES),
        ]


class TestCitation(RewardSuite):
    reward = citation

    def gold(self):  # type: ignore[no-untyped-def]
        return [
            (rollout(TASK, "<answer>Mirel</answer> [17]", result=PAGES), 1.0),
            # wrong, but the passage says so
            (rollout(TASK, "<answer>Zubat</answer> [3]", result=PAGES), 1.0),
        ]

    def exploits(self):  # type: ignore[no-untyped-def]
        return [
            rollout(TASK, "<answer>Mirel</answer>", result=PAGES),
            rollout(TASK, "<answer>Mirel</answer> [99]", result=PAGES),
            rollout(TASK, "<answer>Mirel</answer> [3]", result=PAGES),
            rollout(TASK, "<answer>Mirel</answer> [17] [3]", result=PAGES),
            rollout(TASK, "<answer>Mirel</answer> [17]", result=SearchResult()),
            rollout(TASK, "<answer>the</answer> [17]", result=PAGES),
            rollout(TASK, "[17] Tavo lives in Mirel. <answer>Mirel</answer>", result=PAGES),
        ]


def test_an_episode_without_a_search_is_refused() -> None:
    with pytest.raises(
        RewardFault, match=r"need an environment that searches; same_answer compares any reply"
    ):
        exact_match.score(rollout(Task(prompt="2 + 2?", answer="4"), "<answer>4</answer>"))


def test_the_format_is_the_answer_alone_and_no_refused_call() -> None:
    def of(text: str) -> float:
        return answer_format.score(rollout(TASK, text, result=PAGES)).total

    assert of("<answer>x</answer> [1]") == 1.0
    assert (
        0.0
        == of("<answer>x</answer>")
        == of("Well: <answer>x</answer> [1]")
        == of("<answer>x</answer> [1] so")
    )
    refused = ToolCall(name="search", error="error: no such tool")
    right = rollout(TASK, "", "<answer>x</answer> [1]", result=PAGES)
    assert answer_format.score(right).total == 1.0
    assert (
        answer_format.score(
            right.replace(turns=(replace(right.turns[0], calls=(refused,)), right.turns[1]))
        ).total
        == 0.0
    )


def test_calls_beyond_the_free_ones_count() -> None:
    assert tool_calls.score(rollout(TASK, "", result=PAGES)).total == 2.0
    assert tool_calls(free=3).score(rollout(TASK, "", result=PAGES)).total == 0.0
