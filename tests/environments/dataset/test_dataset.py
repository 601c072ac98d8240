"""The environment `dataset`: formats, columns, splits and faults of people's own files."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from quintain import Environment, Message
from quintain.cli import main
from quintain.errors import UsageError
from quintain.tasks import Mixture
from quintain.testing import rollout
from quintain_authoring import EnvironmentSuite, run_episode
from quintain_env_dataset import Dataset, same_answer
from quintain_env_dataset import environment as dataset_environment
from quintain_env_dataset import readers as dataset_readers
from quintain_env_dataset.rows import RowsOnDisk

from ...core.models.tiny import save_tiny

QUESTIONS = Path(__file__).with_name("capitals.jsonl")


class TestDataset(EnvironmentSuite):
    environment = Dataset
    args = {"path": str(QUESTIONS)}


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def all_tasks(**fields: Any) -> dict[str, list[Any]]:
    return {split: list(Dataset(**fields).tasks(split)) for split in ("train", "dev", "test")}


SUMS = [{"question": f"{i}+{i}?", "answer": 2 * i} for i in range(60)]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QUINTAIN_CACHE", str(tmp_path / "cache"))


TWO = [{"question": "1,000+1?", "answer": "1001"}, {"question": "two\nlines?", "answer": "2"}]


def as_csv(path: Path) -> None:
    path.write_text('\ufeffquestion,answer\n"1,000+1?",1001\n\n"two\nlines?",2\n')


def as_tsv(path: Path) -> None:
    path.write_text('question\tanswer\n1,000+1?\t1001\n"two\nlines?"\t2\n')


def as_json(path: Path) -> None:
    path.write_text(
        json.dumps(
            [{"question": "1,000+1?", "answer": "1001"}, {"question": "two\nlines?", "answer": "2"}]
        )
    )


def as_parquet(path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    table = {"question": ["1,000+1?", "two\nlines?"], "answer": ["1001", "2"]}
    parquet.write_table(pyarrow.table(table), path)


def as_jsonl(path: Path) -> None:
    write(path, TWO)


@pytest.mark.parametrize("save", [as_csv, as_tsv, as_json, as_parquet, as_jsonl])
def test_formats_hold_the_same_rows(save: Any, tmp_path: Path) -> None:
    file = tmp_path / f"qa.{save.__name__.removeprefix('as_')}"
    save(file)

    tasks = [task for part in all_tasks(path=str(file)).values() for task in part]

    assert {("1,000+1?", "1001"), ("two\nlines?", "2")} == {(t.prompt, t.answer) for t in tasks}


def test_splits_are_cut_by_the_prompt_alone(tmp_path: Path) -> None:
    """Neither the order of the rows nor rows that are added move a prompt to another split."""
    before = all_tasks(path=write(tmp_path / "a.jsonl", SUMS[:50]))
    after = all_tasks(path=write(tmp_path / "b.jsonl", [*reversed(SUMS)]))

    assert all(before.values())
    assert sum(map(len, before.values())) == 50
    for split, tasks in before.items():
        assert {t.prompt for t in tasks} <= {t.prompt for t in after[split]}


def test_a_split_column_decides_and_a_missing_split_is_cut(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{**row, "split": "Validation" if i < 5 else "train"} for i, row in enumerate(SUMS)]

    with caplog.at_level(logging.WARNING):
        splits = all_tasks(path=write(tmp_path / "qa.jsonl", rows))

    assert {f"{i}+{i}?" for i in range(5)} == {t.prompt for t in splits["dev"]}
    assert splits["test"]
    assert "test cut from train by a hash of the prompt" in caplog.text
    assert "prompt = 'question', answer = 'answer', split = 'split'" in caplog.text


def test_a_folder_has_a_file_for_each_split(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "train.jsonl", SUMS[:20])
    write(tmp_path / "validation.jsonl", SUMS[20:25])
    write(tmp_path / "test.jsonl", [*SUMS[25:30], SUMS[0]])

    splits = all_tasks(path=str(tmp_path))

    assert [len(splits[split]) for split in ("train", "dev", "test")] == [20, 5, 6]
    assert "1 prompts are in more than one split" in caplog.text


def test_columns_with_other_names_are_chosen(tmp_path: Path) -> None:
    rows = [
        {"frage": f"{i}?", "question": "not this one", "antwort": i, "rolle": "Be brief."}
        for i in range(30)
    ]
    fields = {
        "prompt": "frage",
        "answer": "antwort",
        "system_column": "rolle",
        "suffix": "End with ####.",
    }

    task = next(iter(Dataset(path=write(tmp_path / "qa.jsonl", rows), **fields).tasks("train")))

    assert Message("system", "Be brief.") == task.prompt[0]
    assert f"{task.answer}?\n\nEnd with ####." == task.prompt[1].content
    assert task.columns["question"] == "not this one"


def shown_before(path: str, task: Any, count: int) -> list[tuple[str, str]]:
    """What the policy reads of *task* behind the rows that are shown, by role."""
    seen: list[Message] = []
    dataset = Dataset(path=path, shown=count)
    asked = next(t for split in ("train", "test") for t in dataset.tasks(split) if t.id == task.id)

    def reply(messages: list[Message]) -> str:
        seen.extend(messages)
        return "x"

    run_episode(dataset, asked, reply)
    return [(m.role, m.content) for m in seen]


COLOURS = [
    {"question": f"thing {i}", "answer": ("red", "blue", "green")[i // 8]} for i in range(24)
]


def test_rows_that_are_shown_have_different_answers_and_are_never_the_task(tmp_path: Path) -> None:
    rows = [row | {"split": "train" if i % 8 < 6 else "test"} for i, row in enumerate(COLOURS)]
    path = write(tmp_path / "things.jsonl", rows)
    dataset = Dataset(path=path)
    first, test = next(iter(dataset.tasks("train"))), next(iter(dataset.tasks("test")))

    asked = shown_before(path, test, 3)
    assert [role for role, _ in asked] == ["user", "assistant"] * 3 + ["user"]
    assert {content for role, content in asked if role == "assistant"} == {"red", "blue", "green"}
    assert asked[-1][1] == test.prompt

    of_shown = shown_before(path, first, 3)
    assert len(of_shown) == 7
    assert [content for role, content in of_shown if role == "user"].count(first.prompt) == 1


def test_no_answer_is_shown_more_often_than_the_others(tmp_path: Path) -> None:
    """A file that begins with one answer would teach that answer."""
    answers = ["red"] * 20 + ["blue"] * 5 + ["green"] * 5
    rows = [
        {"question": f"what colour has thing {i}?", "answer": answer, "split": "train"}
        for i, answer in enumerate(answers)
    ]
    rows.append(rows[0] | {"question": "and the last one?", "split": "test"})
    path = write(tmp_path / "things.jsonl", rows)
    task = next(iter(Dataset(path=path).tasks("test")))

    shown = [text for role, text in shown_before(path, task, 8) if role == "assistant"]

    assert sorted(shown.count(answer) for answer in ("red", "blue", "green")) == [2, 3, 3]


def test_shown_rows_leave_an_environment_of_one_turn(tmp_path: Path) -> None:
    """As `quintain chat` and the export to task folders take one."""
    assert Dataset.rollout is Environment.rollout
    dataset = Dataset(path=write(tmp_path / "things.jsonl", COLOURS), shown=2)
    tasks = dataset.tasks("train")
    assert [task.id for task in tasks] == [task.id for task in tasks[:]]
    assert len(tasks) == len(Dataset(path=dataset.path).tasks("train"))


def test_system_messages_stand_before_the_rows_that_are_shown(tmp_path: Path) -> None:
    rows = [row | {"system": f"system {i}"} for i, row in enumerate(COLOURS)]
    path = write(tmp_path / "things.jsonl", rows)
    task = next(iter(Dataset(path=path).tasks("test")))

    asked = shown_before(path, task, 2)

    assert [role for role, _ in asked] == [
        "system",
        *("user", "assistant") * 2,
        "user",
    ]
    assert asked[0][1] == task.prompt[0].content


def test_demonstrations_have_the_rows_that_are_shown(tmp_path: Path) -> None:
    dataset = Dataset(path=write(tmp_path / "things.jsonl", COLOURS), shown=2)
    demonstration = next(iter(dataset.demonstrations("train")))
    assert [m.role for m in demonstration.prompt] == ["user", "assistant"] * 2 + ["user"]


@pytest.mark.parametrize("shown", [-1, 17])
def test_a_number_of_rows_to_show_out_of_its_range_is_refused(shown: int, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="expected 0 to 16"):
        Dataset(path=write(tmp_path / "things.jsonl", COLOURS), shown=shown)


def test_more_rows_to_show_than_there_are_is_refused(tmp_path: Path) -> None:
    dataset = Dataset(path=write(tmp_path / "things.jsonl", COLOURS[:6]), shown=12)
    with pytest.raises(UsageError, match="shown is 12, and train has"):
        next(iter(dataset.demonstrations("train")))


MIXED = [
    {"question": "1+1?", "answer": 3, "split": "test", "more": {"a": [None, 1.5, "\u00e9"]}},
    *SUMS,
    SUMS[3],
    {"question": [{"role": "user", "content": "x"}], "answer": {"is": 1}, "split": "dev"},
]


def test_rows_on_disk_are_those_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also in the next run, which reads no line of the file; of a file that has changed, it does."""
    path = write(tmp_path / "rows.jsonl", MIXED)
    settings = {"path": path, "suffix": "Think.", "split": "split"}

    def loaded() -> tuple[dict[str, list[Any]], list[str]]:
        dataset_environment._loaded.cache_clear()
        caplog.clear()
        tasks = all_tasks(**settings)
        return tasks, [record.getMessage() for record in caplog.records]

    in_memory = loaded()
    monkeypatch.setattr(dataset_environment, "IN_MEMORY", 0)
    temporary = loaded()
    monkeypatch.setattr(dataset_environment, "LARGE", 0)
    stored = loaded()
    with monkeypatch.context() as patch:
        patch.setattr(dataset_environment, "records", None)  # nothing is read
        again = loaded()
    assert in_memory == temporary == stored == again
    assert isinstance(Dataset(**settings).tasks("train"), RowsOnDisk)

    write(tmp_path / "rows.jsonl", MIXED[:-1])
    monkeypatch.setattr(dataset_environment, "IN_MEMORY", 20_000)
    assert len(loaded()[0]["dev"]) != len(in_memory[0]["dev"])


