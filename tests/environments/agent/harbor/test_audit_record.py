"""What follows from the rewards of an audit, without a container."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from quintain_env_agent.harbor import TaskFolder
from quintain_env_agent.harbor.audit import Plan, _pairs, digest_with
from quintain_env_agent.harbor.audit_record import (
    AuditRecord,
    record_file,
    summary,
)
from quintain_env_agent.harbor.shortcuts import CONSTANT, answering
from quintain_env_agent.harbor.trial import TrialSettings
from quintain_sandbox import Containers

from .task_files import task


def judged(**fields: Any) -> AuditRecord:
    record = AuditRecord(task="t", folder="f", digest="d", **fields)
    record.judge()
    return record


@pytest.mark.parametrize(
    ("fields", "sound", "kinds"),
    [
        ({"oracle": [1.0], "nop": 0.0}, True, []),
        ({"nop": 0.0}, None, ["no solution"]),
        ({"nop": 1.0}, False, ["nothing is rewarded", "no solution"]),
        ({"oracle": [1.0, 0.0], "nop": 0.0}, False, ["the solution fails", "not repeatable"]),
        ({"oracle": [1.0, None], "nop": 0.0}, False, ["not repeatable"]),
        ({"oracle": [1.0], "nop": 0.0, "planted": 1.0}, True, ["the tests can be edited"]),
        ({"oracle": [1.0], "nop": 0.0, "planted": 0.5, "echo": 0.0}, True, []),
        ({"oracle": [1.0], "nop": 0.0, "echo": 1.0}, True, ["the instruction is an answer"]),
        ({"oracle": [1.0], "nop": 0.0, "constant": 1.0}, True, ["a constant is an answer"]),
        ({"oracle": [1.0], "nop": 0.0, "offline": 0.0}, True, ["needs a network"]),
        (
            {"oracle": [0.0], "nop": 0.0, "online": 1.0},
            False,
            ["the solution fails", "needs a network that it does not declare"],
        ),
        (
            {"oracle": [1.0], "nop": 0.0, "limits": {"solution": 10.0, "verifier": 10.0},
             "seconds": {"solution": 7.9, "verifier": 8.0}},
            True,
            ["close to a limit"],
        ),
        ({"status": "build", "reason": "no image"}, False, []),
    ],
)  # fmt: skip
def test_defects_follow_from_rewards_and_limits(
    fields: dict[str, Any], sound: bool | None, kinds: list[str]
) -> None:
    record = judged(**fields)
    assert record.sound == sound
    assert list(record.defects) == kinds


def test_a_shortcut_is_named_by_what_was_tried() -> None:
    found = judged(oracle=[1.0], nop=0.0, planted=1.0, other=1.0, other_task="b").defects
    assert found == {
        "the tests can be edited": "planted got 1",
        "the solution of another task is right": "b got 1",
    }


def test_a_record_holds_for_the_settings_that_it_was_made_with(tmp_path: Path) -> None:
    """Each option of the command that decides what a task is played in, or what counts. An entry of
    the table of images that is not the task's changes nothing.
    """
    folder = TaskFolder(task(tmp_path / "1", "python:3"), "t")

    def digest(plan: Plan | None = None, **containers: Any) -> str:
        return digest_with(folder, Containers(**containers), plan or Plan())

    first = digest(images={"python:*": "a"})
    assert digest(images={"python:*": "a", "gcc:*": "b"}, slots=7) == first
    others = [
        digest(),
        digest(images={"python:*": "b"}),
        digest(images={"python:*": "a"}, network="host"),
        digest(images={"python:*": "a"}, build_network="host"),
        digest(images={"python:*": "a"}, pull=True),
        *(
            digest(plan, images={"python:*": "a"})
            for plan in (
                Plan(key="score"),
                Plan(settings=TrialSettings(network=True)),
                Plan(settings=TrialSettings(keep_processes=True)),
                Plan(settings=TrialSettings(variables={"KEY": "1"})),
            )
        ),
    ]
    assert len({first, *others}) == len(others) + 1
    task(tmp_path / "1", "python:3", instruction_dot_md="Another.")
    assert digest(images={"python:*": "a"}) != first


def test_a_file_has_the_last_record_of_each_task(tmp_path: Path) -> None:
    """A line that was cut off when the audit was ended is left out; the task is tried again."""
    bad, good = judged(nop=1.0), judged(oracle=[1.0], nop=0.0)
    file = tmp_path / "audit.jsonl"
    lines = record_file(file)
    for record in (bad, good):
        lines.append(record)
    whole = file.read_text()
    file.write_text(whole + whole[:40])
    assert list(lines.go_on().values()) == [good]
    assert file.read_text() == whole
    assert summary([good]) == {
        "tasks": 1, "status": {"played": 1}, "with_solution": 1, "oracle_1": 1, "nop_0": 1,
        "sound": 1, "defects": {},
    }  # fmt: skip


def test_an_answer_is_written_where_tests_and_instruction_name_a_file(tmp_path: Path) -> None:
    folder = TaskFolder(task(tmp_path / "1"), "t")
    command = answering(folder, CONSTANT)
    assert base64.b64encode(b"1\n").decode() in command
    assert "f='/app/out.txt'" in command
    assert "expected.txt" not in command  # a file of the tests is no answer
    silent = task(tmp_path / "2", instruction_dot_md="Say hello.\n")
    assert answering(TaskFolder(silent, "t"), CONSTANT) == ""


def test_each_task_has_another_one(tmp_path: Path) -> None:
    a, b, c = (TaskFolder(tmp_path / name, name) for name in "abc")
    assert list(_pairs([a, b, c])) == [(a, b), (b, c), (c, b)]
    assert list(_pairs([a])) == [(a, None)]
    assert list(_pairs([])) == []
