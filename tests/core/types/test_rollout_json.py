"""Tasks, rollouts and scores as JSON, both ways; ids that last."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintain.testing import rollout
from quintain.types.rollout import Group, Rollout, Score, Termination, TerminationKind, Turn
from quintain.types.task import Message, Task, ToolCall
from quintain.types.transcript import Branch, TokenSource, Transcript
from quintain_authoring import ScriptedEngine

TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
NUMBER = st.floats(allow_nan=False, width=64)


@dataclass(frozen=True, kw_only=True)
class Maze(Task):
    walls: tuple[tuple[int, int], ...] = ()
    names: frozenset[str] = frozenset()
    key: bytes = b""


@dataclass(frozen=True, kw_only=True)
class Walk:
    steps: tuple[str, ...]
    out: bool
    best: dict[str, float]
    inner: Walk | None = None


CALLS = st.builds(
    ToolCall,
    name=TEXT,
    arguments=st.dictionaries(TEXT, st.one_of(st.none(), st.integers(), TEXT, st.lists(TEXT))),
    id=TEXT,
)
MESSAGES = st.builds(
    Message,
    st.sampled_from(["system", "user", "assistant", "tool"]),
    TEXT,
    reasoning=TEXT,
    calls=st.tuples(CALLS),
)
TASKS = st.builds(
    Maze,
    prompt=st.one_of(TEXT, st.lists(MESSAGES, max_size=2)),
    answer=st.one_of(st.none(), TEXT, st.integers(), st.lists(st.integers())),
    level=st.none() | NUMBER,
    walls=st.lists(st.tuples(st.integers(), st.integers()), max_size=3).map(tuple),
    names=st.frozensets(TEXT, max_size=3),
    key=st.binary(max_size=4).filter(lambda b: all(x < 128 for x in b)),
)
WALKS = st.builds(
    Walk,
    steps=st.tuples(TEXT, TEXT),
    out=st.booleans(),
    best=st.dictionaries(TEXT, NUMBER),
    inner=st.none(),
)
SCORES = st.builds(
    Score,
    value=NUMBER,
    turns=st.lists(NUMBER, max_size=2).map(tuple),
    players=st.dictionaries(TEXT, NUMBER, max_size=2),
    parts=st.dictionaries(TEXT, NUMBER, max_size=2),
    reason=TEXT,
)
BRANCHES = st.integers(0, 3).flatmap(
    lambda n: st.builds(
        Branch,
        ids=st.tuples(*[st.integers(0, 2**31)] * n),
        sources=st.tuples(*[st.sampled_from([int(s) for s in TokenSource])] * n),
        logps=st.tuples(*[st.floats(-1e4, 0)] * n),
        versions=st.tuples(*[st.integers(-1, 99)] * n),
    )
)
ROLLOUTS = st.builds(
    Rollout,
    task=TASKS,
    result=WALKS,
    termination=st.builds(
        Termination, st.sampled_from(TerminationKind), TEXT, st.integers(1, 3), st.booleans()
    ),
    metrics=st.dictionaries(TEXT, NUMBER, max_size=2),
    turns=st.tuples(
        st.builds(
            Turn,
            text=TEXT,
            reply=TEXT,
            calls=st.tuples(CALLS),
            finish=st.sampled_from(["stop", "length"]),
        )
    ),
    messages=st.tuples(MESSAGES),
    transcripts=st.dictionaries(
        TEXT, st.builds(Transcript, branches=st.tuples(BRANCHES), temperature=NUMBER), max_size=2
    ),
    outcome=st.none() | SCORES,
    shaping=st.none() | SCORES,
    group=st.integers(0, 9),
    seed=st.integers(0, 2**63 - 1),
    seconds=NUMBER,
)


@given(ROLLOUTS)
def test_every_rollout_comes_back_from_json(r: Rollout[Maze, Walk]) -> None:
    text = json.dumps(r.to_json())
    assert Rollout.from_json(json.loads(text), Maze, Walk) == r


def test_nested_result_and_none() -> None:
    walk = Walk(steps=("a",), out=True, best={"x": 0.1}, inner=Walk(steps=(), out=False, best={}))
    for result, kind in (
        (walk, Walk),
        (None, type(None)),
        ({"a": [1, None]}, dict),
        ([1.5, "x"], list),
        ("text", str),
    ):
        r = rollout(Maze(prompt="?"), "up", result=result)
        assert Rollout.from_json(json.loads(json.dumps(r.to_json())), Maze, kind) == r


def test_what_an_engine_left_comes_back(quintain_run: Any) -> None:
    from quintain.interfaces.environment import Environment
    from quintain.interfaces.reward import constant

    class Echo(Environment[Task, None]):
        reward = constant(1)

    r = quintain_run(Echo(), Task(prompt="?", answer="x"), ScriptedEngine(replies="x\u00fc"))
    assert r.tokens == 4
    back = Rollout.from_json(json.loads(json.dumps(r.to_json())), Task, type(None))
    assert back == r
    assert back.transcripts[""].sequences() == r.transcripts[""].sequences()


def test_experts_come_back_and_records_without_them_stay_readable() -> None:
    """Those of 256 experts, too, of which Python holds two bytes each and JSON some more."""
    experts = ("0", chr(ord("0") + 44), chr(ord("0") + 255))
    branch = Branch(
        ids=(1, 2, 3, 4), sources=(1, 2, 2, 2), logps=(0.0,) * 4, versions=(0,) * 4, experts=experts
    )
    r = replace(rollout(Maze(prompt="?"), "up"), transcripts={"": Transcript(branches=(branch,))})
    data = json.loads(json.dumps(r.to_json()))
    assert Rollout.from_json(data, Maze, type(None)) == r
    assert "experts" not in str(rollout(Maze(prompt="?"), "up").to_json())
    del data["transcripts"][""]["branches"][0]["experts"]  # as stored before there were any
    (sequence,) = Rollout.from_json(data, Maze, type(None)).transcripts[""].sequences()
    assert sequence.experts == ()


def test_wrong_data_is_refused() -> None:
    data = Rollout(task=Maze(prompt="?")).to_json()
    for wrong in ({**data, "termination": {"kind": "exploded"}}, {**data, "task": {"walls": "x"}}):
        with pytest.raises(ValueError, match="validation error"):
            Rollout.from_json(wrong, Maze, type(None))


# ---- tasks --------------------------------------------------------------------------------------


def test_golden_ids() -> None:
    """Ids are written into stored rollouts and checkpoints: they must not change between
    releases.
    """
    assert Task(prompt="2 + 2 =", answer="4").id == "a817f641d48c4763"
    assert Task(prompt=[Message("user", "hi")], level=1.5).id == "d353700c1042cf89"
    assert Task(prompt="x", id="mine").id == "mine"


@given(TASKS)
def test_the_id_is_the_content(task: Maze) -> None:
    same = Maze(
        **{f: getattr(task, f) for f in ("prompt", "answer", "level", "walls", "names", "key")}
    )
    assert same == task
    assert same.id == task.id
    assert len(task.id) == 16
    other = Maze(prompt=task.prompt, answer=["other", task.answer], level=task.level)
    assert other.id != task.id


def test_ids_are_the_same_in_every_process() -> None:
    code = (
        "from quintain.types.task import Task; print(Task(prompt='?', answer="
        "{frozenset('abc'), frozenset('de'), frozenset('fgh')}).id, Task(prompt='\\ud800').id)"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", code],
            check=True,
            capture_output=True,
            text=True,
            env={"PYTHONHASHSEED": seed},
        ).stdout
        for seed in "123"
    ]
    assert len(set(runs)) == 1


def test_unstable_content_is_refused_with_the_fix() -> None:
    with pytest.raises(TypeError, match="set `id` yourself"):
        Task(prompt="?", answer=object())
    assert Task(prompt="?", answer=object(), id="mine").id == "mine"


def test_a_prompt_of_messages_is_frozen() -> None:
    messages = [Message("user", "hi")]
    task = Task(prompt=messages)
    messages.clear()
    assert task.prompt == (Message("user", "hi"),)


# ---- scores, terminations, groups ----------------------------------------------------------------


def test_score_totals() -> None:
    score = Score(value=1, turns=[0.1] * 10, players={"a": 5.0})  # type: ignore[arg-type]
    assert score.total == 2.0
    assert score.of_player("a") == 5.0
    assert score.of_player("b") == 2.0
    assert isinstance(score.turns, tuple)


@pytest.mark.parametrize("kind", TerminationKind)
def test_whose_doing_a_termination_is(kind: TerminationKind) -> None:
    """Every kind is no failure, the policy's, or ours, also as the plain text that is stored."""
    for ended in (Termination(kind), Termination(str(kind))):  # type: ignore[arg-type]
        policys = kind in ("policy_fault", "policy_timeout")
        assert ended.ours == (not policys and kind not in ("finished", "truncated"))
        assert (ended.cause == "policy") == policys
        assert bool(ended.cause) == (policys or ended.ours)


def test_group_and_rollout() -> None:
    task = Task(prompt="?")
    good = rollout(task, "a", outcome=Score(value=1), shaping=Score(turns=(0.5,)))
    bad = rollout(task, "b", termination=Termination(TerminationKind.TIMEOUT))
    group = Group(task=task, rollouts=(good, bad))
    assert group.valid == (good,)
    assert good.total == 1.5
    assert bad.total == 0
    assert (
        rollout(
            task, turns=(Turn(text="own", reply="own"), Turn(text="x", reply="x", player="guest"))
        ).reply
        == "own"
    )
