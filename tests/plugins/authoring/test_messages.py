"""What `quintain check` and `quintain rescore` say about an author's mistakes."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from quintain.cli import main
from quintain.errors import UsageError
from quintain.evaluation import evaluate
from quintain.registry import current
from quintain.registry.class_checks import check_class
from quintain_authoring import ScriptedEngine

MISTAKES = """
import asyncio
import itertools
from dataclasses import dataclass
from quintain import Agent, Environment, PolicyFault, Task, group_reward, reward

CALLS = itertools.count()

@reward(range=(0, 1))
def right(rollout):
    return float(rollout.reply == rollout.task.answer)

@reward
def counting(rollout):
    return float(next(CALLS))

@group_reward
def one_for_all(group):
    return [1.0]

def plain(rollout):
    return 1.0

@dataclass(frozen=True, kw_only=True)
class Board:
    moves: int

class Sound(Environment[Task, Board]):
    reward = right
    def tasks(self, split):
        return [Task(prompt=f"{split} {n}", answer=str(n)) for n in range(4)]

    async def rollout(self, task: Task, agent: Agent) -> Board:
        agent.user(task.prompt)
        other = agent.player("other")
        other.user("and you?")
        await asyncio.gather(agent.turn(), other.turn())
        later = agent.turn()
        said = (await later).reply
        async for turn in other.turns():
            break
        return Board(moves=len(said))

class Undecorated(Sound):
    reward = plain

class Unawaited(Sound):
    async def rollout(self, task: Task, agent: Agent) -> Board:
        other = agent.player("other")
        other.turn()
        turn = agent.turn()
        for _ in agent.turns():
            pass
        return Board(moves=len(turn.reply) + len(agent.run().reply))

class Dictionaries(Sound):
    def tasks(self, split):
        return [{"prompt": split}]

class Silent(Sound):
    async def rollout(self, task, agent):
        await agent.turn()

class Idle(Sound):
    async def rollout(self, task, agent):
        agent.user(task.prompt)

class Shared(Sound):
    async def rollout(self, task, agent):
        agent.user(task.prompt)
        await agent.turn()
        agent.metric(calls=next(CALLS))

class Faulty(Sound):
    async def rollout(self, task: Task, agent: Agent) -> Board:
        agent.user(task.prompt)
        if (await agent.turn()).reply == "off":
            raise PolicyFault("off the board")
        return Board(moves=1)
"""


@pytest.fixture
def mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mistakes.py").write_text(MISTAKES)
    return tmp_path


def failures(capsys: Any, *words: str) -> dict[str, str]:
    """The messages of the checks that fail, by name."""
    main(["check", *words, "--json", "--episodes", "2", "--tasks", "4"])
    rows = json.loads(capsys.readouterr().out)["checks"]
    return {row["name"]: row["message"] for row in rows if row["status"] == "failed"}


def test_calls_that_are_not_awaited_are_found_with_their_lines(mistakes: Path) -> None:
    check_class(current().load("environment", "mistakes.py:Sound"))
    with pytest.raises(UsageError) as caught:
        check_class(current().load("environment", "mistakes.py:Unawaited"))

    faults = str(caught.value).splitlines()
    assert [fault.split("write `")[1].rstrip("`") for fault in faults] == [
        "await other.turn()",
        "await agent.turn()",
        "async for",
        "await agent.run()",
    ]
    line = MISTAKES.splitlines().index("        other.turn()") + 1
    assert faults[0].startswith(
        f"Unawaited.rollout (mistakes.py, line {line}) calls the coroutine other.turn() without "
        f"waiting"
    )


def test_a_reward_without_its_decorator_is_named(mistakes: Path, capsys: Any) -> None:
    assert main(["eval", "mistakes.py:Undecorated", "--engine", "@oracle"]) == 2
    shown = capsys.readouterr().err
    assert (
        "Undecorated.reward is the function 'plain' (mistakes.py, line 21); write `@reward`"
        in shown
    )
    assert main(["check", "mistakes.py:plain"]) == 2
    assert "if it is a reward, write `@reward`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("right", "class", "expected a subclass of quintain.Environment"),
        (
            "Dictionaries",
            "every split has tasks",
            "yields a dict as a task: {'prompt': 'train'}; expected a Task",
        ),
        ("Silent", "each turn follows a message", "call agent.user(task.prompt) before it"),
        ("Idle", "each turn follows a message", "no episode takes a turn"),
        ("Shared", "episodes are reproducible", "rollout.metrics.calls is "),
        (
            "counting",
            "scores repeat",
            "repeatable = False allows a state (`quintain check --stateful`)",
        ),
        ("one_for_all", "scores each rollout of a group", "returned 1 scores for 10 rollouts"),
    ],
)
def test_a_check_that_fails_says_what_to_change(
    name: str, row: str, message: str, mistakes: Path, capsys: Any
) -> None:
    kind = ["--kind", "environment"] if row == "class" else []
    assert message in failures(capsys, f"mistakes.py:{name}", *kind)[row]


def test_without_tasks_the_other_checks_are_left_out(mistakes: Path, capsys: Any) -> None:
    assert list(failures(capsys, "mistakes.py:Dictionaries")) == ["every split has tasks"]


def test_other_kinds_have_their_manifest_checked(capsys: Any) -> None:
    assert main(["check", "one_step_off"]) == 0
    # with the time of the check where it is 0.1 s or more
    expected = r"schedule one_step_off\nok       manifest(  [\d.]+ s)?\n"
    assert re.match(expected, capsys.readouterr().out)


SERVICES = """
from quintain import Service

