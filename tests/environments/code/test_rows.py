"""Rows of published data sets as tasks; each kind is graded with its own reference."""

from __future__ import annotations

import asyncio
import base64
import json
import math
import pickle
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from quintain.cli import main as command_line
from quintain.errors import UsageError
from quintain.registry.binding import check_args
from quintain_authoring import EnvironmentSuite, run_episode
from quintain_env_code import OUTCOMES, Code, Grader, task_of
from quintain_env_code.check import main
from quintain_env_code.data import fingerprint, load
from quintain_env_code.evalplus import COMPARE
from quintain_env_code.names import solution_names, suite_tests
from quintain_sandbox import Bubblewrap, Docker, Landlock, Rlimits

from ...lanes import mostly_slow

MBPP: dict[str, Any] = {
    "text": "Write a function to add.", "code": "import math\r\ndef add(a, b=1):\r\n  return a + b",
    "task_id": 601,
    "test_setup_code": "", "test_list": ["assert add(1, 2) == 3",
    "assert math.isclose(add(0.5), 1.5)"],
    "challenge_test_list": ["assert add('a', 'b') == 'ab'"],
}  # fmt: skip
SANITIZED = {
    "prompt": "Add.", "code": "def sum(a, b):\n    return a + b\n", "task_id": 2,
    "test_imports": ["import math"],
    "test_list": ["assert math.floor(sum(1, 2)) == 3"],
}  # fmt: skip
HUMAN_EVAL = {
    "task_id": "HumanEval/0",
    "prompt": "from typing import List\n\n\ndef half(x):\n    return x / 2\n\n\n"
    'def mean(xs: List[float]) -> float:\n    """Mean."""\n',
    "canonical_solution": "    return sum(xs) / len(xs)\n",
    "test": "METADATA = {}\n\n\ndef check(candidate):\n    assert half(candidate([1, 3])) == 1\n",
    "entry_point": "mean",
}
EVAL_PLUS = {
    "task_id": "HumanEval/1", "prompt": "def scale(xs, by):\n", "entry_point": "scale",
    "atol": 1e-6,
    "canonical_solution": "    return [x * by for x in xs]\n", "base_input": [[[1, 2], 2]],
    "plus_input": [[[], 0.1], [[0.3], 3]],
}  # fmt: skip
APPS = {
    "question": "Add two numbers.", "difficulty": "interview", "starter_code": "",
    "input_output": json.dumps({"inputs": ["1 2\n", ["3", "4"]], "outputs": ["3\n", ["7"]]}),
    "solutions": json.dumps(["print(sum(int(x) for x in open(0).read().split()))"]),
}  # fmt: skip
CALLED = {
    "question": "Double.",
    "starter_code": "class Solution:\n    def double(self, x: List[int]):\n        ",
    "input_output": json.dumps({"fn_name": "double", "inputs": [[[1]], [[2, 3]]], "outputs": [[[1,
    1]], [2, 3, 2, 3]]}),
    "solutions": json.dumps(["class Solution:\n    def double(self, x: List[int]):\n        return x + x\n"]),
}  # fmt: skip
LIVE = {
    "question_title": "t", "question_content": "Echo.", "question_id": "abc_1",
    "difficulty": "hard",
    "starter_code": "", "public_test_cases": json.dumps([{"input": "1", "output": "1",
    "testtype": "stdin"}]),
    "private_test_cases": json.dumps([{"input": "2", "output": "2", "testtype": "stdin"}]),
    "metadata": "{}",
}  # fmt: skip
FUNCTIONAL = {
    **LIVE,
    "starter_code": "class Solution:\n    def twice(self, n: int, s: str) -> int:\n        ",
    "public_test_cases": json.dumps([{"input": '2\n"a"', "output": "4", "testtype": "functional"}]),
    "private_test_cases": "[]", "metadata": json.dumps({"func_name": "twice"}),
}  # fmt: skip
OWN = {
    "prompt": "One.",
    "tests": ["assert one() == 1"],
    "solution": "def one():\n    return 1\n",
    "level": 2,
}
PROGRAM = {
    "prompt": "Echo.",
    "inputs": ["5\n"],
    "outputs": ["5"],
    "solution": "print(input())",
    "weights": [1],
}
SHELL = {**PROGRAM, "language": "bash", "solution": "read x; echo $x"}
MODULES = {
    "prompt": "Two modules.", "files": ["a.py", "b.py"],
    "solution": {"a.py": "ONE = 1\n", "b.py": "from a import ONE\n\ndef one():\n    return ONE\n"},
    "suite": {"test_b.py": "from b import one\n\ndef test_one():\n    assert one() == 1\n"},
}  # fmt: skip
CODE_CONTESTS = {
    "name": "1_A. Sum", "description": "Add.", "difficulty": 7, "time_limit": {"seconds": 2,
    "nanos": 500000000},
    "memory_limit_bytes": 256000000, "input_file": "", "output_file": "",
    "public_tests": {"input": ["1 2\n"], "output": ["3\n"]}, "private_tests": {"input": ["3 4"],
    "output": ["7"]},
    "generated_tests": {"input": [], "output": []},
    "solutions": {"language": [2, 3], "solution": ["int main(){}",
    "print(sum(map(int, input().split())))"]},
}  # fmt: skip
CODEFORCES = {
    "id": "1/A", "title": "Split", "description": "Split n.", "input_format": "n",
    "output_format": "Two numbers.",
    "note": None, "examples": [{"input": "5", "output": "2 3"}], "rating": 900, "time_limit": 1.0,
    "memory_limit": 256.0,
    "official_tests": [{"input": "5", "output": "2 3"}, {"input": "9", "output": "4 5"}],
    "input_mode": "stdio",
    "interaction_format": None, "generated_checker": "import sys\ngiven, expected, printed = "
    "(list(map(int, open(name).read().split())) for name in sys.argv[1:])\n"
    "print(1 if sum(printed) == given[0] and len(printed) == len(expected) else 0)\n",
}  # fmt: skip
PRIME = {
    "problem_id": "vfc_1", "task_type": "verifiable_code", "prompt": "Add.",
    "gold_standard_solution": "So:\n```python\nprint(sum(map(int, input().split())))\n```\n",
    "verification_info": json.dumps({"language": "python", "test_cases": [
        {"type": "stdin_stdout", "input": "1 2\n", "output": "3\n", "fn_name": None}
    ]}),
}  # fmt: skip
PRIME_CALL = {
    "problem_id": "vfc_2", "problem": "Double.",
    "gold_standard_solution": "def double(x):\n    return 2 * x\n",
    "verification_info": {"language": "python", "test_cases": [
        {"type": "function_call", "fn_name": "double", "input": [2], "output": [4]},
        {"type": "function_call", "fn_name": "double", "input": [3], "output": 6},
    ]},
}  # fmt: skip
TOLERANT = {
    **PROGRAM, "inputs": ["7"], "outputs": [["2.333333", "7/3"]], "tolerance": 1e-5,
    "solution": "print(int(input()) / 3)",
}  # fmt: skip
WITH_REFERENCE = {
    "mbpp": MBPP, "sanitized": SANITIZED, "human_eval": HUMAN_EVAL, "eval_plus": EVAL_PLUS,
    "apps": APPS,
    "called": CALLED, "own": OWN, "program": PROGRAM, "shell": SHELL, "modules": MODULES,
    "code_contests": CODE_CONTESTS, "prime": PRIME, "prime_call": PRIME_CALL, "tolerant": TOLERANT,
}  # fmt: skip


