"""Competition problems from small local files, one for each kind of answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quintain.errors import UsageError
from quintain.testing import rollout
from quintain_authoring import EnvironmentSuite
from quintain_env_math import AIME, Math
from quintain_env_math.competition import REQUESTS, kind_of

HERE = Path(__file__).parent / "competition"


class TestMath(EnvironmentSuite):
    environment = Math
    args = {"data": str(HERE / "math"), "dev": 3}
    episodes = 24


class TestAIME(EnvironmentSuite):
    environment = AIME
    args = {"data": str(HERE / "aime.jsonl")}


def test_the_local_file_has_every_kind_and_each_is_scored_by_its_rule() -> None:
    tasks = {t.kind: t for t in Math(data=str(HERE / "math"), dev=1).tasks("test")}
    assert set(tasks) == set(REQUESTS)
    cases: dict[str, tuple[str, str]] = {  # an equal answer in another notation, and a wrong one
        "number": ("0.75", "\\frac{4}{3}"),
        "expression": ("(x+1)^2", "x^2+1"),
        "choice": ("\\text{(C)}", "B"),
        "interval": ("-2 \\le x < 5", "(-2,5)"),
        "set": ("x=3 \\text{ or } x=-2", "\\{3\\}"),
        "tuple": ("x=1, y=-4", "(-4,1)"),
        "matrix": (
            "\\begin{bmatrix}0&-1\\\\1&0\\end{bmatrix}",
            "\\begin{pmatrix}0&1\\\\-1&0\\end{pmatrix}",
        ),
        "text": ("Hyperbola", "\\text{parabola}"),
    }
    for kind, (right, wrong) in cases.items():
        for answer, score in ((right, 1), (wrong, 0)):
            assert Math.reward.score(rollout(tasks[kind], f"\\boxed{{{answer}}}")).total == score, (
                kind,
                answer,
            )


@pytest.mark.parametrize(
    ("answer", "kind"),
    [("-12", "number"), ("\\frac{1}{2}", "number"), ("2\\sqrt{3}", "expression"), ("[0,1)",
    "interval"),
     ("(-\\infty,2)\\cup(3,4]", "interval"), ("(1,2)", "tuple"), ("\\{1,2\\}", "set"), ("\\pm 3",
     "set"),
     ("\\begin{pmatrix}1\\\\2\\end{pmatrix}", "matrix"), ("\\text{even}", "text"), ("x+1",
     "expression")],
)  # fmt: skip
def test_the_kind_follows_from_the_form(answer: str, kind: str) -> None:
    assert kind_of(answer) == kind


def write(path: Path, *rows: Any) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def many(*rows: Any) -> tuple[Any, ...]:
    return (*rows, *({"problem": f"What is {n} + 1?", "answer": n + 1} for n in range(20)))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"answer": "5"}, "no problem"),
        ({"problem": "?"}, "no answer"),
        ({"problem": "?", "solution": "it is 5"}, "no answer"),
        ({"problem": "?", "answer": "5", "kind": "guess"}, "kind 'guess'"),
        ({"problem": "?", "answer": "Z", "choices": ["1", "2"]}, "none of its choices"),
        ("text", "a str; expected {"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, row: Any, message: str) -> None:
    with pytest.raises(UsageError, match=f"math: .*rows.jsonl:1: .*{message}"):
        list(Math(data=write(tmp_path / "rows.jsonl", *many(row))).tasks("train"))


def test_unreadable_answers_are_reported_at_load_or_left_out(tmp_path: Path) -> None:
    bad = [{"problem": f"broken {n}?", "answer": f"\\frac{{{n}"} for n in range(40)]
    path = write(tmp_path / "rows.jsonl", *many(*bad))
    with pytest.raises(UsageError, match="cannot be verified.*unreadable=drop"):
        list(Math(data=path).tasks("train"))
    kept = list(Math(data=path, unreadable="drop").tasks("train"))
    assert kept
    assert all(str(t.answer).isdigit() for t in kept)


def test_the_answer_of_a_solution_is_its_last_box_and_demonstrations_keep_it(
    tmp_path: Path,
) -> None:
    rows = [
        {"problem": f"p{n}?", "solution": f"First \\boxed{{0}}, no: it is $\\boxed{{{n}}}$."}
        for n in range(20)
    ]
    environment = Math(data=write(tmp_path / "rows.jsonl", *rows))
    for task, demonstration in zip(
        environment.tasks("train"), environment.demonstrations("train"), strict=True
    ):
        assert task.prompt.split("?")[0] == f"p{task.answer}"
        assert demonstration.reply == task.solution


def test_choices_are_shown_with_letters(tmp_path: Path) -> None:
    rows = [
        {"problem": f"{n}: which is even?", "answer": a, "choices": ["1", "4", "7"]}
        for n, a in enumerate([1, "B", "4"] * 7)
    ]
    tasks = list(Math(data=write(tmp_path / "rows.jsonl", *rows)).tasks("train"))
    assert {t.answer for t in tasks} == {"B"}
    assert "(A) 1\n(B) 4\n(C) 7" in str(tasks[0].prompt)


def test_kinds_select(tmp_path: Path) -> None:
    environment = Math(data=str(HERE / "math"), dev=1, kinds=("interval", "matrix"))
    assert {t.kind for t in environment.tasks("test")} == {"interval", "matrix"}
    with pytest.raises(UsageError, match="unknown kinds"):
        Math(kinds=("guess",))


def test_a_file_of_another_year_may_be_all_test(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", *many({"problem": "?", "answer": "204"}))
    assert len(list(AIME(data=path, splits="test").tasks("test"))) == len(
        list(many({"problem": "?", "answer": "204"}))
    )


def test_aime_refuses_other_answers(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="0 to 999"):
        list(
            AIME(
                data=write(tmp_path / "rows.jsonl", *many({"problem": "?", "answer": "1000"}))
            ).tasks("train")
        )
    with pytest.raises(UsageError, match="no problems to train on"):
        list(AIME().tasks("train"))
