"""What judges write around and inside their JSON, and answers that differ by case or are taken
back.
"""

from __future__ import annotations

from typing import Any

import pytest

from quintain_judge.answers import extracted, same
from quintain_judge.verdicts import Form, Ranking, Scale, SingleLabel, UnreadableVerdict

SCALE, LABEL, ORDER = Scale(), SingleLabel(("A", "B")), Ranking(("1", "2"))
MARK = "\ufeff"


@pytest.mark.parametrize(
    ("form", "text", "verdict"),
    [
        (LABEL, r'{"reason": "so \sqrt{2} holds", "verdict": "A"}', "A"),
        (LABEL, r'{"reason": "\(x\) is \pi", "verdict": "B"}', "B"),
        (LABEL, r'{"reason": "\underline{x} and \u0041", "verdict": "B"}', "B"),
        (LABEL, r'{"reason": "a \\ b \" c \d", "verdict": "A"}', "A"),
        (LABEL, '{"reason": "one\ntwo\tthree", "verdict": "A"}', "A"),
        (LABEL, '{"reason": "one\r\n\r\ntwo \\alpha", "verdict": "A"}', "A"),
        (LABEL, MARK + '{"reason": "x", "verdict": "A"}', "A"),
        (LABEL, "\n" + MARK + ' {"reason": "x", "verdict": "B"}\u200b\n', "B"),
        (LABEL, '```JSON\n{"reason": "x", "verdict": "A"}\n```', "A"),
        (LABEL, '``` Json \n{"reason": "x", "verdict": "A"}\n```', "A"),
        (LABEL, '```json\r\n{"reason": "x", "verdict": "A"}\n```', "A"),
        (LABEL, '{"reason": "x", "verdict": " A"}', "A"),
        (LABEL, '{"reason": "x", "verdict": "B\\n"}', "B"),
        (ORDER, '{"reason": "x", "ranking": ["2 ", " 1"]}', ("2", "1")),
        (SCALE, '{"reason": "x", "score": 2}</think>{"reason": "y", "score": 0}', 0.0),
        (SCALE, 'it says </think> here</think>\n{"reason": "y", "score": 1}', 0.5),
        (SCALE, '{"reason": "it wrote </think> twice", "score": 2}', 1.0),
        (SCALE, '<think>a</think>{"reason": "a </think> in it", "score": 2}', 1.0),
        (SCALE, '<think>x</think>\n```json\n{"reason": "\\sum", "score": 1}\n```', 0.5),
    ],
)
def test_a_verdict_is_read_as_it_is_meant(form: Form, text: str, verdict: Any) -> None:
    assert form.read(text)[0] == verdict


@pytest.mark.parametrize(
    "text",
    [
        '{"reason": "x", "verdict": "A", "verdict": "B"}',
        '{"reason": "x", "verdict": "A"} {"reason": "y", "verdict": "B"}',
        '{"reason": "x", "verdict": "a"}',
        '{"reason": "x", "verdict": "A or B"}',
        '{"reason": "x \\", "verdict": "A"}',
        '```python\n{"reason": "x", "verdict": "A"}\n```',
        'Verdict: {"reason": "x", "verdict": "A"}',
        '{"reason": "x", "verdict": "A"}</think>',
        '<think>{"reason": "x", "verdict": "A"}',
        '{"reason": "x", "verdict": NaN}',
    ],
)
def test_what_is_no_verdict_alone_is_asked_again(text: str) -> None:
    with pytest.raises(UnreadableVerdict):
        LABEL.read(text)


@pytest.mark.parametrize(
    ("answer", "reference", "equal"),
    [
        ("CO", "Co", False), ("HF", "Hf", False), ("NO", "No", False), ("x", "X", False),
        ("o(n)", "O(n)", False), ("O(N)", "O(n)", False), ("NACL", "NaCl", True),
        ("COCl2", "CoCl2", False), ("PH", "pH", False), ("k", "K", False), ("n!", "N!", False),
        ("PoCl3", "POCl3", False), ("v = 3", "V = 3", False),
        ("co", "Co", True), ("no", "No", True), ("b", "B", True), ("(c)", "(C)", True),
        ("paris", "PARIS", True), ("nasa", "NASA", True), ("MacBook", "macbook", True),
        ("YES", "yes", True), ("1200", "1,200", True), ("\u22123", "-3", True),
        ("-1,200.5", "\u22121200.5", True), ("3", "-3", False), ("12,00", "1200", False),
    ],
)  # fmt: skip
def test_case_and_signs_decide_where_they_mean_something(
    answer: str, reference: str, equal: bool
) -> None:
    assert same(answer, reference) == equal


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("#### 5\nSo the answer is 6", "6"),
        ("The answer is 6\n#### 5", "5"),
        ("#### 5\nand nothing else", "5"),
        ("\\boxed{5}. No: the answer is 6", "6"),
        ("\\boxed{5}. Wait, I made a mistake. The answer is 7.", "7"),
        ("\\boxed{5}. Actually the answer is 8", "8"),
        ("\\boxed{5}. That is wrong.", ""),
        ("\\boxed{5}. The answer is 5.", "5"),
        ("The answer is 4. No, it is \\boxed{5}", "5"),
        ("<answer>5</answer> and then <answer>6</answer>", "6"),
        ("<ANSWER> The answer is 5 </ANSWER>", "5"),
        ("<answer>5", "5"),
        ("Answer: 3\nAnswer: 4 because of it", "4"),
    ],
)
def test_the_last_answer_that_is_not_taken_back_counts(reply: str, answer: str) -> None:
    assert extracted(reply) == answer
