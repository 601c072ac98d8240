"""Arithmetic, countdown and GSM8K."""

from __future__ import annotations

import ast
import json
import os
import socket
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintain.errors import UsageError
from quintain.testing import rollout
from quintain_authoring import EnvironmentSuite
from quintain_env_math import GSM8K, Arithmetic, Countdown
from quintain_env_math.arithmetic import Problem, right_digits, right_number, worked
from quintain_env_math.countdown import LONGEST, evaluate, reaches_target
from quintain_env_math.final import marked_answer
from quintain_env_math.rows import carved
from quintain_env_math.splits import split_of

DATA = Path(os.environ.get("QUINTAIN_DATA", "")) / "gsm8k"
needs_data = pytest.mark.skipif(
    not os.environ.get("QUINTAIN_DATA") or not DATA.is_dir(),
    reason="QUINTAIN_DATA has no gsm8k folder",
)


class TestArithmetic(EnvironmentSuite):
    environment = Arithmetic


class TestEveryOperation(EnvironmentSuite):
    environment = Arithmetic
    args = {"operations": "+-*", "levels": (3,), "seed": 5}


class TestCountdown(EnvironmentSuite):
    environment = Countdown


def of(text: str) -> Problem:
    operation = next(c for c in text if c in "+-*")
    a, b = map(int, text.split(operation))
    return Problem(prompt=text, answer=str(eval_of(text)), a=a, b=b, operation=operation)


def eval_of(text: str) -> int:
    value, _ = evaluate(text)
    return int(value)


@pytest.mark.parametrize(
    ("problem", "lines"),
    [
        ("47+85", "7+5=12\n4+8+1=13\n#### 132"),
        ("10+20", "0+0=0\n1+2=3\n#### 30"),
        ("52-47", "12-7=5\n5-4-1=0\n#### 5"),
        ("100-1", "10-1=9\n10-0-1=9\n1-0-1=0\n#### 99"),
        ("47*8", "7*8=56\n4*8+5=37\n#### 376"),
    ],
)
def test_worked_columns(problem: str, lines: str) -> None:
    assert worked(of(problem)) == lines


@pytest.mark.parametrize(
    ("problem", "lines"),
    [
        ("47+85", "7+5=12\n4+8=12\n#### 122"),
        ("52-47", "12-7=5\n5-4=1\n#### 15"),
        ("47*8", "7*8=56\n4*8=32\n#### 326"),
        ("12+34", "2+4=6\n1+3=4\n#### 46"),
    ],
)
def test_a_careless_pupil_forgets_what_to_carry(problem: str, lines: str) -> None:
    assert worked(of(problem), lambda: True) == lines


def test_slips_are_the_share_of_carries_forgotten() -> None:
    def wrong(slips: float) -> float:
        environment = Arithmetic(slips=slips)
        pairs = zip(environment.tasks("train"), environment.demonstrations("train"), strict=False)
        return sum(marked_answer(d.reply) != t.answer for t, d in islice(pairs, 500)) / 500

    assert wrong(0.0) == 0
    # sums of three digits with something to carry below the first column
    assert 0.65 < wrong(1.0) < 0.8
    assert wrong(0.0) < wrong(0.5) < wrong(1.0)


@pytest.mark.parametrize(
    ("reply", "score"),
    [
        ("#### 132", 1),
        ("#### 122", 2 / 3),
        ("#### 32", 2 / 3),
        ("#### 9132", 3 / 4),
        ("#### 1320", 0),
        ("#### -132", 3 / 4),
        ("132", 0),
        ("#### x", 0),
        ("#### 132 132", 0),
        ("#### \u0661\u0663\u0662", 0),
        ("", 0),
    ],
)
def test_right_digits(reply: str, score: float) -> None:
    assert right_digits.score(rollout(of("47+85"), reply)).total == pytest.approx(score)


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.sampled_from("+-*"))
def test_every_worked_line_is_true_and_the_digits_are_the_answer(
    a: int, b: int, operation: str
) -> None:
    b = b % 10 if operation == "*" else b
    a, b = max(a, b), min(a, b)
    problem = of(f"{a}{operation}{b}")
    *columns, last = worked(problem).splitlines()
    digits = []
    for line in columns:
        left, right = line.split("=")
        assert evaluate(left)[0] == int(right)
        digits.append(right)
    read = digits[-1] + "".join(d[-1] for d in reversed(digits[:-1]))
    assert int(read) == int(problem.answer)
    assert last == f"#### {problem.answer}"


@pytest.mark.parametrize(
    ("reply", "score"),
    [
        ("#### 132", 1),
        ("7+5=12\n#### 132\n", 1),
        ("132", 0),
        ("#### 131", 0),
        ("#### 132 133", 0),
        ("#### 131\n#### 132", 0),
        ("#### 0132", 0),
        ("#### 132.", 0),
        ("####", 0),
        ("", 0),
    ],
)
def test_right_number(reply: str, score: float) -> None:
    assert right_number.score(rollout(of("47+85"), reply)).total == score