@pytest.mark.parametrize("name", WITH_REFERENCE)
def test_the_reference_of_each_format_passes(sandbox: Bubblewrap, name: str) -> None:
    task = task_of(WITH_REFERENCE[name], "row 1")
    grade = asyncio.run(Grader(sandbox).grade(task, task.solution))
    assert grade.score == 1.0, grade
    assert grade.outcome == "passed", grade


@pytest.mark.parametrize(
    ("row", "code"),
    [
        (FUNCTIONAL, "class Solution:\n    def twice(self, n, s):\n        return n * 2\n"),
        (LIVE, "print(input())"),
        (CODEFORCES, "n = int(input())\nprint(1, n - 1)\n"),
        (HUMAN_EVAL, "def mean(xs: List[float]) -> float:\n    return sum(xs) / len(xs)\n"),
    ],
)
def test_a_solution_of_ones_own_passes(
    sandbox: Bubblewrap, row: Mapping[str, Any], code: str
) -> None:
    """Names that the head of the prompt defines are there, whether the solution repeats them or
    not.
    """
    task = task_of(row, "row 1")
    grade = asyncio.run(Grader(sandbox).grade(task, {task.files[0]: code}))
    assert grade.score == 1.0, grade
    assert grade.outcome == "passed", grade


@pytest.mark.parametrize(
    "layout", mostly_slow(["apps", "live_code_bench", "prime"], ["live_code_bench", "apps"])
)
def test_a_tuple_is_as_good_as_the_list_that_json_has(sandbox: Bubblewrap, layout: str) -> None:
    """As in the graders that come with the data: APPS looks two levels deep, LiveCodeBench one.

    What is shown of the tests does not have the helper.
    """
    expected = [[1, 2], 3]
    call = {"type": "function_call", "fn_name": "f", "input": [1], "output": expected}
    live = {"input": "1", "output": json.dumps(expected), "testtype": "functional"}
    row: dict[str, Any] = {
        "apps": {
            "question": "Q",
            "input_output": {"fn_name": "f", "inputs": [[1]], "outputs": [expected]},
        },
        "live_code_bench": {
            **FUNCTIONAL,
            "starter_code": "def f(x):",
            "public_test_cases": json.dumps([live]),
            "metadata": json.dumps({"func_name": "f"}),
        },
        "prime": {**PRIME_CALL, "verification_info": {"test_cases": [call]}},
    }[layout]
    deeper = layout != "live_code_bench"
    replies = {
        "[[1, 2], 3]": True,
        "([1, 2], 3)": True,
        "((1, 2), 3)": deeper,
        "[(1, 2), 3]": deeper,
        "((1, 2), 4)": False,
        "{1: 2}": False,
        "((1, (2,)), 3)": False,
        "type('L', (list,), {})([[1, 2], 3])": False,
    }
    task = task_of(row, "row 1", 1)
    assert "_listed" not in str(task.prompt)
    assert "assert f(*[1]) == [[1, 2], 3]" in str(task.prompt)

    async def passes() -> dict[str, bool]:
        grader = Grader(sandbox)
        grades = {
            reply: await grader.once(task, {"solution.py": f"def f(x):\n    return {reply}\n"})
            for reply in replies
        }
        return {reply: grade.score == 1 for reply, grade in grades.items()}

    assert asyncio.run(passes()) == replies


INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("value", "expected", "same"),
    [
        (INF, INF, True),
        (-INF, -INF, True),
        (NAN, NAN, True),
        (0.0, INF, False),
        (-INF, INF, False),
        (10**400, INF, False),
        (1e308, -INF, False),
        (0.0, NAN, False),
        (NAN, 0.0, False),
        (INF, 0.0, False),
        ([0.0, 7.0], [INF, 7.0], False),
        ([INF, 7.0000001], [INF, 7.0], True),
        ({"a": (5, -5.0)}, {"a": (5, -INF)}, False),
        (0.3, 0.1 + 0.2, True),
        (3, 3.0, True),
        (0.31, 0.3, False),
    ],
)
def test_eval_plus_compares_finite_numbers_only_within_a_tolerance(
    value: Any, expected: Any, same: bool
) -> None:
    """The tolerance is relative, so that of infinity would accept everything."""
    space: dict[str, Any] = {"math": math}
    exec(COMPARE, space)
    assert same == space["_same"](value, expected, 1e-6)


def test_a_finite_number_is_not_the_infinity_of_the_reference(sandbox: Bubblewrap) -> None:
    row = {**EVAL_PLUS, "prompt": "def f(x):\n", "entry_point": "f", "base_input": [[0.0], [2.0]],
    "plus_input": [],
           "canonical_solution": "    return [1 / x if x else float('inf'), 7.0]\n"}  # fmt: skip
    task = task_of(row, "row 1")
    for code, score in (
        (task.solution["solution.py"], 1),
        ("def f(x):\n    return [1 / x if x else -5, 7.0]\n", 0),
    ):
        assert score == asyncio.run(Grader(sandbox).grade(task, {"solution.py": code})).score


def test_helpers_of_the_prompt_are_not_the_solutions_to_redefine(sandbox: Bubblewrap) -> None:
    """Tests that use them get those of the data set."""
    task = task_of(HUMAN_EVAL, "row 1")
    cheat = "def half(x):\n    return 1\ndef mean(xs):\n    return 0\n"
    grade = asyncio.run(Grader(sandbox).grade(task, {"solution.py": cheat}))
    assert grade.score == 0.0, grade
    assert grade.outcome == "failed", grade


def test_the_prompt_hides_tests_unless_the_row_or_the_caller_shows_them() -> None:
    shown, hidden = str(task_of(MBPP, "").prompt), str(task_of(MBPP, "", 0).prompt)
    assert "assert add(1, 2) == 3" in shown
    assert "isclose" not in shown
    assert "assert" not in hidden
    assert "`def add(a, b=1)`" in hidden
    for row in (HUMAN_EVAL, EVAL_PLUS, APPS, CALLED, LIVE, OWN, PROGRAM, MODULES):
        task = task_of(row, "")
        assert "assert" not in str(task.prompt)
        assert not any(f"\n{case.stdout.strip()}\n" in str(task.prompt) for case in task.cases)
    assert "assert one() == 1" in str(task_of(OWN, "", 1).prompt)
    assert "Input:\n```\n5\n```" in str(task_of(PROGRAM, "", 1).prompt)
    assert "def test_one" in str(task_of(MODULES, "", 1).prompt)


def compressed(value: object) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(value))).decode()


