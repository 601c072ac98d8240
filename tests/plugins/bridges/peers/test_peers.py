"""Tasks of Inspect and verifiers, played by these libraries in interpreters that have them.

QUINTAIN_INSPECT_PYTHON and QUINTAIN_VERIFIERS_PYTHON name the interpreters.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quintain import InfrastructureError, Rollout
from quintain.errors import UsageError
from quintain.rollouts import RolloutContext, RolloutRequest, run_groups
from quintain_authoring import ScriptedEngine
from quintain_bridges.peers import Peer, PeerTasks

HERE = Path(__file__).parent


def python_of(kind: str) -> str:
    name = f"QUINTAIN_{kind.upper()}_PYTHON"
    if not (found := os.environ.get(name)):
        pytest.skip(f"{name} names no interpreter with the library")
    return found


def played(peer: Peer, script: Any, number: int = 0, copies: int = 1) -> list[Rollout[Any, Any]]:
    """Play the task *number*, *copies* times at once."""

    async def play() -> list[Rollout[Any, Any]]:
        async with peer:
            environment = PeerTasks(peer=peer)
            task = list(environment.tasks("test"))[number]
            requests = [
                RolloutRequest(environment=environment, task=task, group_size=1, index=n)
                for n in range(copies)
            ]
            context = RolloutContext(engine=ScriptedEngine(replies=script), retries=0)
            return [g.rollouts[0] for g in await run_groups(requests, context)]

    return asyncio.run(play())


@pytest.fixture
def inspect() -> Callable[[str], Peer]:
    """Makes the peer of a task of `inspect_tasks`."""
    python = python_of("inspect")
    target = str(HERE / "inspect_tasks.py")
    return lambda name, **more: Peer(
        kind="inspect", python=python, target=f"{target}:{name}", **more
    )


def test_solvers_ask_and_scorers_score(inspect: Any) -> None:
    """The system message of a solver arrives, and `includes` scores."""
    right, *_ = played(inspect("capitals"), "It is Lima.")
    assert [m.content for m in right.messages] == [
        "Be brief.",
        "What is the capital of Peru?",
        "It is Lima.",
    ]
    assert right.outcome.total == 1.0
    assert played(inspect("capitals"), "Lima", number=1)[0].outcome.total == 0.0


def test_arguments_reach_the_function(inspect: Any) -> None:
    assert len(inspect("capitals", args={"extra": 3}).tasks()) == 5
    assert len(inspect("capitals", args={"extra": 3}, limit=4).tasks()) == 4


def test_choices_are_shown_as_inspect_shows_them(inspect: Any) -> None:
    """`multiple_choice` writes the letters, and reads the answer."""
    peer = inspect("letters")
    rollout, *_ = played(peer, peer.tasks()[0]["answer"])
    assert "B) e" in rollout.messages[0].content
    assert rollout.outcome.total == 1.0


def test_a_solver_that_generates_twice_is_two_turns(inspect: Any) -> None:
    """What the policy has read is not sent again."""
    rollout, *_ = played(inspect("sure"), ["3", "2"])
    assert [m.content for m in rollout.messages] == ["1 + 1?", "3", "Are you sure?", "2"]
    assert rollout.outcome.total == 1.0


def test_episodes_at_once_do_not_meet(inspect: Any) -> None:
    rollouts = played(inspect("sure"), ["3", "2"], copies=6)
    assert [r.outcome.total for r in rollouts] == [1.0] * 6


def test_a_scorer_that_fails_is_no_zero(inspect: Any) -> None:
    """An exception, a score that is no number, and the end of the process."""
    ends = [played(inspect("failing"), x)[0].termination for x in ("x", "words", "die")]
    assert [e.kind for e in ends] == [
        "environment_error",
        "reward_error",
        "infrastructure_error",
    ]
    assert "the scorer is broken" in ends[0].reason
    assert "ended with 3" in ends[2].reason


def test_what_is_not_played_ends_the_run(inspect: Any) -> None:
    """Without its tools a task would be played as if nothing were missing."""
    with pytest.raises(UsageError, match=r"gives the model tools \(adder\), which are not played"):
        played(inspect("tools"), "42")
    with pytest.raises(UsageError, match="runs in a sandbox, which is not played"):
        inspect("sandboxed").tasks()


def test_each_of_several_scorers_is_a_part(inspect: Any) -> None:
    (rollout,) = played(inspect("two_scorers"), "It is 2, or not.")
    assert rollout.outcome.total == 0.5
    parts = {"score_of_peer": 0.5, "score_of_peer.includes": 1.0, "score_of_peer.match": 0.0}
    assert dict(rollout.outcome.parts) == parts


def test_evaluation_data_is_not_trained_on(inspect: Any) -> None:
    """All tasks are `test`, unless the recipe says otherwise."""
    peer = inspect("capitals", args={"extra": 20})
    counts = [len(list(PeerTasks(peer=peer).tasks(s))) for s in ("train", "dev", "test")]
    assert counts == [0, 0, 22]
    split = PeerTasks(peer=peer, evaluation=False)
    assert [len(list(split.tasks(s))) for s in ("train", "dev", "test")] == [16, 3, 3]


def test_wrong_settings_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="expected one of inspect, verifiers, verifiers_server"):
        Peer(kind="trl", python=sys.executable, target="x")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no interpreter"):
        Peer(kind="inspect", python=str(tmp_path / "python"), target="x")
    with pytest.raises(UsageError, match="inspect cannot read the tasks: .*No module named"):
        Peer(kind="inspect", python=sys.executable, target="no_such_tasks:x").tasks()


def test_a_taskset_of_verifiers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts, system messages and weighted rewards arrive; `answer` of the data is the oracle's."""
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    python = python_of("verifiers")

    def peer() -> Peer:
        return Peer(kind="verifiers", python=python, target="doubles", args={"size": 4})

    assert [t["answer"] for t in peer().tasks()] == ["0", "2", "4", "6"]
    right, *_ = played(peer(), "6", number=3)
    assert [m.content for m in right.messages] == ["Digits.", "3 + 3?", "6"]
    assert right.outcome.total == 1.5
    assert right.outcome.reason == "exact 1, short 1"
    assert played(peer(), "five", number=3)[0].outcome.total == 0.0