@given(st.text(alphabet="# 0123456789\n", max_size=30))
def test_no_reply_with_two_markers_is_right(text: str) -> None:
    found = marked_answer(text)
    assert (found is None) == (text.count("####") != 1) or "#####" in text


def test_held_out_splits_are_finite_distinct_and_as_large_as_asked() -> None:
    environment = Arithmetic()
    for split in ("dev", "test"):
        found = list(environment.tasks(split))
        assert len({t.id for t in found}) == len(found) == environment.size


def test_a_mirrored_sum_stays_in_its_split_for_every_seed() -> None:
    held_out = {(max(t.a, t.b), min(t.a, t.b)) for t in Arithmetic(levels=(2,)).tasks("test")}
    for seed in range(3):
        for t in islice(Arithmetic(levels=(2,), seed=seed).tasks("train"), 2000):
            assert (max(t.a, t.b), min(t.a, t.b)) not in held_out


def test_a_level_with_few_problems_gives_those_it_has() -> None:
    found = list(Arithmetic(levels=(1,)).tasks("test"))
    assert 0 < len(found) < 55
    assert all(split_of((max(t.a, t.b), "+", min(t.a, t.b))) == "test" for t in found)


def test_level_is_the_number_of_digits() -> None:
    found = list(Arithmetic(levels=(2, 5)).tasks("dev"))
    assert {t.level for t in found} == {2, 5}
    assert all(len(str(t.a)) == t.level for t in found)


@pytest.mark.parametrize(
    "bad", [{"operations": "/"}, {"operations": ""}, {"levels": ()}, {"levels": (0,)}, {"size": 0}]
)
def test_arithmetic_refuses(bad: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"arithmetic: {next(iter(bad))}"):
        Arithmetic(**bad)


@pytest.mark.parametrize(
    "bad",
    [{"levels": (1,)}, {"highest": 1}, {"targets": (5, 4)}, {"targets": (99, 100)}, {"size": 0}],
)
def test_countdown_refuses(bad: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="countdown: "):
        Countdown(**bad)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1+2*3", 7),
        ("(1+2)*3", 9),
        ("7/2", Fraction(7, 2)),
        ("8\u00f72\u00d73", 12),
        (" 2 - 5 ", -3),
        ("((((4))))", 4),
    ],
)
def test_expressions_are_exact(text: str, value: Fraction) -> None:
    assert evaluate(text)[0] == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2**9",
        "7//2",
        "-3+5",
        "int('7')",
        "1/0",
        "1/(2-2)",
        "0x10",
        "1e3",
        "1_000",
        "1.5",
        "True",
        "a",
        "(1",
        "1, 2",
        "2(3)",
        "(" * 150 + "1" + ")" * 149,
        "1+" * LONGEST + "1",
        "\u0663",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        evaluate(text)


@given(st.text(max_size=40) | st.text(alphabet="0123456789+-*/() ", max_size=60))
def test_evaluate_agrees_with_python_or_refuses(text: str) -> None:
    try:
        value, used = evaluate(text)
    except ValueError:
        return
    tree = ast.parse(text.replace("\u00d7", "*").replace("\u00f7", "/").strip(), mode="eval")
    assert sorted(used) == sorted(n.value for n in ast.walk(tree) if isinstance(n, ast.Constant))
    exact = ast.fix_missing_locations(_Exact().visit(tree))
    assert value == eval(compile(exact, "test", "eval"), {"Fraction": Fraction})


class _Exact(ast.NodeTransformer):
    def visit_Constant(self, node: ast.Constant) -> ast.Call:
        return ast.Call(func=ast.Name(id="Fraction", ctx=ast.Load()), args=[node], keywords=[])


def test_every_number_must_be_used_once() -> None:
    task = next(iter(Countdown(levels=(3,)).tasks("train")))
    good = task.answer
    assert reaches_target.score(rollout(task, f"#### {good}")).total == 1
    for bad in (f"{good}+0", f"({good})*1", str(task.target), f"{good} = {task.target}"):
        assert reaches_target.score(rollout(task, f"#### {bad}")).total == 0


@given(st.integers(0, 2**32))
def test_countdown_is_always_solvable(seed: int) -> None:
    for task in islice(Countdown(seed=seed, levels=(2, 5)).tasks("train"), 5):
        value, used = evaluate(task.answer)
        assert value == task.target
        assert sorted(used) == sorted(task.numbers)
        for step in task.steps:
            left, right = step.split("=")
            assert evaluate(left)[0] == int(right) > 0


# ---- GSM8K ---------------------------------------------------------------------------------------


def write(path: Path, count: int, start: int = 0) -> None:
    rows = [
        {
            "question": f"What is {i} more\u2028than 1000?",
            "answer": f"It is <<1000+{i}={1000 + i}>>{1000 + i}.\n#### 1,{i:03}",
        }
        for i in range(start, start + count)
    ]
    path.write_text(
        "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows), encoding="utf-8"
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "train.jsonl", 40)
    write(tmp_path / "test.jsonl", 10, start=500)
    return tmp_path


