"""Files of audits: what is no record stays as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from quintain.errors import UsageError
from quintain_authoring.record_file import RecordFile
from quintain_authoring.task_record import TaskRecord


@pytest.mark.parametrize(
    "foreign", ['{"my": "data without newline"}', "one line\nand another", "x", '{"my": 1}\n{"ta']
)
def test_a_file_of_something_else_is_refused_and_kept(foreign: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(foreign)
    with pytest.raises(UsageError):
        RecordFile(path, TaskRecord, "quintain check --audit").go_on()
    assert path.read_text() == foreign


@pytest.mark.parametrize("part", ["", "{", '{"task": "a', '{"task'])
def test_a_first_record_that_was_cut_off_is_written_again(part: str, tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_text(part)
    assert RecordFile(path, TaskRecord, "quintain check --audit").go_on() == {}
    assert path.read_text() == ""
