"""Episodes without a model: the scripted engine, controls, the fixture."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintain.errors import (
    EnvironmentFault,
    InfrastructureError,
    LimitReached,
    UnknownNameError,
    UsageError,
)
from quintain.interfaces.agent import Agent, Limits
from quintain.interfaces.engine import Reply
from quintain.interfaces.environment import Environment, control
from quintain.registry import lookup as registry
from quintain.rollouts.runner import RolloutContext, RolloutRequest, run_groups
from quintain.testing import rollout
from quintain.types.rollout import TerminationKind
from quintain.types.sampling import Sampling
from quintain.types.task import Message, Task, ToolCall
from quintain.types.transcript import TokenSource
from quintain_authoring import Asked, ControlEngine, ScriptedEngine, Stepwise, run_episode
from quintain_authoring.byte_tokenizer import ByteTokenizer
from quintain_authoring.scripted import conversation, fake_logp, written

from .guess import Controlled, Guess, Secret, found

# ---- the scripted engine ------------------------------------------------------------------------


def sample(engine: ScriptedEngine, text: str = "hi", **sampling: Any) -> Any:
    ids = engine.tokenizer.encode(engine.tokenizer.render([Message("user", text)]))
    return asyncio.run(engine.sample(ids, Sampling(seed=1).replace(**sampling)))


def test_scripted_tokens_are_exact_and_log_probs_as_stated() -> None:
    tokenizer = ByteTokenizer()
    s = sample(ScriptedEngine(replies="no \u00fc"))
    assert s.ids == (*"no \u00fc".encode(), tokenizer.stop_ids[0])
    assert s.finish == "stop"
    assert s.stop == tokenizer.stop_ids[0]
    assert s.logps == tuple(fake_logp(i) for i in s.ids)
    assert len(set(s.logps)) > 1
    assert s.versions == (0,) * len(s.ids)
    assert asyncio.run(ScriptedEngine().score(s.ids, 1)) == list(s.logps[1:])


@given(st.text(max_size=20), st.integers(1, 30))
def test_scripted_never_says_more_than_it_may(text: str, most: int) -> None:
    s = sample(ScriptedEngine(replies=text), max_tokens=most)
    whole = sample(ScriptedEngine(replies=text))
    assert s.ids == whole.ids[:most]
    assert s.finish == ("stop" if len(whole.ids) <= most else "length")


def test_scripted_stops_at_stop_strings() -> None:
    s = sample(ScriptedEngine(replies="one; two"), stop=(";",))
    assert bytes(s.ids) == b"one;"
    assert s.finish == "stop"
    assert s.stop == ";"
    s = sample(ScriptedEngine(replies="one; two"), stop_ids=(ord(" "),))
    assert bytes(s.ids) == b"one; "
    assert s.finish == "stop"
    assert s.stop == ord(" ")
    s = sample(ScriptedEngine(replies=Reply(text="cut", finish="length")))
    assert bytes(s.ids) == b"cut"
    assert s.finish == "length"
    assert s.stop is None


def test_scripted_context_delay_and_failures() -> None:
    with pytest.raises(LimitReached):
        sample(ScriptedEngine(context=8))
    engine = ScriptedEngine(replies="ok", fail_on=[2], delay=0.001)
    assert sample(engine).finish == "stop"
    with pytest.raises(InfrastructureError, match="call 2"):
        sample(engine)
    assert sample(engine).finish == "stop"
    with pytest.raises(UsageError, match="no replies"):
        ScriptedEngine(replies=[])


def test_scripted_replies_by_turn_and_by_function() -> None:
    task = Secret(prompt="?", answer="7")
    played = run_episode(Guess(), task, ["1", "7"])
    assert played.result.guesses == ("1", "7")
    assert played.outcome
    assert played.outcome.total == 1
    assert run_episode(Guess(), task, "3").result.guesses == ("3",) * 4, "the last reply repeats"
    seen: list[list[str]] = []

    def count(messages: Sequence[Message]) -> str:
        seen.append([m.content for m in messages])
        return str(len(messages))

    assert run_episode(Guess(), task, count).result.guesses == ("1", "3", "5", "7")
    assert seen[1] == ["?", "1", "no"]


def test_scripted_randomness_is_the_seeds() -> None:
    def dice(messages: Sequence[Message], rng: random.Random) -> str:
        return str(rng.random())

    task = Secret(prompt="?", answer="7")
    one, same, other = (run_episode(Guess(), task, dice, seed=s) for s in (1, 1, 2))
    assert one.result == same.result
    assert one.result != other.result
    assert len(set(one.result.guesses)) == 4


def test_scripted_players() -> None:
    class Duel(Environment[Task, str]):
        reward = found

        async def rollout(self, task: Task, agent: Agent) -> str:
            guest = agent.player("guest")
            agent.user("a")
            guest.user("b")
            return f"{(await agent.turn()).reply} {(await guest.turn()).reply}"

    engine = ScriptedEngine(replies="host", players={"guest": "visitor"})
    environment = type("Wide", (Duel,), {"limits": Limits(turns=2)})()
    assert run_episode(environment, Task(prompt=""), engine).result == "host visitor"


def test_an_episode_over_the_scripted_engine_leaves_exact_transcripts() -> None:
    played = run_episode(Guess(), Secret(prompt="?", answer="7"), ["1", "7"])
    (row,) = played.transcripts[""].sequences()
    said = [i for i, m in zip(row.ids, row.mask, strict=True) if m]
    stop = ByteTokenizer().stop_ids[0]
    assert said == [ord("1"), stop, ord("7"), stop]
    assert [x for x, m in zip(row.logps, row.mask, strict=True) if m] == [
        fake_logp(i) for i in said
    ]
    assert played.transcripts[""].path(0).sources.count(TokenSource.MODEL) == len(said)


ROLES = st.sampled_from(["user", "assistant"])
PLAIN = st.text(st.characters(codec="utf-8", exclude_characters="<|"), max_size=12)


@given(st.lists(st.tuples(ROLES, PLAIN), max_size=5), st.booleans())
def test_conversation_undoes_the_template(turns: list[tuple[Any, str]], prompt: bool) -> None:
    messages = [Message(role, text) for role, text in turns]
    assert conversation(ByteTokenizer().render(messages, prompt=prompt)) == messages


def test_written_is_what_the_parser_reads() -> None:
    reply = Reply(text="so", reasoning="hm", calls=(ToolCall(name="f", arguments={"x": 1}),))
    read = rollout(Task(prompt="?"), written(reply)).turns[0]
    assert read.reply == "so"
    assert read.reasoning == "hm"
    assert [(c.name, c.arguments) for c in read.calls] == [("f", {"x": 1})]


# ---- building rollouts, running, plugins --------------------------------------------------------


def test_a_failure_comes_back_as_the_termination() -> None:
    played = run_episode(
        Guess(), Secret(prompt="?", answer="7"), ScriptedEngine(replies="1", fail_on=[2])
    )
    assert played.termination.kind == TerminationKind.INFRASTRUCTURE_ERROR
    assert played.outcome is None


def test_fixtures_reach_every_pytest(quintain_run: Any, quintain_plugins: Any) -> None:
    assert quintain_run(Guess(), Secret(prompt="?", answer="7"), "7").outcome.total == 1
    assert registry.current() is quintain_plugins


# ---- controls -----------------------------------------------------------------------------------


class Broken(Guess):
    @control()
    def broken(self, task: Secret, messages: Sequence[Message]) -> str:
        raise KeyError("x")

    @control()
    def silent(self, task: Secret, messages: Sequence[Message]) -> str:
        return None  # type: ignore[return-value]


@pytest.mark.parametrize("name, total", [("oracle", 1), ("@nop", 0), ("hack", 0), ("second", 1)])
def test_controls_play(name: str, total: float) -> None:
    environment = Controlled()
    played = run_episode(
        environment, next(iter(environment.tasks("dev"))), ControlEngine(environment, name)
    )
    assert played.outcome
    assert played.outcome.total == total
    assert played.transcripts == {}, "a control has no tokens to train on"


@pytest.mark.parametrize(
    "name, said", [("broken", "Broken.broken failed: KeyError"), ("silent", "gave None")]
)
def test_a_broken_control_is_an_environment_error(name: str, said: str) -> None:
    environment = Broken()
    played = run_episode(
        environment, next(iter(environment.tasks("dev"))), ControlEngine(environment, name)
    )
    assert played.termination.kind == TerminationKind.ENVIRONMENT_ERROR
    assert said in played.termination.reason


def test_unknown_control_and_unbound_control() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'oracle'"):
        ControlEngine(Guess(), "orcale")
    with pytest.raises(UsageError, match="for_task"):
        asyncio.run(ControlEngine(Guess(), "oracle").reply([], [], Sampling()))
    assert [ControlEngine(Controlled(), n).scores for n in ("oracle", "hack", "second")] == [
        "max",
        "min",
        "",
    ]


def test_concurrent_controls_keep_their_tasks_apart() -> None:
    environment = Guess()
    requests = [
        RolloutRequest(environment=environment, task=t, group_size=2)
        for t in itertools.islice(environment.tasks("train"), 6)
    ]
    groups = asyncio.run(
        run_groups(requests, RolloutContext(engine=ControlEngine(environment, "oracle")))
    )
    assert [r.outcome.total for g in groups for r in g.rollouts if r.outcome] == [1.0] * 12


# ---- an episode, step by step ---------------------------------------------------------------------


def test_an_episode_that_ends_while_its_question_waits_is_a_failure() -> None:
    """A policy that is asked for longer than the limit of time gets the episode, which has no score,
    and an error from then on.
    """

    class Brief(Guess):
        limits = Limits(turns=4, seconds=0.05)

    async def play() -> Any:
        async with Stepwise(Brief(), next(iter(Brief().tasks("train")))) as episode:
            assert isinstance(await episode.next(), Asked)
            await asyncio.sleep(0.5)
            ended = await episode.next(Reply(text="5"))
            with pytest.raises(EnvironmentFault, match="the episode is over"):
                await episode.next(Reply(text="5"))
            return ended

    ended = asyncio.run(play())
    assert ended.termination.kind is TerminationKind.TIMEOUT
    assert ended.outcome is None