def test_compressed_cases_are_read_and_no_pickle_is_loaded(tmp_path: Path) -> None:
    """As LiveCodeBench stores them; instructions that could do anything are refused before one is
    followed.
    """
    cases = json.dumps([{"input": "2" * 70000, "output": "é", "testtype": "stdin"}])
    assert task_of({**LIVE, "private_test_cases": compressed(cases)}, "").cases[1].stdout == "é"

    class Touches:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "touched",)

    for hostile in (Touches(), [cases, Touches()], [cases], (cases, cases), {"a": 1}, 5, None):
        with pytest.raises(UsageError, match="pickle of more than one text|never loaded"):
            task_of({**LIVE, "private_test_cases": compressed(hostile)}, "row 7")
    assert not (tmp_path / "touched").exists()
    for broken in (
        compressed(cases)[:-40],
        base64.b64encode(zlib.compress(b"cos\nsystem\n")).decode(),
        "a",
    ):
        with pytest.raises(UsageError, match="row 7: private_test_cases"):
            task_of({**LIVE, "private_test_cases": broken}, "row 7")


def test_a_generated_checker_of_codeforces_decides(sandbox: Bubblewrap) -> None:
    """It takes the expected output before that of the program, and prints its verdict."""
    task = task_of(CODEFORCES, "row 1")
    assert len(task.cases) == 2
    assert task.level == 900.0
    for code, score in (
        ("print(2, 3)", 0),
        ("print('x')", 0),
        ("n = int(input())\nprint(n, 0)", 1),
    ):
        assert score == asyncio.run(Grader(sandbox).once(task, {"solution.py": code})).score


def test_the_tolerance_of_the_environment_holds_where_a_row_has_none(tmp_path: Path) -> None:
    file = write(tmp_path / "rows.jsonl", PROGRAM, TOLERANT, OWN)
    wide = Code(data=file, splits="test", tolerance=0.5, sandbox=None)  # type: ignore[arg-type]
    assert {0.5, 1e-5, 0.0} == {task.absolute_error for task in wide.tasks("test")}