def test_rows_on_disk_are_a_sequence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read from either end and in parts, which a resumed run does."""
    monkeypatch.setattr(dataset_environment, "IN_MEMORY", 0)
    dataset_environment._loaded.cache_clear()
    rows = Dataset(path=write(tmp_path / "rows.jsonl", SUMS)).tasks("train")
    assert isinstance(rows, RowsOnDisk)
    all_rows = list(rows)

    assert [rows[i] for i in range(-len(rows), len(rows))] == all_rows * 2
    assert rows[3:9:2] == all_rows[3:9:2]
    with pytest.raises(IndexError, match=f"row {len(rows)} of {len(rows)}"):
        rows[len(rows)]
    curriculum, resumed = (Mixture([Dataset(path=str(tmp_path / "rows.jsonl"))]) for _ in "ab")
    curriculum.pick(70)
    resumed.restore(curriculum.state())
    assert curriculum.pick(40) == resumed.pick(40)


def test_prompts_may_be_conversations(tmp_path: Path) -> None:
    talk = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "5"}]
    rows = [
        {"messages": [*talk, {"role": "user", "content": f"No {i}"}], "label": 4} for i in range(30)
    ]
    path = write(tmp_path / "qa.jsonl", rows)

    environment = Dataset(path=path)
    task = next(iter(environment.tasks("train")))
    played = run_episode(environment, task, "4")

    assert [m.role for m in task.prompt] == ["user", "assistant", "user"]
    assert played.outcome.total == 1


def test_rows_that_occur_twice_are_one_task(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    splits = all_tasks(path=write(tmp_path / "qa.jsonl", [*SUMS, *SUMS[:3]]))

    assert len(SUMS) == sum(map(len, splits.values()))
    assert "3 rows that occur twice are left out" in caplog.text


NULL = '{"question": "b", "answer": null}\n'


@pytest.mark.parametrize(
    "name, text, expected",
    [
        (
            "qa.jsonl",
            '{"question": "a", "answer": 1}\n{"question": }\n',
            "qa.jsonl:2: not JSON at column 14",
        ),
        (
            "qa.jsonl",
            '{"question": "a", "answer": 1}\n[1]\n',
            "qa.jsonl:2: a list; expected an object",
        ),
        (
            "qa.jsonl",
            '{"question": "a", "answer": 1}\n{"answer": 1}\n',
            "qa.jsonl:2 has no column 'question'",
        ),
        (
            "qa.jsonl",
            '{"question": 5, "answer": 1}\n',
            "qa.jsonl:1, column 'question' is '5'; expected text",
        ),
        (
            "qa.jsonl",
            '{"question": [{"role": "me"}], "answer": 1}\n',
            "qa.jsonl:1, column 'question', message 1 is",
        ),
        (
            "qa.jsonl",
            '{"question": "a", "split": "holdout"}\n',
            "qa.jsonl:1, column 'split' is 'holdout'; expected",
        ),
        ("qa.jsonl", '{"text": "a", "answer": 1}\n', "qa.jsonl has the columns text, answer"),
        (
            "qa.jsonl",
            '{"question": "a"}\n{"question": "b"}\n{"question": "c", "answer": null}\n',
            "rows (train) has an answer, which the reward same_answer needs",
        ),
        ("qa.jsonl", "\n", "qa.jsonl has no rows"),
        ("qa.json", '[{"question": "a",\nb}]', "qa.json:2, column 1: not JSON"),
        (
            "qa.csv",
            "question,answer\na,1,2\n",
            "qa.csv:2 has 3 fields; expected 2 (question, answer)",
        ),
        (
            "qa.csv",
            "question,question\na,1\n",
            "qa.csv:1: the columns are question, question; expected different",
        ),
        ("qa.csv", 'question,answer\n"a"b,1\n', "qa.csv:2: not CSV"),
        ("qa.parquet", "no parquet", "cannot read qa.parquet"),
        ("qa.txt", "a", "qa.txt ends in .txt; expected .jsonl"),
        (
            "qa.jsonl",
            '{"question": "a", "answer": 1}\n' * 14 + NULL,
            "qa.jsonl:15, column 'answer' is null; expected",
        ),
        (
            "qa.jsonl",
            '{"question": "a", "answer": 1}\n{"question": "b", "answer": " "}',
            "qa.jsonl:2, column 'answer' is",
        ),
        (
            "qa.jsonl",
            '{"question": "a", "answer": 1}\n{"question": "b", "answer": NaN}',
            "qa.jsonl:2, column 'answer' is",
        ),
        (
            "qa.csv",
            "question,answer\na,1\nb,\n",
            "qa.csv:3, column 'answer' is empty; expected an answer",
        ),
        (
            "qa.json",
            '[{"question": "a", "answer": 1},\n{"question": "b",\n"answer": 1},\n5]',
            "qa.json:4 is a int; expected",
        ),
        ("qa.jsonl", "[" * 100_000, "qa.jsonl:1: not JSON (nested too deep)"),
    ],
)
def test_faults_name_file_line_and_column(
    name: str, text: str, expected: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)

    with pytest.raises(UsageError) as raised:
        list(Dataset(path=name).tasks("train"))

    assert expected in str(raised.value)


def test_all_faults_are_listed_at_once(tmp_path: Path) -> None:
    """The first ten with their places, and how many there are; a row may have a fault of any
    kind.
    """
    rows = [json.dumps(row) for row in SUMS]
    rows[3], rows[7], rows[11] = '{"question": }', "[1]", '{"answer": 1}'
    rows[20:30] = ['{"question": "x", "answer": null}'] * 10
    (tmp_path / "qa.jsonl").write_text("\n".join(rows))

    with pytest.raises(UsageError) as raised:
        list(Dataset(path="qa.jsonl").tasks("train"))

    head, *lines = str(raised.value).splitlines()
    assert head == "dataset: 13 faults in qa.jsonl; the first 10:"
    assert len(lines) == 10
    for place in (
        "qa.jsonl:4: not JSON at column 14",
        "qa.jsonl:8: a list",
        "qa.jsonl:12 has no column 'question'",
    ):
        assert any(line.startswith(f"  {place}") for line in lines), lines
    (tmp_path / "qa.jsonl").write_text("\n".join(rows[:9]))
    with pytest.raises(
        UsageError, match="dataset: 2 faults:\n  qa.jsonl:4: .*\n  qa.jsonl:8: a list"
    ):
        list(Dataset(path="qa.jsonl").tasks("train"))


def test_lines_that_are_not_utf8_are_named(tmp_path: Path) -> None:
    (tmp_path / "qa.csv").write_bytes("question,answer\na,1\ncafé?,2\n".encode("latin-1"))

    with pytest.raises(
        UsageError, match=r"qa.csv:3, column 4: byte 0xe9 is not UTF-8; save the file as UTF-8"
    ):
        list(Dataset(path="qa.csv").tasks("train"))


def test_a_line_that_is_not_utf8_hides_no_other_fault(tmp_path: Path) -> None:
    """Of lines of JSON, which are read one by one; all in the order of the file."""
    lines = [b'{"question": "a", "answer": "1"}', b"{", b'{"question": "caf\xe9", "answer": "2"}']
    lines += [b'{"question": "", "answer": "3"}', b"[]"]
    Path("qa.jsonl").write_bytes(b"\n".join(lines))

    with pytest.raises(UsageError) as raised:
        list(Dataset(path="qa.jsonl").tasks("train"))

    places = re.findall(r"qa\.jsonl:(\d+)", str(raised.value))
    assert places == ["2", "3", "4", "5"]


def test_utf16_is_named(tmp_path: Path) -> None:
    Path("qa.csv").write_text("question,answer\na,1\n", encoding="utf-16")

    with pytest.raises(UsageError, match="qa.csv: UTF-16; save.*iconv -f UTF-16"):
        list(Dataset(path="qa.csv").tasks("train"))


@pytest.mark.parametrize(
    ("name", "separator"), [("qa.csv", ";"), ("qa.csv", "\t"), ("qa.tsv", ",")]
)
def test_another_separator_is_read_and_said(
    name: str, separator: str, caplog: pytest.LogCaptureFixture
) -> None:
    lines = [f"question{separator}answer", *(f"{i} and {i}?{separator}{2 * i}" for i in range(30))]
    Path(name).write_text("\n".join(lines))

    splits = all_tasks(path=name)

    assert {f"{i} and {i}?": str(2 * i) for i in range(30)} == {
        t.prompt: t.answer for p in splits.values() for t in p
    }
    assert f"its fields are separated by {separator!r}" in caplog.text


def test_a_broken_row_of_another_separator_is_named() -> None:
    Path("qa.csv").write_text("question;answer\na;1\nb;2;3\n")

    with pytest.raises(UsageError, match=r"qa.csv:3 has 3 fields; expected 2 \(question, answer\)"):
        list(Dataset(path="qa.csv").tasks("train"))


def test_what_may_be_a_mistake_is_remarked_with_the_first_place(
    caplog: pytest.LogCaptureFixture,
) -> None:
    odd = [
        {"question": "1+1?", "answer": 3},
        {"question": "a" * 400_000, "answer": 1},
        {"question": "b", "answer": {}},
    ]
    all_tasks(path=write(Path("qa.jsonl"), [*SUMS, *odd]))

    assert (
        "1 prompt has another answer in an earlier row (first: qa.jsonl:2 and qa.jsonl:61)"
        in caplog.text
    )
    assert "1 JSON value: compared as JSON (first: qa.jsonl:63)" in caplog.text
    assert "1 prompt has more than 100,000 characters (first: qa.jsonl:62, 400,000)" in caplog.text


def test_a_reward_of_ones_own_may_do_without_answers(tmp_path: Path) -> None:
    from quintain import reward

    rows = [*SUMS, {"question": "why?", "answer": None}]
    own = Dataset(path=write(tmp_path / "qa.jsonl", rows)).overridden(
        reward=reward(lambda rollout: 1.0)
    )

    assert None in [task.answer for split in ("train", "dev", "test") for task in own.tasks(split)]
    with pytest.raises(UsageError, match="qa.jsonl:61, column 'answer' is null"):
        list(
            Dataset(path=str(tmp_path / "qa.jsonl"))
            .overridden(reward=0.5 * same_answer)
            .tasks("train")
        )


def test_a_wrong_path_or_column_shows_the_nearest() -> None:
    write(Path("qa.jsonl"), SUMS)

    with pytest.raises(UsageError, match="no column 'anser'; did you mean 'answer'"):
        list(Dataset(path="qa.jsonl", answer="anser").tasks("train"))
    with pytest.raises(UsageError, match="no file or folder 'q.jsonl'"):
        list(Dataset(path="q.jsonl").tasks("train"))
    with pytest.raises(UsageError, match="name your data"):
        Dataset()


def test_a_data_set_of_the_hub_brings_its_splits(tmp_path: Path) -> None:
    """`load_dataset` reads a folder as it does a repository of the hub."""
    folder = tmp_path / "owner" / "name"
    folder.mkdir(parents=True)
    write(folder / "train.jsonl", SUMS[:20])
    write(folder / "test.jsonl", SUMS[20:])

    rows = list(dataset_readers._of_hub("owner/name", ""))

    assert [sum(row.split == split for row in rows) for split in ("train", "test")] == [20, 40]
    assert rows[0].values == SUMS[0]


def test_without_the_hub_the_error_says_why() -> None:
    with pytest.raises(
        UsageError, match="the hub does not give a data set of that name .HF_HUB_OFFLINE"
    ):
        list(Dataset(path="owner/nothing").tasks("train"))


@pytest.mark.parametrize(
    "answer, reply, right",
    [
        ("Paris", "paris.", True),
        ("1,000", "So it is #### 1000", True),
        (4, "\\boxed{4}", True),
        ("4", "4 or 5", False),
        ("4", "", False),
        (["a", "b"], '["a", "b"]', True),
    ],
)
def test_same_answer(answer: Any, reply: str, right: bool) -> None:
    from quintain_env_dataset import Row

    assert right == same_answer.score(rollout(Row(prompt="?", answer=answer), reply)).total


def test_eval_and_train_take_a_plain_function(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The columns of the file are parameters, too; what no row has is an error that names what
    there is.
    """
    write(tmp_path / "qa.jsonl", [{**row, "points": 0.5} for row in SUMS])
    (tmp_path / "mine.py").write_text(
        "def score(prompt, completion, answer, points, bonus=0.5):\n"
        "    assert prompt == f'{int(answer) // 2}+{int(answer) // 2}?'\n"
        "    return (points + bonus) * (completion == str(answer))\n"
        "def lost(completion, anser): return 0\n"
    )
    data = ["eval", "dataset", "--arg", "path=qa.jsonl", "--engine", "@oracle", "--json"]

    def reward_of(expression: str) -> Any:
        status = main([*data, "--reward", expression])
        return status, capsys.readouterr()

    status, shown = reward_of("mine.py:score")
    assert status == 0
    assert json.loads(shown.out)["reward"] == 1.0
    status, shown = reward_of('0.5 * use("mine.py:score")(bonus=1.5)')
    assert status == 0
    assert json.loads(shown.out)["reward"] == 1.0
    status, shown = reward_of("mine.py:lost")
    assert status == 1
    assert "no task has 'anser'; did you mean 'answer'" in next(
        iter(json.loads(shown.out)["failures"])
    )
    assert (
        main(
            ["train", "dataset", "--arg", "path=qa.jsonl", "--reward", "mine.py:score", "--dry-run"]
        )
        == 0
    )
    assert 'reward = "use(\\"mine.py:score\\")"' in capsys.readouterr().out