@pytest.mark.parametrize("inside", ["__init__", "taskset"])
def test_a_taskset_that_is_a_package(
    inside: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As verifiers lays out all of its own."""
    package = tmp_path / "pairs"
    package.mkdir()
    (package / "__init__.py").write_text("from .taskset import Doubles\n")
    (package / f"{inside}.py").write_text((HERE / "doubles.py").read_text())
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    peer = Peer(kind="verifiers", python=python_of("verifiers"), target="pairs")
    assert played(peer, "4", number=2)[0].outcome.total == 1.5


@pytest.mark.ci
def test_requirements_in_place_of_an_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The virtual environment is made once from pip's index, and plays."""
    monkeypatch.setenv("QUINTAIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    for _ in range(2):
        peer = Peer(kind="verifiers", requirements=["verifiers==0.4.0"], target="doubles")
        assert [t["answer"] for t in peer.tasks()] == ["0", "2", "4"]
    assert played(peer, "4", number=2)[0].outcome.total == 1.5
    assert len(list((tmp_path / "cache" / "environments").glob("*/bin/python"))) == 1


@pytest.mark.slow
def test_requirements_that_pip_does_not_find(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message is pip's."""
    monkeypatch.setenv("QUINTAIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    peer = Peer(kind="verifiers", requirements=["no-such-package==1"], target="doubles")
    with pytest.raises(InfrastructureError, match="No matching distribution found"):
        peer.tasks()


def test_an_interpreter_or_requirements() -> None:
    """One of the two, and not both."""
    for given in ({}, {"python": sys.executable, "requirements": ["x"]}):
        with pytest.raises(UsageError, match="either `python` or `requirements`"):
            Peer(kind="inspect", target="x", **given)