@pytest.mark.more
def test_contest_rows_that_cannot_run_here_are_counted_and_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Files and interaction; the other rows load, and `check` runs their references."""
    unsupported = (
        {**CODE_CONTESTS, "input_file": "in.txt"},
        {**CODEFORCES, "interaction_format": "Ask."},
        {**CODEFORCES, "input_mode": "file"},
    )
    file = write(tmp_path / "rows.jsonl", *unsupported, CODE_CONTESTS)
    assert [task_of(CODE_CONTESTS, "").cases] == [task.cases for task in load(file, "test", "test")]
    assert (
        f"3 rows of {file} left out as not supported, the first {file}:1: the program reads"
        in caplog.text
    )
    checked = CliRunner().invoke(main, ["check", "--data", file])
    assert checked.exit_code == 1
    assert "4 rows, 1 can be used, 3 left out (3 unsupported)" in checked.output
    assert "correct or remove" not in checked.output
    assert "--out FILE" not in checked.output


def test_levels_and_sources_are_those_of_the_row() -> None:
    assert tuple(task_of(row, "").level for row in (APPS, LIVE, OWN)) == (2.0, 3.0, 2.0)
    assert task_of(MBPP, "").source == "mbpp 601"
    assert task_of(LIVE, "").source == "abc_1"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([1], "is no JSON object"),
        ({"prompt": "?"}, "has the keys prompt; expected MBPP"),
        ({**MBPP, "test_list": [], "challenge_test_list": []}, "has no tests"),
        ({**MBPP, "test_list": ["assert ("]}, "the tests are no Python"),
        ({**MBPP, "test_list": [1]}, "'1' is a int; expected text"),
        ({**MBPP, "code": ["x"]}, "expected text"),
        ({**LIVE, "private_test_cases": "eJxrYJmqwQABaWBT"}, "neither JSON nor compressed"),
        ({**CODE_CONTESTS, "input_file": "in.txt"}, "reads or writes a file"),
        (
            {**CODEFORCES, "interaction_format": "Ask."},
            "is interactive, and the row has no interactor",
        ),
        ({**CODEFORCES, "input_mode": "file"}, "input_mode is 'file'; only 'stdio'"),
        (
            {**PRIME, "verification_info": {"ground_truth": "5"}},
            "are of the types none; expected stdin_stdout",
        ),
        (
            {**PROGRAM, "tolerance": "small"},
            "tolerance is 'small'; expected a number, or {.absolute.: 1e-6",
        ),
        (
            {**PROGRAM, "checker": ["x"]},
            "checker is a list; expected source, or source by file name",
        ),
        ({**PROGRAM, "checker": {"check.rb": "x"}}, "'check.rb' has no known suffix"),
        ({**APPS, "input_output": "{"}, "JSONDecodeError"),
        ({**APPS, "input_output": json.dumps({"inputs": ["1"], "outputs": []})}, "zip"),
        ({**PROGRAM, "language": "cobol"}, "the language 'cobol' needs `argv`"),
        ({**PROGRAM, "weights": [0.5]}, "weights sum to 0.5"),
        (
            {**PROGRAM, "weights": "half"},
            "weights is 'half'; expected a number, or for weights a list of them",
        ),
        ({**PROGRAM, "cpu_seconds": "long"}, "cpu_seconds is 'long'; expected a number"),
        ({**PROGRAM, "outputs": []}, "outputs 0; expected one output for each input"),
        ({"prompt": "?", "tests": "assert f() == 1"}, "tests is a str; expected a list of texts"),
        ({**OWN, "soluton": "x"}, "unknown key 'soluton'; did you mean 'solution'"),
        ({**PROGRAM, "cpu_second": 1}, "unknown key 'cpu_second'; did you mean 'cpu_seconds'"),
        ({**MODULES, "tags": ["x"]}, "unknown key 'tags'.*begin with _ or go into `metadata`"),
        ({**OWN, "in_place": "no"}, "in_place is 'no'; expected true or false"),
        ({**OWN, "level": "hrad"}, "level is 'hrad', which is no number; did you mean 'hard'"),
        ({**OWN, "setup": 5}, "'5' is a int; expected text"),
        ({**PROGRAM, "argv": "python3 x.py"}, "argv is a str; expected a list of texts"),
        ({**MODULES, "files": "a.py"}, "files is a str; expected a list of texts"),
        ({**MODULES, "suite": ["x"]}, "suite is a list; expected source by file name"),
        (
            {"prompt": "?", "test": ["assert f()"]},
            "has the keys prompt, test; did you mean 'tests' for 'test'",
        ),
        ({**MODULES, "files": ["json.py", "b.py"]}, "name of a module of Python"),
        ({**MODULES, "files": ["a.py", "a.py"]}, "expected distinct names"),
        ({**MODULES, "suite": {"test_b.py": "def ("}}, "test_b.py is no Python"),
        ({**MODULES, "suite": {"b.py": "x = 1"}}, "has no tests"),
    ],
)
def test_a_bad_row_is_named(row: Any, message: str) -> None:
    with pytest.raises(UsageError, match=f"row 7.*{message}"):
        task_of(row, "row 7")


def write(path: Path, *rows: Any) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def named(n: int, **more: Any) -> dict[str, Any]:
    return {
        **OWN,
        "prompt": f"Return {n}.",
        "tests": [f"assert one() != {n} - 1"],
        "id": f"row {n}",
        **more,
    }


def test_the_splits_of_a_file_are_disjoint_and_fixed(tmp_path: Path) -> None:
    rows = [named(n) for n in range(2, 32)]
    forward = write(tmp_path / "a.jsonl", *rows)
    backward = write(tmp_path / "b.jsonl", *reversed(rows))
    splits = {s: {t.id for t in load(forward, s)} for s in ("train", "dev", "test")}
    assert [len(ids) for ids in splits.values()] == [24, 3, 3]
    assert len(set.union(*splits.values())) == 30
    assert splits == {s: {t.id for t in load(backward, s)} for s in splits}
    assert [len(load(forward, s, "test")) for s in ("test", "train")] == [30, 0]


def test_mbpp_keeps_its_splits_and_rows_may_name_theirs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Who evaluates a file learns that some of its rows are left to training."""
    rows = [
        {**MBPP, "task_id": n, "test_list": [f"assert add({n}) == {n + 1}"]}
        for n in (5, 11, 510, 511, 600, 601, 974)
    ]
    file = write(tmp_path / "mbpp.jsonl", *rows)
    found = {s: [t.source for t in load(file, s)] for s in ("train", "dev", "test")}
    assert found == {
        "train": ["mbpp 601", "mbpp 974"],
        "dev": ["mbpp 511", "mbpp 600"],
        "test": ["mbpp 11", "mbpp 510"],
    }
    assert [
        f"code: 2 of 7 rows of {file} are the split test; splits=test makes it all"
    ] == caplog.messages
    assert len(load(file, "test", "test")) == 7
    own = write(tmp_path / "own.jsonl", named(3, split="test"), named(4, split="train"))
    assert [t.source for t in load(own, "test")] == ["row 3"]


