"""`quintain check --audit`: one planted task of each kind of defect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
from click.testing import CliRunner

from quintain.errors import UsageError
from quintain_authoring.check import check
from quintain_authoring.task_record import TaskRecord, record_file, summary, table

from .planted import LARGE

ENVIRONMENT = f"{Path(__file__).with_name('planted.py')}:Faults"


def audited(file: Path, *kinds: str, more: tuple[str, ...] = ()) -> tuple[int, dict[str, Any]]:
    """The exit status, and the summary, of an audit of one task of each of *kinds*."""
    names = json.dumps(list(kinds))
    words = [ENVIRONMENT, "--arg", f"kinds={names}", "--audit", str(file), "--json", *more]
    result = CliRunner().invoke(check, words, standalone_mode=False)
    assert result.exception is None, result.output
    return result.return_value, json.loads(result.stdout.splitlines()[-1])


def test_a_record_has_the_memory_of_its_task(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    status, groups = audited(file, "", "large", more=("--by", "fault"))
    found = record_file(file).read()
    assert status == 0
    assert found["large"].memory_mib > 0.9 * LARGE / (1 << 20) > found["sound"].memory_mib
    assert groups["large"]["memory_mib"] == found["large"].memory_mib


def test_each_kind_of_defect_is_found(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    kinds = ("", "unsteady", "lazy", "echo", "any word", "half", "raises", "unsolved", "free")
    status, groups = audited(file, *kinds, more=("--by", "fault", "--jobs", "3"))
    found = record_file(file).read()
    assert status == 1
    assert {name: list(record.defects) for name, record in found.items()} == {
        "sound": [],
        "unsteady": ["not repeatable", "the solution fails"],
        "lazy": ["nothing is rewarded"],
        "echo": ["the prompt is an answer"],
        "any word": ["the answer of another task is right"],
        "half": ["the control prose is rewarded"],
        "raises": ["an episode fails"],
        "unsolved": ["no solution"],
        "free": [
            "nothing is rewarded", "the prompt is an answer",
            "the answer of another task is right",
        ],
    }  # fmt: skip
    assert {name: record.sound for name, record in found.items()} == {
        "sound": True, "unsteady": False, "lazy": False, "echo": True, "any word": True,
        "half": True, "raises": False, "unsolved": None, "free": False,
    }  # fmt: skip
    sound = found["sound"]
    assert sound.oracle == [1.0] * 5
    assert sound.nop == 0.0
    assert sound.echo == 0.0
    assert sound.other == 0.0
    assert sound.level == 0.0
    assert set(groups) == set(kinds[1:]) | {"Faults"}
    assert groups["free"]["constant"] == 1.0
    assert groups["free"]["sound"] == 0


def test_an_audit_goes_on_with_what_is_new_or_changed(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    assert audited(file, "", "echo")[0] == 0
    file.write_text(file.read_text() + '{"task": "cut')
    assert audited(file, "", "echo")[1]["Faults"]["tasks"] == 2
    assert len(file.read_text().splitlines()) == 2
    audited(file, "", "echo", more=("--repeats", "2"))
    records = record_file(file).read()
    assert [len(record.oracle) for record in records.values()] == [2, 2]


def test_an_audit_that_goes_on_counts_by_the_field_of_its_own_command(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    assert list(audited(file, "lazy", "echo")[1]) == ["Faults"]
    assert list(audited(file, "lazy", "echo", more=("--by", "fault"))[1]) == ["echo", "lazy"]
    assert len(file.read_text().splitlines()) == 2


def test_tasks_are_tried_again_when_the_code_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reward that is edited may score another way, though the tasks are the same."""
    code = tmp_path / "changing.py"
    code.write_text(Path(__file__).with_name("planted.py").read_text())
    file = tmp_path / "audit.jsonl"
    monkeypatch.setattr(f"{__name__}.ENVIRONMENT", f"{code}:Faults")
    assert audited(file, "lazy")[0] == 1
    code.write_text(code.read_text().replace('"lazy": not reply,', ""))
    audited(file, "lazy")
    assert len(file.read_text().splitlines()) == 2
    audited(file, "lazy")
    assert len(file.read_text().splitlines()) == 2


def test_a_solution_that_fails_is_a_defect_of_its_own_task(tmp_path: Path) -> None:
    """Not of the tasks on which it is tried, too."""
    file = tmp_path / "audit.jsonl"
    audited(file, "", "unplayable")
    found = record_file(file).read()
    assert found["sound"].defects == {}
    assert found["unplayable"].defects == {"it cannot be played": ANY}


@pytest.mark.slow
def test_a_solution_that_does_not_return_is_a_defect_of_its_own_task(tmp_path: Path) -> None:
    """It is found while another task is tried, and not run again for each."""
    file = tmp_path / "audit.jsonl"
    for lines in (3, 3):
        assert audited(file, "", "stuck", "echo", more=("--seconds", "1"))[0] == 1
        found = record_file(file).read()
        assert found["sound"].defects == {}
        assert list(found["stuck"].defects) == ["a call does not return"]
        assert len(file.read_text().splitlines()) == lines


def test_an_environment_that_is_not_made_in_time_ends_the_audit(tmp_path: Path) -> None:
    words = ["--arg", "build_seconds=30", "--seconds", "0.5", "--audit", str(tmp_path / "a.jsonl")]
    result = CliRunner().invoke(check, [ENVIRONMENT, *words], standalone_mode=False)
    assert isinstance(result.exception, UsageError), result.output
    assert "did not return within 0.5 s" in str(result.exception)


@pytest.mark.parametrize("sign", ["\x85", "\u2028", "\u2029"])
def test_a_reply_may_have_signs_that_end_a_line_elsewhere(sign: str, tmp_path: Path) -> None:
    """A record is a line of JSON, whatever is in its texts."""
    record = TaskRecord(task=f"a{sign}b", environment="e", digest="", constants={sign: 1.0})
    lines = record_file(tmp_path / "audit.jsonl")
    lines.append(record)
    assert lines.go_on() == {record.task: record}


@pytest.mark.slow
def test_an_episode_that_does_not_end_is_a_defect_of_its_task(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    assert audited(file, "", "endless", more=("--seconds", "1", "--jobs", "2"))[0] == 1
    found = record_file(file).read()
    assert found["endless"].defects == {"an episode does not end": "none within 10 s"}
    assert found["sound"].sound


@pytest.mark.slow
def test_a_call_that_does_not_return_is_a_defect_of_its_task(tmp_path: Path) -> None:
    """The other tasks go on."""
    file = tmp_path / "audit.jsonl"
    status, _ = audited(file, "", "slow", "echo", more=("--seconds", "1", "--jobs", "3"))
    found = record_file(file).read()
    assert status == 1
    assert list(found["slow"].defects) == ["a call does not return"]
    assert found["sound"].sound is True
    assert found["echo"].sound is True


def test_one_reply_to_all_tasks_of_a_group_is_named() -> None:
    rows = [
        TaskRecord(task=str(n), environment="e", digest="", nop=0.0, constants={"0": 1.0, "1": 0.0})
        for n in range(2)
    ]
    groups = summary(rows)
    assert groups["e"]["defects"] == {"one reply is right everywhere": 2}
    assert table(groups).splitlines()[2] == (
        "| e | 2 | 0 of 0 | 2 | 1 (`0`) | none | none | 0 | one reply is right everywhere (2) |"
    )
