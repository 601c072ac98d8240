"""Files of data: all faults at once, in every member that reads JSON lines."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quintain.data import DATA_SUFFIXES, DataFaults, json_object, text_lines
from quintain.errors import UsageError
from quintain.recipe.extends import layers
from quintain_algorithms.curricula.pass_rates import read_pass_rates
from quintain_env_agent import AgentProgram
from quintain_env_chat import Chat
from quintain_env_code.data import load
from quintain_env_dataset import Dataset
from quintain_env_math import GSM8K, Math
from quintain_judge.calibration import read_labels
from quintain_offline.preference.stored import read_preferences
from quintain_offline.reward_model.pairs import read_pairs
from quintain_offline.sft.sources import EnvironmentTable, source_of

READERS: dict[str, Callable[[Path], Any]] = {
    "dataset": lambda file: list(Dataset(path=str(file)).tasks("train")),
    "gsm8k": lambda file: list(GSM8K(data=str(file)).tasks("train")),
    "math": lambda file: list(Math(data=str(file)).tasks("train")),
    "code": lambda file: load(str(file), "train"),
    "agent": lambda file: list(AgentProgram(argv=("true",), data=str(file)).tasks("train")),
    "chat": lambda file: list(Chat(data=str(file)).tasks("train")),
    "labels": read_labels,
    "preferences": read_preferences,
    "pairs": lambda file: read_pairs(str(file)),
    "sft": lambda file: source_of(EnvironmentTable(use=str(file))),
    "pass rates": read_pass_rates,
}
"""What reads JSON lines that a user wrote."""


@pytest.mark.parametrize("reader", READERS)
def test_every_reader_names_ten_faults_and_the_count(reader: str, tmp_path: Path) -> None:
    """Lines that are no JSON, no object or no UTF-8, in order, each with its number."""
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b"{\n[1]\n\ncaf\xe9\n" + b"nonsense\n" * 9)

    with pytest.raises(UsageError) as raised:
        READERS[reader](file)

    head, *lines = str(raised.value).splitlines()
    assert head.endswith(f"12 faults in {file}; the first 10:")
    places = [line.strip().removeprefix(f"{file}:").split(":")[0].split(",")[0] for line in lines]
    assert places == ["1", "2", *(str(n) for n in range(4, 12))]
    assert "byte 0xe9 is not UTF-8" in lines[2]


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le"])
def test_every_reader_names_utf16(reader: str, encoding: str, tmp_path: Path) -> None:
    """With its byte order mark, and without."""
    file = tmp_path / "rows.jsonl"
    file.write_text('{"question": "a", "answer": "1"}\n' * 3, encoding=encoding)

    with pytest.raises(UsageError, match="UTF-16; save it as UTF-8"):
        READERS[reader](file)


def test_faults_of_rows_of_all_splits_of_a_file_are_named(tmp_path: Path) -> None:
    """A code row of another split is part of the file, too."""
    rows = [{"prompt": "f", "tests": 1, "split": part} for part in ("train", "dev", "test")]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))

    with pytest.raises(UsageError, match=r"code: 3 faults:\n.*:1: .*\n.*:2: .*\n.*:3: "):
        load(str(file), "train")


def test_two_agent_tasks_with_one_id_are_refused(tmp_path: Path) -> None:
    """Both lines are named."""
    file = tmp_path / "rows.jsonl"
    rows = [{"prompt": str(n), "answer": n, "id": "same", "split": "train"} for n in range(2)]
    file.write_text("\n".join(map(json.dumps, rows)))

    with pytest.raises(UsageError, match=r"rows.jsonl:2: the id 'same' is that of .*rows.jsonl:1"):
        READERS["agent"](file)


@pytest.mark.parametrize("reader", ["dataset", "code"])
def test_an_id_that_is_but_a_label_is_remarked(
    reader: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Rows that are equal may share it."""
    file = tmp_path / "rows.jsonl"
    rows: list[dict[str, Any]] = [
        {"id": "same", "prompt": f"{n}", "answer": "1"}
        if reader == "dataset"
        else {"id": "same", "prompt": f"{n}", "tests": [f"assert f() == {n}"]}
        for n in (0, 0, 1)
    ]
    file.write_text("\n".join(map(json.dumps, rows)))

    READERS[reader](file)

    assert f"'same' at {file}:1 and {file}:3" in caplog.text
    assert f"{file}:1 and {file}:2" not in caplog.text


def test_packed_lines_and_a_byte_order_mark(tmp_path: Path) -> None:
    """A mark is no part of the first line; blank lines count as lines."""
    file = tmp_path / "rows.jsonl.gz"
    file.write_bytes(gzip.compress(b'\xef\xbb\xbf{"a": 1}\n\n{"a": 2}\n'))

    with DataFaults(file) as faults:
        found = [(where, json_object(line)) for where, line in text_lines(file, faults)]

    assert found == [(f"{file}:1", {"a": 1}), (f"{file}:3", {"a": 2})]


@pytest.mark.parametrize("suffix", [s for s in DATA_SUFFIXES if s != ".parquet"])
def test_data_in_place_of_a_recipe_is_recognised(suffix: str, tmp_path: Path) -> None:
    """By each suffix that the environment `dataset` reads."""
    with pytest.raises(UsageError, match="to train on its rows"):
        layers('{"question": "a"}', f"qa{suffix}", tmp_path)


def test_a_line_that_ends_too_early_names_its_last_column() -> None:
    with pytest.raises(UsageError, match=r"not JSON at column 8 "):
        json_object('{"a": 1\n')