def test_keys_of_ones_own_and_columns_of_the_hub_are_left_alone() -> None:
    assert task_of(OWN, "") == task_of({**OWN, "_note": 1, "metadata": {"any": "thing"}}, "")
    assert task_of(OWN, "") == task_of({**OWN, "n_tokens": 5}, "", written=False)


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        (("train", "tset"), "rows.jsonl:2: there is no split 'tset'; did you mean 'test'"),
        (("train", None), "rows.jsonl:2 has no split, and other rows of the file have one"),
        (("train", 3), "rows.jsonl:2: there is no split 3; known: dev, test, train"),
    ],
)
def test_a_split_that_would_never_be_read_is_named(
    tmp_path: Path, splits: tuple[Any, ...], message: str
) -> None:
    rows = [
        named(n, **({} if split is None else {"split": split})) for n, split in enumerate(splits, 3)
    ]
    file = write(tmp_path / "rows.jsonl", *rows)
    with pytest.raises(UsageError, match=message):
        load(file, "test")
    with pytest.raises(UsageError, match="there is no split 'validation'"):
        load(file, "validation")


def test_a_row_of_a_folder_that_names_another_split_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "test.jsonl", named(3, split="test"), named(4, split="train"))
    with pytest.raises(
        UsageError, match=r"test.jsonl:2: its split is 'train', and the file is that of 'test'"
    ):
        load(str(tmp_path), "test")


def test_a_folder_has_a_file_for_each_split(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", named(3), named(3), named(4))
    assert len(load(str(tmp_path), "train")) == 2
    assert load(str(tmp_path), "dev") == ()
    with pytest.raises(UsageError, match=r"there is no file .*test\.jsonl"):
        load(str(tmp_path), "test")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("./no.jsonl", "there is no file or folder './no.jsonl'; name one with --arg data=FILE"),
        ("/no/where/rows.jsonl", "nor a folder '/no/where'; name one with --arg data=FILE"),
        ("", "data is empty; name a file of JSON lines"),
    ],
)
def test_missing_data_is_named(data: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Also by the command line, which says so before it starts a sandbox."""
    with pytest.raises(UsageError, match=message):
        list(Code(data=data, sandbox=None).tasks("test"))  # type: ignore[arg-type]
    assert command_line(["eval", "code", "--data", data, "--engine", "@oracle"]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert "sandbox" not in said


def test_the_nearest_file_is_named(tmp_path: Path) -> None:
    write(tmp_path / "rows.jsonl", OWN)
    with pytest.raises(UsageError, match=r"did you mean '.*/rows.jsonl'\?"):
        load(str(tmp_path / "rosw.jsonl"), "test")


def test_an_unknown_guarantee_is_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the environment and by the service, in an evaluation and in a dry run."""
    data = write(tmp_path / "rows.jsonl", OWN)
    message = "enforce has 'tme', which is no guarantee; did you mean 'time'?"
    assert (
        command_line(
            ["eval", "code", "--data", data, "--engine", "@oracle", "--arg", 'enforce=["tme"]']
        )
        == 2
    )
    assert f"environment 'code': {message}" in capsys.readouterr().err
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        f'[[environments]]\nuse = "code"\nargs = {{ data = "{data}" }}\n'
        '[services.sandbox]\nuse = "sandbox"\nargs = { enforce = ["tme"] }\n'
    )
    assert command_line(["train", str(recipe), "--dry-run"]) == 2
    assert f"[services.sandbox]: {message}" in capsys.readouterr().err
    for provider in (Docker, Bubblewrap, Landlock, Rlimits):
        with pytest.raises(UsageError, match="did you mean 'time'"):
            check_args(provider, {"enforce": ["tme"]})


def test_bad_lines_and_empty_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text("{}\n{\n")
    with pytest.raises(UsageError, match=r"bad.jsonl:2: not JSON"):
        load(str(tmp_path / "bad.jsonl"), "test")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(UsageError, match="holds no lines"):
        load(str(tmp_path / "empty.jsonl"), "test")


def test_a_data_set_that_cannot_be_had_is_named() -> None:
    """Tests run offline: the error says why, and what to name instead."""
    with pytest.raises(
        UsageError, match=r"'nobody/nothing:main' is no file.*HF_HUB_OFFLINE.*--arg data=FILE"
    ):
        load("nobody/nothing:main", "test")


@pytest.mark.parametrize(
    ("setup", "test", "reference", "names", "imports"),
    [
        ("", "assert f(1) == 2", "", ("f",), ""),
        ("x = 1", "assert f(x) == g(len('a'))", "def f(): pass", ("f", "g"), ""),
        ("", "assert sum(1, 2) == abs(-3)", "def sum(a, b): return a + b", ("sum",), ""),
        (
            "",
            "assert math.isclose(f(1), 2)",
            "import math\ndef f(x): return x",
            ("f",),
            "import math",
        ),
        (
            "",
            "assert sqrt(f(1)) == 2",
            "from math import sqrt as sqrt",
            ("f",),
            "from math import sqrt as sqrt",
        ),
        ("", "assert np.f(1) == 2", "import numpy as np", (), "import numpy as np"),
        ("import copy", "def check(g):\n    assert g(copy.copy(1)) == 1\ncheck(f)", "", ("f",), ""),
        (
            "",
            "[f(i) for i in range(3)]\ntry: f()\nexcept E as e: print(e)",
            "class E(Exception): pass",
            ("E", "f"),
            "",
        ),
        ("", "len = f\nassert len(1)", "def len(x): pass", ("f",), ""),
        ("", "assert f(1)", "def (", ("f",), ""),
    ],
)
def test_the_tests_and_the_reference_say_which_names_are_the_solutions(
    setup: str, test: str, reference: str, names: tuple[str, ...], imports: str
) -> None:
    assert (names, imports) == solution_names(setup, (test,), reference)


