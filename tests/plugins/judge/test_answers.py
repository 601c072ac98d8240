"""Equality with a reference: what says nothing equals nothing, other meanings differ, other forms
are equal.
"""

from __future__ import annotations

import time

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from quintain import Task
from quintain.errors import RewardFault
from quintain.testing import rollout
from quintain_judge import JudgeService
from quintain_judge.answers import extracted, same
from quintain_judge.rewards import judge_match

NOTHING = st.lists(
    st.sampled_from([*" \t\n.,;:!?\"'`*$", "\u200b", "\ufeff", "a ", "an ", "the ", "The ", "A "]),
    max_size=6,
).map("".join)
MARKS = " \t\n.,;:!?\"'`*$\u200b\ufeff"


@given(NOTHING, st.text(min_size=1, max_size=12))
def test_what_says_nothing_equals_no_reference_that_says_something(
    reply: str, reference: str
) -> None:
    """Blanks, marks, invisible characters and articles equal a reference only if they are its very
    letters.
    """
    letters = reply.casefold().translate(dict.fromkeys(map(ord, MARKS)))
    assume(letters != reference.casefold().translate(dict.fromkeys(map(ord, MARKS))))
    assert not same(extracted(reply), reference)


@pytest.mark.parametrize("article", ["A", "the"])
@given(st.text(MARKS, max_size=6))
def test_blanks_and_marks_equal_no_article(article: str, reply: str) -> None:
    assert not same(extracted(reply), article)


@given(st.text(min_size=1, max_size=20))
def test_a_text_equals_itself_in_other_white_space(text: str) -> None:
    assume(text.strip())
    assume(same(text, text))
    assert same(f" {text}\n", text)
    assert same(text, f"{text} ")


@pytest.mark.parametrize(
    "reply, reference",
    [
        ("", "A"), ("The", "A"), ("the", "A"), ("a an", "A"), (".", "A"), (":", "5"), ("\u200b",
        "a"),
        (".5", "5"), (",5", "5"), ("5", ".5"), ("102", "10²"), ("10²", "102"), ("25", "2⁵"),
        ("H2O2", "H₂O²"),
        ("5", "5!"), ("5!", "5"), ("n", "n!"), ("11/2", "1½"), ("m2", "㎡"), ("0.33", "0.33..."),
        ("5'", '5"'),
        ("mW", "MW"), ("5 MW", "5 mW"), ("5MB", "5Mb"), ("3 M", "3 m"), ("2 kB", "2 kb"),
        ("10 km/H", "10 km/h"),
        ("vitamin", "vitamin A"), ("and B", "A and B"), ("sin x", "a sin x"), ("minor", "A minor"),
        ("A*", "A"),
        ("CO", "Co"), ("HF", "Hf"), ("NO", "No"), ("x", "X"), ("o(n)", "O(n)"),
        ("#### 5\nSo the answer is 6", "5"), ("\\boxed{5}. No: the answer is 6", "5"),
        ("\\boxed{4} is wrong, \\boxed{5", "5"), ("\\boxed{4} is wrong, \\boxed{5", "4"),
        ("-5", "5"), ("5%", "5"), ("Oslo or Bergen", "Oslo"), ("", ""), (" ", "."),
    ],
)  # fmt: skip
def test_texts_that_differ_in_meaning_are_not_equal(reply: str, reference: str) -> None:
    assert not same(extracted(reply), reference)


@pytest.mark.parametrize(
    "reply, reference",
    [
        ("A", "A"), ("a", "A"), ("A.", "A"), ("**A**", "A"), ("the", "the"), ("The bridge.",
        "bridge"),
        ("a cat", "Cat"), ("An apple", "apple"), ("in the  end", "In end"), ('"Oslo".', "Oslo"),
        ("OSLO", "Oslo"),
        ("Yes!", "yes"), ("yes!!", "Yes."), ("`42`", "42"), ("$42$", "42"), ("\uff14\uff12", "42"),
        ("\U0001d7d2\U0001d7d0", "42"),
        ("4\u00a0000", "4 000"), ("ﬁre", "fire"), ("10²", "10²"), ("5!", "5!"), (".5", ".5"),
        (".5.", ".5"),
        ("5 KG", "5 kg"), ("5 PM", "5 pm"), ("5 mW", "5 mW"), ("usa", "USA"), ("12 Apples",
        "12 apples"),
        ("Answer: **42**", "42"), ("**Answer:** 42", "42"), ("\\boxed{42}.", "42"),
        ("US", "us"),
        ("\\boxed{5}. No: the answer is 6", "6"), ("#### 5\nSo the answer is 6", "6"),
        ("Rome\n<answer>Oslo</answer>", "Oslo"),
        ("\u201cOslo\u201d", "Oslo"), ("* Oslo", "Oslo"), ("Straße", "STRASSE"), ("cafe\u0301",
        "café"),
    ],
)  # fmt: skip
def test_other_forms_of_the_same_answer_are_equal(reply: str, reference: str) -> None:
    assert same(extracted(reply), reference)


@pytest.mark.parametrize(
    "unit", ["\n", "<answer>", "#### ", "the answer is ", "\\boxed{", "*", "a "]
)
def test_a_reply_that_repeats_itself_takes_no_time(unit: str) -> None:
    """30,000 line breaks took more than 2 s of CPU time, and twice as many four times as long."""
    before = time.process_time()
    extracted((unit * 100_000)[:100_000])
    assert time.process_time() - before < 3


@pytest.mark.parametrize("reply", ["", "The", "\u200b", ":", "```\n```", "Answer:"])
def test_the_reward_pays_nothing_for_a_reply_without_an_answer(reply: str) -> None:
    task = Task(prompt="Which letter? A, B or C", answer="A")
    assert judge_match.score(rollout(task, reply), judge=JudgeService()).total == 0
    assert judge_match.score(rollout(task, "a"), judge=JudgeService()).total == 1


def test_a_task_without_an_answer_is_refused() -> None:
    """Before, a reply "None" was right, and every other one wrong."""
    with pytest.raises(RewardFault, match="no answer to match"):
        judge_match.score(rollout(Task(prompt="Which?"), "None"), judge=JudgeService())