def test_dev_is_carved_from_train_whatever_the_order(folder: Path, tmp_path: Path) -> None:
    environment = GSM8K(data=str(folder), dev=7)
    sizes = {split: len(list(environment.tasks(split))) for split in ("train", "dev", "test")}
    assert sizes == {"train": 33, "dev": 7, "test": 10}
    turned = tmp_path / "turned"
    turned.mkdir()
    lines = (folder / "train.jsonl").read_text(encoding="utf-8").strip().split("\n")
    (turned / "train.jsonl").write_text("\n".join(reversed(lines)), encoding="utf-8")
    assert {t.id for t in GSM8K(data=str(turned), dev=7).tasks("dev")} == {
        t.id for t in environment.tasks("dev")
    }


def test_one_file_gives_all_three_splits(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    environment = GSM8K(data=str(folder / "train.jsonl"))
    ids = {split: {t.id for t in environment.tasks(split)} for split in ("train", "dev", "test")}
    assert {k: len(v) for k, v in ids.items()} == {"train": 32, "dev": 4, "test": 4}
    assert not ids["train"] & (ids["dev"] | ids["test"])
    assert (
        f"4 of 40 problems of {folder / 'train.jsonl'} are the split test; splits=test makes it all"
        in caplog.text
    )


def test_one_file_may_be_all_test(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    environment = GSM8K(data=str(folder / "train.jsonl"), splits="test")
    assert [len(list(environment.tasks(split))) for split in ("train", "dev", "test")] == [0, 0, 40]
    assert not caplog.text


def test_a_file_that_is_too_short_for_splits_names_the_fix(tmp_path: Path) -> None:
    write(tmp_path / "rows.jsonl", 2)
    with pytest.raises(
        UsageError, match="2 problems, too few for train, dev and test.*splits=test"
    ):
        list(GSM8K(data=str(tmp_path / "rows.jsonl")).tasks("test"))
    with pytest.raises(UsageError, match="there is no file or folder 'nowhere.jsonl'"):
        list(GSM8K(data="nowhere.jsonl").tasks("test"))


def test_answer_and_solution_are_cleaned(folder: Path) -> None:
    task = next(iter(GSM8K(data=str(folder), dev=1).tasks("test")))
    assert task.answer == "1500"
    assert task.solution == "It is 1500."


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        '{"question": "q"}',
        '{"question": "q", "answer": "no number"}',
        '{"question": "q", "answer": "#### nan"}',
        "[1]",
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str) -> None:
    write(tmp_path / "rows.jsonl", 3)
    with (tmp_path / "rows.jsonl").open("a", encoding="utf-8") as f:
        f.write(line)
    with pytest.raises(UsageError, match="rows.jsonl:4"):
        list(GSM8K(data=str(tmp_path / "rows.jsonl")).tasks("train"))


def test_without_network_the_fix_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub is asked once, and the library's own cache is looked through."""
    config = pytest.importorskip("datasets.config", reason="needs quintain-env-math[hub]")

    def refuse(address: Any, *args: Any, **more: Any) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(config, "HF_DATASETS_CACHE", tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    for name in ("https_proxy", "all_proxy", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UsageError) as raised:
        list(GSM8K().tasks("test"))
    assert str(raised.value) == (
        "gsm8k: openai/gsm8k is not in the cache of `datasets`, and the hub does not give it "
        "(huggingface.co cannot be "
        "reached: Name or service not known). Fix: name a copy on disk, a folder with train.jsonl "
        "and test.jsonl or "
        'one file of JSON lines {"question": ..., "answer": "... #### number"}, as `data`: --arg '
        "data=FOLDER, or in a "
        'recipe args = { data = "FOLDER" }'
    )


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="train.jsonl"):
        list(GSM8K(data=str(tmp_path)).tasks("train"))
    write(tmp_path / "train.jsonl", 5)
    with pytest.raises(UsageError, match="lower `dev`"):
        list(GSM8K(data=str(tmp_path), dev=5).tasks("dev"))


@needs_data
class TestGSM8K(EnvironmentSuite):
    environment = GSM8K
    args = {"data": str(DATA)}
    sample = 50
    episodes = 4


@needs_data
def test_the_real_files_hold_what_the_paper_says() -> None:
    environment = GSM8K(data=str(DATA))
    assert [len(list(environment.tasks(s))) for s in ("train", "dev", "test")] == [
        7473 - 200,
        200,
        1319,
    ]


class Tied(NamedTuple):
    """A row whose hash is that of all others, so that a set has them in the order they came in."""

    question: str
    answer: str

    def __hash__(self) -> int:
        return 0


@pytest.mark.parametrize(
    "questions", [["same"] * 6, ["one", "two"] * 3, list("abcdef")], ids=["one", "two", "six"]
)
def test_rows_with_one_question_are_carved_whatever_their_order(questions: list[str]) -> None:
    rows = [Tied(question, str(i)) for i, question in enumerate(questions)]
    chosen = {
        tuple(carved("rows", order, 3, lambda row: row.question))
        for order in (rows, rows[::-1], rows[3:] + rows[:3])
    }
    assert len(chosen) == 1