def test_the_tests_of_a_suite_are_counted_before_it_runs() -> None:
    text = (
        "def test_a(): pass\ndef helper(): pass\nclass TestB:\n    def test_c(self): pass\n    def "
        "other(self): pass\n"
    )
    text += "class Case(unittest.TestCase):\n    def test_d(self): pass\nclass Plain:\n    def test_e(self): pass\n"
    suite = {
        "test_x.py": text,
        "conftest.py": "def test_no(): pass",
        "sub/y_test.py": "async def test_f(): pass",
    }
    expected = (
        "sub/y_test.py::test_f",
        "test_x.py::test_a",
        "test_x.py::TestB::test_c",
        "test_x.py::Case::test_d",
    )
    assert expected == suite_tests(suite)


def test_check_lists_the_rows_that_cannot_be_used(sandbox: Bubblewrap, tmp_path: Path) -> None:
    """The file that it writes leaves them out."""
    wrong = {**OWN, "prompt": "Two.", "tests": ["assert one() == 2"], "id": "wrong"}
    odd = {**OWN, "prompt": "Odd.", "tests": ["assert one(object()) == 1"], "id": "odd"}
    odd["solution"] = "def one(x):\n    return 1\n"
    data, out = write(tmp_path / "rows.jsonl", OWN, wrong, odd), tmp_path / "out.json"
    found = CliRunner().invoke(main, ["check", "--data", data, "--out", str(out)])
    if "enforce" in found.output:
        pytest.skip(found.output)
    assert found.exit_code == 1, found.output
    assert "3 rows, 1 can be used, 2 left out (1 failed, 1 unsupported)" in found.output
    assert f"{data}:2  failed       wrong" in found.output
    assert f"{data}:3  unsupported  odd" in found.output
    assert {
        row["source"]: row["reason"].partition(":")[0]
        for row in json.loads(out.read_text()).values()
    } == {"wrong": "failed", "odd": "unsupported"}
    code = Code(data=data, splits="test", left_out=str(out), sandbox=sandbox)
    assert [str(t.prompt).partition("\n")[0] for t in code.tasks("test")] == ["One."]
    with pytest.raises(UsageError, match="is no file of `quintain-code check`"):
        list(Code(data=data, left_out=data, sandbox=sandbox).tasks("test"))


def test_check_prints_a_table_or_json_without_a_file(sandbox: Bubblewrap, tmp_path: Path) -> None:
    """Rows that no loading would accept are listed, too, and the sandbox is not asked for them."""
    data = write(
        tmp_path / "rows.jsonl",
        OWN,
        {**OWN, "soluton": ""},
        {"prompt": "No reference.", "tests": ["assert f()"]},
    )
    found = CliRunner().invoke(main, ["check", "--data", data, "--json"])
    if "enforce" in found.output:
        pytest.skip(found.output)
    report = json.loads(found.stdout)
    assert found.exit_code == 1
    assert report["rows"] == 3
    assert report["usable"] == 1
    assert [(f"{data}:2", "unreadable"), (f"{data}:3", "no reference")] == [
        (row["row"], row["outcome"]) for row in report["left_out"]
    ]
    assert "did you mean 'solution'" in report["left_out"][0]["reason"]
    bad = write(tmp_path / "bad.jsonl", {"prompt": "?"})
    table = CliRunner().invoke(main, ["check", "--data", bad])
    assert table.exit_code == 1
    assert f"{bad}:1  unreadable" in table.output
    assert "no data set with them loads" in table.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--data", "no.jsonl"], "there is no file or folder 'no.jsonl'"),
        (["--data", "{here}"], "has none of train.jsonl, dev.jsonl, test.jsonl"),
        (["--data", "{here}/empty.jsonl"], "holds no lines"),
        (["--data", "{here}/empty.jsonl", "--out", "{here}/no/out.json"], "there is no folder"),
    ],
)
def test_check_says_in_one_line_why_it_did_not_run(
    tmp_path: Path, options: list[str], message: str
) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    found = CliRunner().invoke(
        main, ["check", *(option.format(here=tmp_path) for option in options)]
    )
    assert found.exit_code == 2
    assert message in found.output
    assert found.output.count("\n") == 1


