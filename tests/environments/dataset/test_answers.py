"""`same_answer`: what equals an answer of each kind, and what does not; the kind that a file has."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintain import Environment, Rollout, Task, reward
from quintain.errors import UsageError
from quintain.evaluation import AnswerControls, respelled
from quintain.testing import rollout
from quintain_authoring.controls import check_controls
from quintain_env_dataset import Dataset, Row, same_answer
from quintain_env_dataset import environment as dataset_environment
from quintain_env_dataset.dates import date_key
from quintain_env_dataset.kinds import kind_of
from quintain_env_dataset.quantities import whole_quantity
from quintain_env_dataset.spelling import plain

NUMBERS: list[tuple[Any, str, float]] = [
    (3.5, "3.50", 1.0),
    ("3.50", "\\boxed{3.5}", 1.0),
    ("5 km", "5 m", 0.0),
    ("5 km", "5", 0.0),
    ("5 km", "\\boxed{5 kilometers}", 1.0),
    ("5 km", "5 km/h", 0.0),
    ("5 km", "The answer is 5 km.", 1.0),
    ("12%", "0.12", 1.0),
    ("12%", "12", 0.0),
    ("12%", "12 percent", 1.0),
    ("12", "12%", 1.0),
    ("$40", "40 dollars", 1.0),
    ("$40", "€40", 0.0),
    ("€40", "40 euros", 1.0),
    ("$1,250.50", "The total is $1,250.50.", 1.0),
    ("1 1/2", "1.5", 1.0),
    ("1 1/2", "\\boxed{1\\frac{1}{2}}", 1.0),
    ("1.5e3", "1500", 1.0),
    ("1.5e3", "1.5 \\times 10^3", 1.0),
    ("10^{-3}", "0.001", 1.0),
    ("\\frac{3}{4}", "0.75", 1.0),
    ("\\frac{3}{4}", "\\boxed{\\dfrac34}", 1.0),
    ("\\frac{3}{4}", "4", 0.0),
    ("3/4", "\\boxed{4/3}", 0.0),
    ("1,5", "1,5", 1.0),
    ("1,5", "1.5", 1.0),
    (2.5, "2,5", 0.0),
    ("1,500", "1500", 1.0),
    ("1,500", "1,5", 0.0),
    (1000000, "10,00,000", 1.0),
    (1000000, "1 000 000", 1.0),
    (1000000, "1'000'000", 1.0),
    (1000000, "1.000.000", 0.0),
    ("\uff15", "5", 1.0),
    (5, "five", 0.0),
    (5, "5!", 0.0),
    (72, "#### 72 apples", 1.0),
    (72, "#### 72.5", 0.0),
    (72, "The answer is 72 because 70+2=72.", 1.0),
    (72, "The answer is 72, not 27.", 1.0),
    (72, "It is 72 or 73", 0.0),
    (73, "It is 72 or 73", 0.0),
    (72, "The answer is 70+2=72.", 1.0),
    (72, "between 71 and 72", 0.0),
    (6, "\\boxed{5}. No: the answer is 6", 1.0),
    (5, "\\boxed{5}. No: the answer is 6", 0.0),
    (5, "#### 5\nSo the answer is 6", 0.0),
    (5, "\\boxed{x=5}", 1.0),
    (5, "\\boxed{5 or 6}", 0.0),
    (5, "It is not 5", 0.0),
    (5, "5 is wrong", 1.0),
    (5, "<answer>\n5\n</answer>", 1.0),
    (5, "Final Answer: **5**", 1.0),
    (5, "**Answer:** 5", 1.0),
    (5, "Answer: $5$.", 1.0),
    (5, "\\[ \\boxed{5} \\]", 1.0),
    (5, "\\boxed{5}\n\\boxed{6}", 0.0),
    (-3, "3", 0.0),
    (-3, "\\boxed{-3}", 1.0),
    (0, "-0", 1.0),
    (0, "0.0", 1.0),
    (15, "2024-01-15", 0.0),
    (4, "10:04", 0.0),
    (11, "Apollo 11", 1.0),
    (3, "2\\sqrt{3}", 0.0),
]

DATES: list[tuple[Any, str, float]] = [
    ("2024-01-15", "January 15, 2024", 1.0),
    ("2024-01-15", "\\boxed{15 January 2024}", 1.0),
    ("2024-01-15", "2024-01-16", 0.0),
    ("2024-01-15", "15", 0.0),
    ("5/17/2018", "May 17, 2018", 1.0),
    ("5/6/2018", "6/5/2018", 0.0),
    ("5/6/2018", "05/06/2018", 1.0),
    ("10:30", "10:30 AM", 1.0),
    ("10:30", "10:30 PM", 0.0),
    ("10:30", "30", 0.0),
    ("3.11.4", "v3.11.4", 1.0),
    ("3.11.4", "3.11.40", 0.0),
    ("3.11.4", "4", 0.0),
    ("10:30", "The answer is 10:30.", 1.0),
]

WORDS: list[tuple[Any, str, float]] = [
    ("Apollo 11", "11", 0.0),
    ("Apollo 11", "The answer is Apollo 11.", 1.0),
    ("Apollo 11", "apollo 11", 1.0),
    ("Apollo 11", "**Apollo 11**", 1.0),
    ("Paris", "Paris, France", 0.0),
    ("Paris", "It is Paris", 0.0),
    ("Paris", "paris", 1.0),
    ("Paris", '"Paris"', 1.0),
    ("Paris", "`Paris`", 1.0),
    ("Paris", "Answer: **Paris**.", 1.0),
    ("Paris", "**Answer**: Paris", 1.0),
    ("Paris", "The answer is not Paris", 0.0),
    ("Paris", "\\boxed{Paris}.", 1.0),
    ("Paris", "\\boxed{\\textbf{Paris}}", 1.0),
    ("Paris", "The answer is: Paris", 1.0),
    ("Paris", "The final answer is Paris. It is the capital of France.", 1.0),
    ("Paris", "The answer is Paris or Rome.", 0.0),
    ("Paris", "<answer>Paris</answer>", 1.0),
    ("Paris", "<answer>Paris", 1.0),
    ("Paris", "## Answer\nParis", 1.0),
    ("Paris", "I think so.\n\nParis", 1.0),
    ("the Nile", "Nile", 1.0),
    ("Nile", "The answer is the Nile.", 1.0),
    ("Straße", "STRASSE", 1.0),
    ("O'Brien", "O\u2019Brien", 1.0),
    ("Jean-Paul", "Jean\u2011Paul", 1.0),
    ("C++", "C", 0.0),
    ("C++", "C++", 1.0),
    ("Co", "CO", 0.0),
    ("O(n)", "o(n)", 0.0),
    ("O(n)", "O(n)", 1.0),
    ("H2O", "\\boxed{H2O}", 1.0),
    ("H2O", "H₂O", 0.0),
    ("true", "True", 1.0),
    (True, "True", 1.0),
    (True, "true", 1.0),
    (True, "1", 0.0),
    (False, "True", 0.0),
    ("yes", "Yes.", 1.0),
    ("yes", "Yes, it is", 0.0),
    ("No", "NO", 0.0),
    ("no", "No", 1.0),
    ("St. Louis", "The answer is St. Louis.", 1.0),
    ("U.S.", "The answer is U.S.", 1.0),
    ("10 Downing Street", "10 Downing Street", 1.0),
    ("10 Downing Street", "10", 0.0),
    ("7 dwarfs", "8 dwarfs", 0.0),
    ("Fahrenheit 451", "Celsius 451", 0.0),
    ("1984", "1984", 1.0),
    ("Because of Winn-Dixie", "The answer is Because of Winn-Dixie.", 1.0),
    ("Yahoo!", "Yahoo", 1.0),
    ("e.g.", "e.g.", 1.0),
    ("naïve", "naïve", 1.0),
    ("東京", "東京。", 1.0),
    ("Müller", "MÜLLER", 1.0),
    ("a", "A", 1.0),
    ("x", "X", 0.0),
]

CHOICES: list[tuple[Any, str, float]] = [
    ("C", "C", 1.0),
    ("C", "c", 1.0),
    ("C", "C. Lima", 1.0),
    ("C", "(C) Lima", 1.0),
    ("C", "C: Lima", 1.0),
    ("C", "Option C", 1.0),
    ("C", "The answer is (C).", 1.0),
    ("C", "The answer is C because it fits.", 1.0),
    ("C", "The correct answer is **C**", 1.0),
    ("C", "C or D", 0.0),
    ("A", "A. B. C.", 0.0),
    ("A", "A: 5 and B: 6", 0.0),
    ("A", "A. No, C", 0.0),
    ("B", "B. or A", 0.0),
    ("C", "D", 0.0),
    ("C", "\\boxed{C}", 1.0),
    ("C", "\\boxed{\\text{C}}", 1.0),
    ("C", "\\boxed{(C)}", 1.0),
    ("(C)", "C", 1.0),
    ("C", "Cat", 0.0),
    ("C", "Answer: C\n", 1.0),
    ("A", "A. A boat floats.", 1.0),
    ("C", "<answer>C</answer>", 1.0),
    ("C", "#### C", 1.0),
    ("C", "A, B, C", 0.0),
    ("C", "Final answer: C) Lima", 1.0),
]

FORMULAS: list[tuple[Any, str, float]] = [
    ("2\\sqrt{3}", "\\boxed{\\sqrt{12}}", 1.0),
    ("2\\sqrt{3}", "The answer is $2\\sqrt{3}$.", 1.0),
    ("2\\sqrt{3}", "2\\sqrt{5}", 0.0),
    ("x^2+1", "x^2 + 1", 1.0),
    ("x^2+1", "\\boxed{1+x^2}", 1.0),
    ("(x+1)^2", "\\boxed{x^2+2x+1}", 1.0),
    ("(x+1)^2", "2", 0.0),
    ("2x", "\\boxed{x+x}", 1.0),
    ("2x", "2y", 0.0),
    ("\\pi", "\\boxed{\\pi}", 1.0),
    ("\\pi/2", "\\boxed{\\frac{\\pi}{2}}", 1.0),
    ("y = 2x + 1", "\\boxed{y=2x+1}", 1.0),
    ("x=5", "\\boxed{5}", 1.0),
    ("\\text{even}", "even", 1.0),
    ("E = mc^2", "E = mc^2", 1.0),
    (
        "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}",
        "\\boxed{\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}}",
        1.0,
    ),
    ("2^{10}", "1024", 1.0),
    ("\\$5", "\\boxed{5}", 0.0),
    ("5!", "120", 1.0),
    ("5!", "5", 0.0),
]

SEQUENCES: list[tuple[Any, str, float]] = [
    ("(1, 2)", "(1,2)", 1.0),
    ("(1, 2)", "(2, 1)", 0.0),
    ("(1, 2)", "\\boxed{\\left(1,2\\right)}", 1.0),
    ("(1, 2)", "2", 0.0),
    ("[0, 5)", "[0,5)", 1.0),
    ("[0, 5)", "[0, 5]", 0.0),
    ("[0, 5)", "(0, 5)", 0.0),
    ("\\{1, 2\\}", "\\boxed{\\{2, 1\\}}", 1.0),
    ("1, 2", "2, 1", 1.0),
    ("1, 2", "\\boxed{1,2}", 1.0),
    ("(-\\infty, 3]", "\\boxed{(-\\infty,3]}", 1.0),
    ("(1, 2)", "The answer is (1, 2).", 1.0),
    ("(1, \\pi)", "\\boxed{(1,\\pi)}", 1.0),
    ("(0.5, 2)", "\\boxed{(1/2, 2)}", 1.0),
]

LISTS: list[tuple[Any, str, float]] = [
    (["Lima", "Ciudad de los Reyes"], "The answer is Ciudad de los Reyes.", 1.0),
    (["Lima", "X"], "Rome", 0.0),
    (["Lima", "X"], "Lima and X", 0.0),
    (["1,200", "1200 people"], "1200", 1.0),
    (["May 5, 2020"], "2020-05-05", 1.0),
    (["the Beatles"], "Beatles", 1.0),
    ([42], "42", 1.0),
    ([42], "[42]", 1.0),
    ([1, 2, 3], "[1, 2, 3]", 1.0),
    ([1, 2, 3], "[1,2,3.0]", 1.0),
    ([1, 2, 3], "[3,2,1]", 0.0),
    ([1, 2, 3], "1, 2, 3", 0.0),
    ("['Lima', 'Callao']", "Callao", 1.0),
    ('["Lima"]', "Lima", 1.0),
    ("[1, 4, 9]", "[2, 3, 9]", 0.0),
    ("[1, 4, 9]", "\\boxed{[1,4,9]}", 1.0),
    (["a", "b"], '["a", "b"]', 1.0),
    ({"text": ["Lima"], "answer_start": [3]}, "Lima", 1.0),
    ({"value": "Lima", "aliases": ["Lima city"]}, "Lima City", 1.0),
]

JSON: list[tuple[Any, str, float]] = [
    ({"a": 1, "b": 2}, '```json\n{"b": 2, "a": 1}\n```', 1.0),
    ({"a": 1, "b": 2}, '{\n "a": 1,\n "b": 2\n}', 1.0),
    ({"a": 1}, '{"a": 1, "b": 2}', 0.0),
    ({"a": 1}, '{"a": true}', 0.0),
    ({"a": 1}, "2", 0.0),
    ({"a": 1}, '{"a": 1, "a": 1}', 0.0),
    ({"a": {"b": [1, None]}}, '<answer>{"a": {"b": [1, null]}}</answer>', 1.0),
    ({"a": "é"}, '{"a": "é"}', 1.0),
    ({"a": 1}, 'The answer is {"a": 1}.', 1.0),
    ({"a": 1}, '\\boxed{{"a": 1}}', 1.0),
    ('{"a": 1}', '{"a":1}', 1.0),
    ({"a": 1}, 'Answer:\n```json\n{"a": 1}\n```', 1.0),
]

SOLUTIONS: list[tuple[Any, str, float]] = [
    ("so 12.\n#### 12", "The answer is 12", 1.0),
    ("so 12.\n#### 12", "13", 0.0),
    ("thus \\boxed{2\\sqrt{3}}.", "\\boxed{2\\sqrt{3}}", 1.0),
    ("#### 12", "so 12.\n#### 12", 1.0),
    (5, "- 5", 1.0),
    (3, "8 - 5 = 3", 1.0),
    ("Lima", "- Lima", 1.0),
    (1200, "#### 1,200, all told", 1.0),
    (5, "It isn't 5", 0.0),
    ("-5", "\\boxed{- 5}", 1.0),
    (5, "If the answer is 7, x=2.\n\n5", 1.0),
]

NOTHING: list[tuple[Any, str, float]] = [
    ("5", "", 0.0),
    ("5", "\\boxed{}", 0.0),
    ("5", "\\boxed{5", 0.0),
    ("5", "####", 0.0),
    ("Paris", "Answer:", 0.0),
]


def score_of(answer: Any, reply: str, kind: str = "") -> float:
    return same_answer.score(rollout(Row(prompt="?", answer=answer, kind=kind), reply)).total


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QUINTAIN_CACHE", str(tmp_path / "cache"))
    dataset_environment._loaded.cache_clear()
    yield
    dataset_environment._loaded.cache_clear()


@pytest.mark.parametrize(
    ("answer", "reply", "score"),
    [*NUMBERS, *DATES, *WORDS, *CHOICES, *SEQUENCES, *LISTS, *JSON, *SOLUTIONS, *NOTHING],
)
def test_a_reply_scores_one_if_it_states_the_answer(answer: Any, reply: str, score: float) -> None:
    assert score_of(answer, reply) == score


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ("6 pm", "'6 pm' for '18:00'; --arg kind=exact wants this form"),
        ("18:00", ""),
        ("The answer is 18:00.", ""),
        ("6:00", "'6:00' is not '18:00' (date)"),
    ],
)
def test_a_right_time_in_another_form_than_the_files_is_said(reply: str, reason: str) -> None:
    """Training would else move away from the form of the file unseen."""
    task = Row(prompt="?", answer="18:00", kind="date")
    assert same_answer.score(rollout(task, reply)).reason == reason


@pytest.mark.keeps("0", "2", "3")
@pytest.mark.parametrize(
    ("answer", "reply", "score"), FORMULAS, ids=[str(i) for i in range(len(FORMULAS))]
)
def test_formulas_are_compared_as_mathematics(answer: str, reply: str, score: float) -> None:
    assert score_of(answer, reply) == score


def rows_of(answers: Sequence[Any]) -> list[dict[str, Any]]:
    return [{"question": f"Question {i}?", "answer": a} for i, a in enumerate(answers)]


def file_of(answers: Sequence[Any]) -> str:
    lines = (json.dumps(row) + "\n" for row in rows_of(answers))
    Path("qa.jsonl").write_text("".join(lines))
    return "qa.jsonl"


FILES: Mapping[str, Sequence[Any]] = {
    "numbers": [3, -7, 0.5, "1,200", "5 km", "12%", "$40", "1/2", "1 1/2", "1e-7", "3.5e4", "0"],
    "decimal commas": ["1,5", "0,25", "10,080", "1.234,5 kg", "-3,75", "8,2"],
    "choices": list("ABCDABCD"),
    "words": [
        "Lima",
        "Apollo 11",
        "New York",
        "no",
        "São Paulo",
        "U.S.",
        "the Nile",
        "C",
        "Yahoo!",
    ],
    "dates": ["1932-03-19", "5 May 2020", "10:30", "5/17/2018", "3.11.4", "May 2020", "5 pm"],
    "versions": ["3.10", "3.11.4", "3.1", "2.0.0-rc1"],
    "sequences": ["(1, 2)", "[0, 5)", "\\{1, 2\\}", "2, 3", "(-\\infty, 3]", "(1/2, 0.5)"],
    "accepted": [["Lima", "Ciudad de los Reyes"], ["1945"], ["the Beatles", "Beatles"], '["Oslo"]'],
    "json": [{"a": 1, "b": [True, None]}, [1, 4, 9], {"name": "Lima", "of": {"x": "}"}}],
    "solutions": ["He pays 3*4=<<3*4=12>>12.\n#### 12", "So 5 km.\n#### 1,250", "Thus \\boxed{7}."],
}
MATHEMATICS = [
    "2\\sqrt{3}", "(x+1)^2", "\\pi", "5", "x=5", "\\frac{\\pi}{2}", "f(x)=2x", "\\text{even}", "2^{10}",
    "\\infty", "(1, \\pi)", "10,080", "1,2", "\\$32,\\!348", "90^\\circ", "x^2+1", "E = mc^2",
]  # fmt: skip


def wrong_controls(environment: Environment[Any, Any], split: str = "train") -> dict[str, str]:
    checks = asyncio.run(check_controls(environment, split=split))
    return {check.name: check.wrong for check in checks if check.wrong}


@pytest.mark.parametrize("name", FILES)
def test_controls_of_both_signs_hold_for_a_file_of_each_kind(name: str) -> None:
    """Of 12 copies, so that the split has each answer."""
    assert wrong_controls(Dataset(path=file_of([*FILES[name]] * 12))) == {}


@pytest.mark.more
def test_controls_of_both_signs_hold_for_formulas() -> None:
    assert wrong_controls(Dataset(path=file_of(MATHEMATICS * 6))) == {}


def old_answer(text: str) -> str:
    """What was compared before: the last number of the last line, also of the reference."""
    numbers = re.findall(r"\d+", text.rpartition("boxed")[2])
    return numbers[-1] if numbers else text.strip(" .")


@reward(range=(0, 1))
def last_number(rollout: Rollout[Task, Any]) -> float:
    return float(old_answer(rollout.reply) == old_answer(str(rollout.task.answer)))


class Reduced(AnswerControls, Environment[Task, None]):
    reward = last_number

    def tasks(self, split: str) -> Iterator[Task]:
        for i, answer in enumerate(["5 km", "Apollo 11", "1932-03-19", "Lima"]):
            yield Task(prompt=f"Question {i}?", answer=answer)


def test_the_controls_see_a_reward_that_compares_the_last_number() -> None:
    """`oracle` and `nop` do not."""
    wrong = wrong_controls(Reduced())

    assert "oracle" not in wrong
    assert "nop" not in wrong
    assert "rewarded on 3 tasks" in wrong["same_last_number"]
    assert "not on 1 task" in wrong["in_a_sentence"]


def test_a_reward_of_ones_own_has_no_mark_for_boxes() -> None:
    own = Dataset(path=file_of(["Lima", "Oslo"] * 9)).overridden(reward=last_number)
    marks = own.control_marks()

    assert marks["in_a_box"] == marks["in_a_sentence"] == marks["same_length"] == ""
    assert marks["oracle"] == "max"


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ([5, "5 km", 6, 7], "4 numbers, 1 with a unit: compared by value and unit"),
        (["1,5", "2,25", "3,5"], "3 numbers: compared by value, with decimal commas"),
        (list("ABC"), "3 choices: compared by letter"),
        (["Lima", "C", "Oslo"], "3 words or phrases: compared as text"),
        (["Lima", "Oslo", "Lima", "C"] * 2, "8 words or phrases, 3 different: compared as text"),
        (["Lima", "Oslo"] * 3, "6 words or phrases, 2 different: compared as text"),
        (["3.10", "3.11.4"], "2 dates, times or versions: compared part by part"),
        ([["a", "b"], ["c"]], "2 lists of accepted answers: compared with each of them"),
        ([{"a": 1}], "1 JSON value: compared as JSON"),
        (["x^2"], "1 formula: compared as mathematics (math_equal)"),
        ([1, 2, 3, 4, 5, 6, 7, 8, 9, "n/a"], "1 word or phrase: compared as text, without case, a "
         "first article and marks at the ends (first: qa.jsonl:10)"),
        ([1, "so it is, " * 40], "1 long text: compared as text, which a reply hardly repeats (first: qa.jsonl:2)"),
        (["so\n#### 5"], "of 1 worked solutions what their mark has is compared"),
    ],
)  # fmt: skip
def test_the_first_screen_says_how_answers_are_compared(
    answers: Sequence[Any], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        list(Dataset(path=file_of(answers)).tasks("train"))

    assert said in caplog.text


@pytest.mark.parametrize(
    ("answers", "kinds"),
    [
        (["1,500", "2,25"], {"number, decimal comma"}),
        (["1,500", "2.25"], {"number"}),
        (["5/6/2018", "5/17/2018"], {"date, month first"}),
        (["5/6/2018", "17/5/2018"], {"date, day first"}),
        (["5/6/2018", "17/5/2018", "5/17/2018"], {"date"}),
        (["3.10", "3.11.4"], {"date"}),
        (["3.10", "3.11"], {"number"}),
        (["C", "D"], {"choice"}),
        (["C", "Oslo", "Lima"], {"words"}),
        ([["1,5"], "1,25"], {"accepted, decimal comma", "number, decimal comma"}),
    ],
)
def test_all_rows_decide_what_one_leaves_open(answers: Sequence[Any], kinds: set[str]) -> None:
    environment = Dataset(path=file_of(answers))
    tasks = [task for split in ("train", "dev", "test") for task in environment.tasks(split)]

    assert {task.kind for task in tasks} == kinds


@pytest.mark.parametrize(
    ("answer", "reply", "kind", "score"),
    [
        ("1,500", "1.5", "number, decimal comma", 1.0),
        ("1,500", "1500", "number, decimal comma", 0.0),
        ("5/6/2018", "5 June 2018", "date, day first", 1.0),
        ("5/6/2018", "5 June 2018", "date, month first", 0.0),
        ("3.10", "3.1", "date", 0.0),
        ("3.10", "3.1", "number", 1.0),
        ("5 km", "5 KM.", "words", 1.0),
        ("5 km", "5", "words", 0.0),
        ("C", "C. Lima", "words", 0.0),
        ("x+1", "1+x", "words", 0.0),
        ("cats", "cats", "exact", 1.0),
        ("cats", "<answer> cats\n</answer>", "exact", 1.0),
        ("cats", "So the answer is: cats", "exact", 1.0),
        ("cats", "the cats", "exact", 0.0),
        ("cats", "Cats", "exact", 0.0),
        ("cats", "cats.", "exact", 0.0),
        ("12", "12.0", "exact", 0.0),
        ("caf\u00e9", "cafe\u0301", "exact", 1.0),
        ("one\ntwo", "one\ntwo", "exact", 1.0),
        ("one\ntwo", "two", "exact", 0.0),
    ],
)
def test_a_kind_that_is_named_decides(answer: str, reply: str, kind: str, score: float) -> None:
    assert score_of(answer, reply, kind) == score


def test_rows_that_do_not_fit_the_named_kind_are_refused_with_their_lines() -> None:
    path = file_of([1, "Lima", 3, "n/a"])

    with pytest.raises(UsageError, match="2 faults") as raised:
        list(Dataset(path=path, kind="number").tasks("train"))

    assert "qa.jsonl:2: the answer is 'Lima'; expected a number" in str(raised.value)
    assert "qa.jsonl:4: the answer is 'n/a'; expected a number" in str(raised.value)


@pytest.mark.parametrize("kind", ["numbers", "number, comma", "date day first"])
def test_an_unknown_kind_names_those_there_are(kind: str) -> None:
    with pytest.raises(UsageError, match=r"expected one of number, choice, words"):
        Dataset(path="qa.jsonl", kind=kind)


def test_a_worked_solution_is_demonstrated_whole() -> None:
    environment = Dataset(path=file_of(["First 2.\n#### 12"] * 3))

    replies = [d.reply for d in environment.demonstrations("train")]

    assert replies == ["First 2.\n#### 12"] * len(replies)
    assert replies


def test_formulas_without_the_extra_name_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset_environment, "needs_math", lambda: True)

    with pytest.raises(UsageError, match=r"pip install 'quintain-env-dataset\[math\]'"):
        list(Dataset(path=file_of(["x^2", "5"])).tasks("train"))


@given(st.text("0123456789.,- /eE%$km()[]\\{}^x\u2212\u0660\u00bd", max_size=30))
def test_any_text_is_of_a_kind_and_equals_itself(text: str) -> None:
    assert kind_of(text)
    assert plain(plain(text)) is not None
    assert date_key(text) == date_key(text)


@given(st.fractions(), st.sampled_from(["", " km", "%", " apples"]))
def test_a_number_is_read_back(number: Fraction, unit: str) -> None:
    read = whole_quantity(f"{number}{unit}")
    assert read is not None
    assert read[0] == number


@given(st.text(max_size=40))
def test_one_spelling_is_kept(text: str) -> None:
    assert respelled(respelled(text)) == respelled(text)