@pytest.mark.usefixtures("no_curves")
def test_a_file_and_a_function_train(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command of the page, with random weights: the run has the rows, the function's name and
    its scores.
    """
    save_tiny(tmp_path / "model", context=160)
    write(tmp_path / "qa.jsonl", SUMS)
    (tmp_path / "count.py").write_text(
        "def letters(completion, answer):\n    return len(completion) % 2\n"
    )
    small = (
        "sampling.max_tokens=8 batch.prompts=2 batch.group_size=2 evaluation.every=0 "
        "evaluation.test.tasks=0"
    )
    sets = [
        word
        for pair in [*small.split(), "model.dtype=float32", "learner.precision=float32"]
        for word in ("--set", pair)
    ]

    words = [
        "train",
        "dataset",
        "--arg",
        "path=qa.jsonl",
        "--model",
        "model",
        "--reward",
        "count.py:letters",
    ]
    status = main([*words, "--steps", "1", *sets, "--quiet"])

    assert status == 0, capsys.readouterr().err
    rows = rollout_table(tmp_path / "runs" / "dataset-1" / "rollouts")
    assert len(rows) == 4
    for row in rows:
        stored = json.loads(row["rollout"])
        assert stored["outcome"]["parts"] == {"letters": len(stored["turns"][0]["reply"]) % 2}


def rollout_table(folder: Path) -> list[Any]:
    from pyarrow import parquet

    return [
        row
        for file in sorted(folder.glob("*.parquet"))
        for row in parquet.read_table(file).to_pylist()
    ]


FOREIGN = """
def trl(prompts, completions, answer, **kwargs):
    assert 1 == len(prompts) == len(answer) == len(kwargs["points"])
    return [float(reply == str(right)) for reply, right in zip(completions, answer)]

async def later(completions, **kwargs):
    return [1.0]

def talk(prompts, completions, answer):
    assert prompts[0][0]["role"] == "system" and completions[0][0]["role"] == "assistant"
    return [float(completions[0][0]["content"] == str(answer[0]))]

def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    assert data_source and extra_info["points"] == 2
    return {"score": float(solution_str == str(ground_truth)), "acc": 1}

def number(completions):
    return 0.5
"""


@pytest.mark.parametrize("name", ["trl", "later", "talk", "compute_score"])
def test_functions_of_trl_and_verl_score_as_there(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lists of one for TRL, text or messages as the data has them; names and dictionaries of
    verl.
    """
    extra = {"system": "Be brief."} if name == "talk" else {}
    write(Path("qa.jsonl"), [{**row, **extra, "points": 2} for row in SUMS])
    Path("foreign.py").write_text(FOREIGN)
    words = [
        "eval",
        "dataset",
        "--arg",
        "path=qa.jsonl",
        "--reward",
        f"foreign.py:{name}",
        "--json",
    ]

    assert main([*words, "--engine", "@oracle"]) == 0
    assert json.loads(capsys.readouterr().out)["reward"] == 1.0


def test_a_function_of_trl_that_returns_no_list_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write(Path("qa.jsonl"), SUMS)
    Path("foreign_number.py").write_text(FOREIGN)

    assert (
        main(
            [
                "eval",
                "dataset",
                "--arg",
                "path=qa.jsonl",
                "--reward",
                "foreign_number.py:number",
                "--engine",
                "@nop",
            ]
        )
        == 1
    )
    message = (
        "'number' returned 0.5 for one completion; expected a list of one number "
        "(foreign_number.py, line 17)"
    )
    # wrapped at the width of the terminal
    assert message in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("line", ["def f(*args): return 0", "def f(a, /): return 0"])
def test_functions_without_names_are_refused(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("other.py").write_text(line)
    write(Path("qa.jsonl"), SUMS)

    name = f"other{abs(hash(line))}.py"
    Path("other.py").rename(name)
    assert (
        main(
            [
                "eval",
                "dataset",
                "--arg",
                "path=qa.jsonl",
                "--engine",
                "@nop",
                "--reward",
                f"{name}:f",
            ]
        )
        == 2
    )
    assert (
        "it scores one reply at a time: def score(prompt, completion, answer)"
        in capsys.readouterr().err
    )


@pytest.fixture(autouse=True)
def _forget_files() -> Iterator[None]:
    """The tests write different files of one name."""
    from quintain_env_dataset import environment

    yield
    environment._loaded.cache_clear()


# ---- files of a folder, and what rows may not have -----------------------------------------------


def shards(folder: Path, *names: str) -> str:
    """Write ten different rows into each file of *folder*, whose names end as formats do."""
    import gzip

    for number, name in enumerate(names):
        rows = [{"question": f"q{number}-{i}", "answer": f"a{i}"} for i in range(10)]
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(json.dumps(row) + "\n" for row in rows)
        if name.endswith(".csv"):
            text = "question,answer\n" + "".join(f"{r['question']},{r['answer']}\n" for r in rows)
        if name.endswith(".parquet"):
            pyarrow = pytest.importorskip("pyarrow")
            from pyarrow import parquet

            parquet.write_table(pyarrow.Table.from_pylist(rows), file)
        elif name.endswith(".gz"):
            file.write_bytes(gzip.compress(text.encode()))
        else:
            file.write_text(text)
    return str(folder)


@pytest.mark.parametrize(
    ("names", "first", "tested"),
    [
        (["train.jsonl", "test.jsonl.gz"], "q1-", 10),
        (["train.csv.gz", "test.csv"], "q1-", 10),
        (["train.jsonl", "test-00000-of-00001.jsonl"], "q1-", 10),
        (["train.jsonl", "test-00000-of-00001.parquet"], "q1-", 10),
        (["train-00000-of-00001-1a2b.jsonl", "test-00000-of-00001-3c4d.jsonl"], "q1-", 10),
        (["train.jsonl", "test-00000-of-00002.jsonl", "test-00001-of-00002.jsonl"], "q", 20),
        (["data/train-00000-of-00001.jsonl", "data/test-00000-of-00001.jsonl"], "q1-", 10),
        (["train.jsonl", "TESTING.ndjson"], "q1-", 10),
    ],
)
def test_files_of_a_split_are_read_whatever_writes_them(
    tmp_path: Path, names: list[str], first: str, tested: int
) -> None:
    if names == ["train.csv.gz", "test.csv"]:
        shards(tmp_path, "test.csv")
        import gzip

        text = (tmp_path / "test.csv").read_text().replace("q0-", "q1-")
        (tmp_path / "test.csv").write_text(text)
        (tmp_path / "train.csv.gz").write_bytes(gzip.compress(b"question,answer\nx,y\nz,w\n"))
    else:
        shards(tmp_path, *names)
    tasks = Dataset(path=str(tmp_path)).tasks("test")
    prompts = [str(task.prompt) for task in tasks]
    assert len(prompts) == tested
    assert all(prompt.startswith(first) for prompt in prompts)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["train.jsonl", "test_set.jsonl"], "test_set.jsonl"),
        (["train.jsonl", "test.txt"], "test.txt"),
        (["train.jsonl", "test.arrow"], "test.arrow"),
        (["train.jsonl", "dev.jsonl", "test-final.csv"], "test-final.csv"),
        (["train.jsonl", "validation.jsonl.zst"], "validation.jsonl.zst"),
        (["train.jsonl", "train.csv"], "are both train"),
        (["train-00000-of-00003.jsonl", "train-00002-of-00003.jsonl"], "2 of the 3 files"),
        (["notes.jsonl"], "has no file such as"),
    ],
)
def test_a_file_that_a_split_would_be_cut_in_place_of_is_refused(
    tmp_path: Path, names: list[str], said: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        Dataset(path=shards(tmp_path, *names)).tasks("train")


def test_data_that_no_split_has_is_named_on_the_screen(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shards(tmp_path, "train.jsonl", "test.jsonl", "heldout.jsonl", "extra.csv")
    (tmp_path / "README.md").write_text("about")
    with caplog.at_level(logging.INFO):
        Dataset(path=str(tmp_path)).tasks("train")
    assert "passed over, since no split has that name: extra.csv, heldout.jsonl" in caplog.text
    assert "README" not in caplog.text


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", '{"question": "q", "answer": 1, "answer": 2}', "a.jsonl:1: not JSON (the key"),
        ("a.json", '[{"question": "q", "answer": 1},\n{"question": "r", "question": "s"}]',
         "a.json:2: not JSON (the key 'question' occurs twice)"),
        ("a.jsonl", '{"question": "q", "answer": {"x": 1, "x": 2}}', "the key 'x' occurs twice"),
        ("a.jsonl", '{"question": "q", "answer": 1e999}', "1e999 is above all numbers"),
        ("a.jsonl", '{"question": "q", "answer": -1e999}', "-1e999 is above all numbers"),
        ("a.json", '[{"question": "q", "answer": [1e400]}]', "1e400 is above all numbers"),
        ("a.jsonl", f'{{"question": "q", "answer": {"7" * 5000}}}', "has 5000 digits"),
        ("a.json", f'[{{"question": "q", "answer": {"7" * 5000}}}]', "has 5000 digits"),
        ("a.jsonl", "[" * 100_000, "nested too deep"),
    ],
)  # fmt: skip
def test_values_that_would_be_read_as_others_are_named(
    tmp_path: Path, name: str, content: str, said: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(UsageError, match=re.escape(said)):
        Dataset(path=str(tmp_path / name)).tasks("train")


def test_bytes_of_parquet_are_text_or_refused(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = {"question": [b"q1", "né".encode()], "answer": [b"Lima", b"Rome"]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    tasks = [t for part in all_tasks(path=str(tmp_path / "a.parquet")).values() for t in part]
    assert {(t.prompt, t.answer) for t in tasks} == {("q1", "Lima"), ("né", "Rome")}
    columns = {"question": ["q1"], "answer": [b"\xff\xfe\x00"]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "b.parquet")
    with pytest.raises(UsageError, match="is binary and not UTF-8"):
        Dataset(path=str(tmp_path / "b.parquet")).tasks("train")


@pytest.mark.parametrize("text", ["N\u00e9 \u00e0 Hi\u1ebfu?", "caf\u00e9", "\uac00\ub098"])
def test_a_row_in_two_forms_of_unicode_is_one_row(tmp_path: Path, text: str) -> None:
    import unicodedata

    forms = [unicodedata.normalize(form, text) for form in ("NFC", "NFD")]
    rows = [{"question": form, "answer": "x"} for form in forms]
    assert forms[0] != forms[1]
    found = all_tasks(path=write(tmp_path / "a.jsonl", rows))
    assert sum(map(len, found.values())) == 1


def test_equal_prompts_in_two_forms_are_in_one_split_or_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "train.jsonl", [{"question": "caf\u00e9", "answer": "a"}])
    write(tmp_path / "test.jsonl", [{"question": "cafe\u0301", "answer": "b"}])
    with caplog.at_level(logging.INFO):
        Dataset(path=str(tmp_path)).tasks("train")
    assert "1 prompts are in more than one split" in caplog.text


@pytest.mark.parametrize(("share", "said"), [(4, "always 'late' is right in 25% of"), (20, "")])
def test_what_one_answer_for_all_would_earn_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, share: int, said: str
) -> None:
    """A run that collapses ends there, so that its accuracy is read beside it."""
    rows = [f"message {i},{'late' if i % share == 0 else f'answer {i}'},test" for i in range(40)]
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(["question,answer,split", "a,b,train", *rows]))
    with caplog.at_level("INFO"):
        list(Dataset(path=str(path)).tasks("test"))

    assert ("always" in caplog.text) == bool(said)
    assert said in caplog.text


def test_held_out_prompts_that_are_nearly_those_of_train_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Case, blanks and marks of a sentence make no other prompt; signs and points of numbers do."""
    train = ["Capital of Peru?", "3 - 4", "1.5 km", "one"]
    held_out = ["capital of  peru", "3 + 4", "15 km", "one", "two"]
    write(tmp_path / "train.jsonl", [{"question": q, "answer": "a"} for q in train])
    write(tmp_path / "dev.jsonl", [{"question": "four", "answer": "a"}])
    write(tmp_path / "test.jsonl", [{"question": q, "answer": "b"} for q in held_out])
    with caplog.at_level(logging.INFO):
        Dataset(path=str(tmp_path)).tasks("train")

    assert "1 prompts are in more than one split" in caplog.text
    assert "; 1 held-out prompt differs from one of train in case" in caplog.text
    assert "test.jsonl:1)" in caplog.text