def test_a_fingerprint_does_not_depend_on_the_prompt() -> None:
    assert fingerprint(task_of(MBPP, "")) == fingerprint(task_of(MBPP, "", 0))
    assert fingerprint(task_of(MBPP, "")) != fingerprint(
        task_of({**MBPP, "test_list": ["assert add(1) == 2"]}, "")
    )


def test_the_command_line_evaluates_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], sandbox: Bubblewrap
) -> None:
    """With the control `oracle` every row scores 1, and one whose reference fails is a failure of
    ours, left out.
    """
    wrong = {**OWN, "prompt": "Two.", "tests": ["assert one() == 2"], "id": "wrong"}
    file = write(tmp_path / "rows.jsonl", MBPP, MODULES, APPS, wrong)
    service = [
        "--service-arg",
        "sandbox.enforce=[]",
        "--service-arg",
        'sandbox.providers=["bubblewrap"]',
    ]
    options = ["--engine", "@oracle", "--max-failures", "0.3", "--json", *service]
    assert command_line(["eval", "code", "--data", file, "--split", "test", *options]) == 0
    assert json.loads(capsys.readouterr().out)["tasks"] == 1
    assert command_line(["eval", "code", "--data", file, *options]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["tasks"] == 4, "without --split all rows count"
    assert found["pass@1"] == 1.0
    assert found["rollouts"] == 4
    assert found["failed"] == 1
    assert found["terminations"] == {"reward_error": 1, "finished": 3}
    assert "wrong: its own reference does not pass: failed" in next(iter(found["failures"]))
    shares = {
        name: found["metrics"][f"passes_tests.{name}"]
        for name in ("passed", "tests_passed", "no_code")
    }
    assert shares == {"passed": 1.0, "tests_passed": 1.0, "no_code": 0.0}


class TestCode(EnvironmentSuite):
    environment = Code
    args = {"data": str(Path(__file__).parent / "rows")}
    episodes = 2
    sample = 20

    @classmethod
    def services(cls) -> Mapping[str, Any]:
        return {**super().services(), "sandbox": Bubblewrap(slots=2, enforce=())}


def test_the_reward_grades_so_that_sampling_does_not_wait(
    sandbox: Bubblewrap, tmp_path: Path
) -> None:
    """The episode ends with the reply; outcome and share of tests are parts of the score."""
    row = {**OWN, "tests": ["assert one() == 1", "assert one() > 0"], "weights": [0.75, 0.25]}
    code = Code(data=write(tmp_path / "rows.jsonl", row), splits="test", sandbox=sandbox)
    (task,) = code.tasks("test")
    for reply, score, outcome, share in (
        (code.oracle(task, ()), 1.0, "passed", 1.0),
        ("def one():\n    return 2\n", 0.25, "failed", 0.5),
        ("```python\n", 0.0, "no_code", 0.0),
    ):
        played = run_episode(code, task, reply, services={"sandbox": sandbox})
        assert played.result is None
        assert played.outcome is not None
        assert score == played.outcome.total, played.outcome.reason
        shares = {name: float(name == outcome) for name in OUTCOMES} | {"tests_passed": share}
        assert {
            "passes_tests": score,
            **{f"passes_tests.{n}": x for n, x in shares.items()},
        } == played.outcome.parts


def test_seconds_override_those_of_the_rows(tmp_path: Path) -> None:
    file = write(tmp_path / "rows.jsonl", OWN)
    (task,) = Code(data=file, splits="test", sandbox=None).tasks("test")  # type: ignore[arg-type]
    (quick,) = Code(data=file, splits="test", cpu_seconds=0.5, sandbox=None).tasks("test")  # type: ignore[arg-type]
    assert task.cpu_seconds == 5.0
    assert quick.cpu_seconds == 0.5
    assert replace(task, cpu_seconds=0.5, id="") == quick


@pytest.mark.ci
@pytest.mark.keeps("test")
@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_every_valid_row_of_mbpp_accepts_its_reference(
    sandbox: Bubblewrap, real_data: Path, split: str
) -> None:
    rows = load(str(real_data / "mbpp" / "mbpp.jsonl"), split)
    # The tests of row 123 take several seconds, and twice that where a core is shared.
    tasks = [replace(task, cpu_seconds=60.0) for task in rows]
    grader = Grader(sandbox)

    async def grades() -> dict[str, str]:
        room = asyncio.Semaphore(4)

        async def one(task: Any) -> tuple[str, str]:
            async with room:
                grade = await grader.once(task, task.solution)
                return task.source, f"{grade.outcome}: {grade.reason}"

        return dict(await asyncio.gather(*map(one, tasks)))

    assert {
        source: said for source, said in asyncio.run(grades()).items() if said != "passed: "
    } == {}
