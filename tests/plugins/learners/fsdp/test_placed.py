"""Ranks that a cluster starts: here one of processes of this machine, which it does not start again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence

import pytest

from quintain.errors import RunError, UsageError
from quintain.interfaces import ProcessRequest

from .test_learner import assert_equal, batch, sharded, state_after


class OwnProcess:
    host = "127.0.0.1"

    def __init__(self, words: Sequence[str], environment: dict[str, str]) -> None:
        self.process = subprocess.Popen([sys.executable, *words], env=os.environ | environment)

    @property
    def ended(self) -> str | None:
        status = self.process.poll()
        return None if status is None else f"exit code {status}"

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


class OwnMachine:
    """A cluster of this machine. *words*, if given, replace those of each process."""

    host = "127.0.0.1"

    def __init__(self, words: Sequence[str] = ()) -> None:
        self.words = words
        self.teams: list[list[OwnProcess]] = []

    def start(self, requests: Sequence[ProcessRequest]) -> Sequence[OwnProcess]:
        team = [OwnProcess(self.words or r.words, dict(r.environment)) for r in requests]
        self.teams.append(team)
        return team

    def close(self) -> None:
        for process in (process for team in self.teams for process in team):
            process.end()


@pytest.fixture
def machine() -> Iterator[OwnMachine]:
    machine = OwnMachine()
    yield machine
    machine.close()


@pytest.mark.slow
def test_ranks_whose_processes_have_ended_are_started_anew(machine: OwnMachine) -> None:
    """And have every bit of weights, moments and reference. They end with the learner."""
    local = sharded()
    expected = state_after(local, 3)
    local.close()
    learner = sharded(cluster=machine, silence=60.0, patience=100.0)
    learner.step(batch())
    machine.teams[0][1].end()
    learner.step(batch())
    learner.step(batch())
    assert_equal(learner.state_dict(), expected)
    learner.close()
    assert [len(team) for team in machine.teams] == [2, 2]
    assert [placed.process.wait(60) for placed in machine.teams[1]] == [0, 0]


def test_ranks_that_end_before_they_come_end_the_run() -> None:
    """With what the cluster says of them."""
    machine = OwnMachine(["-c", "raise SystemExit(3)"])
    with pytest.raises(RunError, match="rank 0 ended before it came: exit code 3"):
        sharded(cluster=machine, patience=100.0)
    machine.close()


def test_ranks_have_one_owner(machine: OwnMachine) -> None:
    with pytest.raises(UsageError, match=r"\[cluster\] starts the ranks.*rendezvous waits"):
        sharded(cluster=machine, rendezvous="127.0.0.1:29400")
    assert machine.teams == []