class Counts(Service):
    def __init__(self, *, first: int = 0):
        self.counts = {"a": (first, 1)}
    def state(self):
        return {"counts": dict(self.counts)}
    def restore(self, state):
        self.counts = state["counts"]

class Open(Counts):
    def state(self):
        return {"lock": object()}

class Numbered(Counts):
    def state(self):
        return {"counts": {1: 2, **self.counts}}
    def restore(self, state):
        self.counts = {int(key): value for key, value in state["counts"].items() if key != "a"} | {"b": 0}

class Forgetful(Service):
    def state(self):
        return {"n": 1}

class Closed(Service):
    async def __aenter__(self):
        raise RuntimeError("no key")

class Absent(Service):
    async def __aenter__(self):
        pass

class Misspelled(Service):
    def quintain_on_step_ended(self, event):
        pass
"""


def test_services_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "services.py").write_text(SERVICES)

    assert main(["check", "services.py:Counts", "--arg", "first=3", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["checks"]
    assert rows[-1]["name"] == "its state survives a checkpoint"
    assert rows[-1]["status"] == "ok"
    for name, row, message in (
        ("Open", "its state survives a checkpoint", "return numbers, text, lists, dicts"),
        ("Numbered", "its state survives a checkpoint", "after `restore` of that"),
        ("Forgetful", "class", "it has `state` without `restore`"),
        ("Closed", "starts and stops", "RuntimeError: no key (services.py, line "),
        ("Absent", "starts and stops", "end it with `return self`"),
        ("Misspelled", "starts and stops", "did you mean 'quintain_on_step_end'"),
    ):
        assert message in failures(capsys, f"services.py:{name}")[row]


def test_advantages_are_checked(mistakes: Path, capsys: Any) -> None:
    pytest.importorskip("torch")
    (mistakes / "algorithms.py").write_text(
        "from dataclasses import replace\n"
        "from quintain import per_group\n"
        "from quintain.learning import ALGORITHMS\n"
        "@per_group\ndef one(rewards): return [0.0]\n"
        "@per_group\ndef forgotten(rewards): pass\n"
        "@per_group\ndef infinite(rewards): return [float('inf')] * len(rewards)\n"
        "ONE, FORGOTTEN, INFINITE = (\n"
        "    replace(ALGORITHMS['dr_grpo'], name='x', advantage=p, published={}) for p in (one, "
        "forgotten, infinite)\n"
        ")\n"
    )
    row = "advantages are finite, one per sample"

    assert failures(capsys, "algorithms.py:ONE")[row] == "advantage one gave [0.0] for 4 rewards"
    assert (
        failures(capsys, "algorithms.py:FORGOTTEN")[row]
        == "advantage forgotten gave None for 4 rewards"
    )
    assert "expected finite numbers" in failures(capsys, "algorithms.py:INFINITE")[row]


def test_episodes_without_a_result_are_scored_again(mistakes: Path, capsys: Any) -> None:
    environment = current().load("environment", "mistakes.py:Faulty")()
    engine = ScriptedEngine(replies=lambda messages, rng: rng.choice(["off", "0"]))
    played = asyncio.run(
        evaluate(environment, engine, split="train", samples=4, name="mistakes.py:Faulty")
    )
    assert {"policy_fault", "finished"} == {r.termination.kind for r in played.rollouts}
    lines = [json.dumps(r.to_json()) for r in played.rollouts]
    (mistakes / "played.jsonl").write_text("\n".join(lines))
    words = [
        "rescore",
        "played.jsonl",
        "--env",
        "mistakes.py:Faulty",
        "--reward",
        "mistakes.py:right",
    ]

    assert main([*words, "--json"]) == 0
    assert (lambda result: (result["rollouts"], result["changed"]))(
        json.loads(capsys.readouterr().out)
    ) == (16, 0)
    (mistakes / "played.jsonl").write_text("\n".join(lines).replace('"moves"', '"steps"'))
    assert main(words) == 1
    message = capsys.readouterr().err
    assert "stored with another task or result than the environment has: result." in message
    assert "use the code that the run had" in message
