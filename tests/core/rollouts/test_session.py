"""A player's turns: concurrent tool calls, tools that the environment runs itself, and forks of a
conversation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from quintain.errors import InfrastructureError, LimitReached, ToolError
from quintain.interfaces.agent import Agent, Limits
from quintain.interfaces.engine import Engine, Reply
from quintain.interfaces.environment import Environment
from quintain.interfaces.reward import reward
from quintain.interfaces.tools import ToolSpec
from quintain.types.rollout import Rollout, TerminationKind
from quintain.types.sampling import Sampling
from quintain.types.task import Message, Task, ToolCall
from quintain.types.transcript import TokenSource
from quintain_authoring import run_episode

TASK = Task(prompt="?")


@reward
def nothing(rollout: Rollout) -> float:
    return 0.0


class Base(Environment[Task, Any]):
    reward = nothing
    limits = Limits(turns=8)

    def tasks(self, split: str) -> list[Task]:
        return [TASK]


def calls(*names: str, **arguments: Any) -> Reply:
    return Reply(calls=tuple(ToolCall(name=name, arguments=arguments) for name in names))


def test_calls_of_a_turn_run_concurrently_and_answer_in_order() -> None:
    """Each of two tools waits for the other; plain functions run in the order of the text."""
    order: list[str] = []
    here, there = asyncio.Event(), asyncio.Event()

    async def first() -> str:
        here.set()
        await there.wait()
        return "first"

    async def second() -> str:
        there.set()
        await here.wait()
        return "second"

    def plain(x: int = 0) -> str:
        order.append(f"plain{len(order)}")
        return order[-1]

    class Both(Base):
        async def rollout(self, task: Task, agent: Agent) -> None:
            agent.user(task.prompt)
            await agent.run(first, second, plain)

    rollout = run_episode(
        Both(), TASK, [calls("plain", "first", "plain", "second", "plain"), "done"]
    )
    assert [c.result for c in rollout.turns[0].calls] == [
        "plain0",
        "first",
        "plain1",
        "second",
        "plain2",
    ]
    assert [m.content for m in rollout.messages[2:]] == [
        "plain0",
        "first",
        "plain1",
        "second",
        "plain2",
        "done",
    ]


@pytest.mark.parametrize("several", [1, 2])
@pytest.mark.parametrize(
    "error, kind",
    [
        (InfrastructureError("dead"), TerminationKind.INFRASTRUCTURE_ERROR),
        (KeyError("x"), TerminationKind.ENVIRONMENT_ERROR),
        (SystemExit(3), TerminationKind.ENVIRONMENT_ERROR),
        (asyncio.CancelledError(), TerminationKind.ENVIRONMENT_ERROR),
    ],
)
def test_what_a_tool_raises_ends_its_episode_alone(
    error: BaseException, kind: TerminationKind, several: int
) -> None:
    """Also beside other calls, where each runs in a task of its own."""

    async def bad() -> str:
        raise error

    class Bad(Base):
        async def rollout(self, task: Task, agent: Agent) -> None:
            agent.user(task.prompt)
            await agent.run(bad)

    rollout = run_episode(Bad(), TASK, [calls(*["bad"] * several), "done"])
    assert kind == rollout.termination.kind


def test_an_error_for_the_policy_does_not_stop_the_other_calls() -> None:
    def find(key: str) -> str:
        if key == "a":
            raise ToolError("no a")
        return key

    class Find(Base):
        async def rollout(self, task: Task, agent: Agent) -> None:
            agent.user(task.prompt)
            await agent.run(find)

    said = Reply(calls=tuple(ToolCall(name="find", arguments={"key": k}) for k in "ab"))
    rollout = run_episode(Find(), TASK, [said, "done"])
    assert [m.content for m in rollout.messages if m.role == "tool"] == ["error: no a", "b"]


def test_a_turn_offers_tools_that_the_environment_runs() -> None:
    """Specs are enough; the calls of the turn carry no result until the environment answers
    them.
    """
    spec = ToolSpec(name="look", parameters={"type": "object", "properties": {}})
    prompts: list[Sequence[Message]] = []

    def script(messages: Sequence[Message]) -> Reply | str:
        prompts.append(messages)
        return calls("look") if len(prompts) == 1 else "seen"

    class Own(Base):
        async def rollout(self, task: Task, agent: Agent) -> str:
            agent.user(task.prompt)
            turn = await agent.turn(spec)
            (call,) = turn.calls
            assert call.result is None
            agent.user([Message("tool", "a wall", call_id=call.id, name=call.name)])
            return (await agent.turn(spec)).reply

    rollout = run_episode(Own(), TASK, script)
    assert rollout.result == "seen"
    assert '"look"' in prompts[0][0].content
    sources = rollout.transcripts[""].path(0).sources
    assert len("a wall") == sources.count(TokenSource.TOOL)


@pytest.mark.parametrize(
    "recipe, turn, expected", [(None, 3, 3), (5, 3, 3), (3, 5, 3), (4, None, 4)]
)
def test_a_turn_may_lower_the_limit_of_tokens(
    recipe: int | None, turn: int | None, expected: int
) -> None:
    class Short(Base):
        async def rollout(self, task: Task, agent: Agent) -> int:
            agent.user(task.prompt)
            return (await agent.turn(max_tokens=turn)).tokens

    rollout = run_episode(Short(), TASK, "abcdefgh", sampling=Sampling(max_tokens=recipe))
    assert expected == rollout.result


def test_a_turn_may_add_stop_strings() -> None:
    class Stops(Base):
        async def rollout(self, task: Task, agent: Agent) -> list[str]:
            agent.user(task.prompt)
            return [(await agent.turn(stop=["d"])).reply, (await agent.turn()).reply]

    rollout = run_episode(Stops(), TASK, "abcdefgh", sampling=Sampling(stop=("f",)))
    assert rollout.result == ["abc", "abcde"]


class Forks(Base):
    """Three turns; a fork of each moment takes one more turn with another message."""

    async def rollout(self, task: Task, agent: Agent) -> list[str]:
        agent.user(task.prompt)
        heard = []
        for i in range(3):
            await agent.turn()
            agent.user(f"next {i}")
        for turns in (1, 2, 3, None):
            fork = agent.fork(f"fork {turns}", turns)
            if turns is not None:
                fork.user("instead")
            heard.append((await fork.turn()).reply)
        return heard


def answers(messages: Sequence[Message]) -> str:
    return f"\u00e9{len(messages)}:{messages[-1].content}"


def test_a_fork_begins_with_the_tokens_of_its_origin() -> None:
    """They are context in the fork: only the origin trains them, and the fork trains its own
    turn.
    """
    rollout = run_episode(Forks(), TASK, answers)
    assert rollout.result == [
        "\u00e93:instead",
        "\u00e95:instead",
        "\u00e97:instead",
        "\u00e97:next 2",
    ]
    origin = rollout.transcripts[""].path(0)
    ends = [
        i
        for i, id_ in enumerate(origin.ids)
        if id_ == 256 + 1 and origin.sources[i] == TokenSource.MODEL
    ]
    assert len(ends) == 3
    for turns, end in ((1, ends[0]), (2, ends[1]), (3, ends[2]), (None, ends[2])):
        fork = rollout.transcripts[f"fork {turns}"]
        assert origin.ids[: end + 1] == fork.path(0).ids[: end + 1]
        assert TokenSource.MODEL not in fork.path(0).sources[: end + 1]
        copied = [i for i, source in enumerate(fork.path(0).sources) if source == TokenSource.COPY]
        assert [
            i for i, source in enumerate(origin.sources[: end + 1]) if source == TokenSource.MODEL
        ] == copied
        (sequence,) = fork.sequences()
        trained = bytes(
            id_ for id_, mask in zip(sequence.ids, sequence.mask, strict=True) if mask and id_ < 256
        )
        assert rollout.result[{1: 0, 2: 1, 3: 2, None: 3}[turns]] == trained.decode()
    assert len([t for t in rollout.turns if t.player == ""]) == 3


def test_a_stop_string_is_one_string_and_a_turn_of_no_tokens_is_refused() -> None:
    class Stops(Base):
        async def rollout(self, task: Task, agent: Agent) -> str:
            agent.user(task.prompt)
            return (await agent.turn(stop="cd")).reply

    class Nothing(Base):
        async def rollout(self, task: Task, agent: Agent) -> None:
            agent.user(task.prompt)
            await agent.turn(max_tokens=0)

    assert run_episode(Stops(), TASK, "adcbcdef").result == "adcb"
    assert (
        "max_tokens is 0; expected at least 1"
        in run_episode(Nothing(), TASK, "hi").termination.reason
    )


@pytest.mark.parametrize("turns", [2, -1])
def test_a_fork_after_turns_that_were_not_taken_is_refused(turns: int) -> None:
    class Beyond(Base):
        async def rollout(self, task: Task, agent: Agent) -> None:
            agent.user(task.prompt)
            await agent.turn()
            agent.fork("other", turns)

    termination = run_episode(Beyond(), TASK, "hi").termination
    assert termination.kind == TerminationKind.ENVIRONMENT_ERROR
    assert f"agent.fork() after {turns} turns; the conversation has 1" == termination.reason


def test_two_tools_of_one_name_are_refused() -> None:
    """Else the last one would answer the calls of both."""

    class Shelf:
        def put(self, item: str) -> str:
            return item

    class Two(Base):
        async def rollout(self, task: Task, agent: Agent) -> None:
            agent.user(task.prompt)
            await agent.run(Shelf().put, Shelf().put)

    termination = run_episode(Two(), TASK, [calls("put", item="x"), "done"]).termination
    assert termination.kind == TerminationKind.ENVIRONMENT_ERROR
    assert termination.reason == "agent.run() got two tools of one name: put"


def test_a_fork_before_the_first_turn_has_the_same_prompt() -> None:
    class Samples(Base):
        async def rollout(self, task: Task, agent: Agent) -> None:
            agent.system("be brief")
            agent.user(task.prompt)
            other = agent.fork("b")
            await asyncio.gather(agent.turn(), other.turn())

    rollout = run_episode(Samples(), TASK, lambda messages, rng: str(rng.random()))
    own, other = (rollout.transcripts[name].path(0) for name in ("", "b"))
    length = own.sources.index(TokenSource.MODEL)
    assert own.ids[:length] == other.ids[:length]
    assert own.ids[length:] != other.ids[length:]


def test_forks_count_towards_the_limits() -> None:
    class Limited(Forks):
        limits = Limits(turns=5)

        async def rollout(self, task: Task, agent: Agent) -> list[str]:
            with pytest.raises(LimitReached):
                await super().rollout(task, agent)
            return []

    rollout = run_episode(Limited(), TASK, answers)
    assert len(rollout.turns) == 5
    assert rollout.result == []


def test_a_fork_continues_on_an_engine_of_text_as_well() -> None:
    class Text(Engine):
        async def reply(
            self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling
        ) -> Reply:
            return Reply(text=answers(messages))

    class Partner(Base):
        async def rollout(self, task: Task, agent: Agent) -> list[str]:
            partner = agent.player("partner", Text())
            partner.user("hello")
            await partner.turn()
            fork = partner.fork("other")
            fork.user("again")
            return [(await fork.turn()).reply, (await partner.turn()).reply]

    rollout = run_episode(Partner(), TASK, "unused")
    assert rollout.result == ["\u00e93:again", "\u00e92:\u00e91:hello"]
    assert not rollout.transcripts


class TextServer(Engine):
    """Says *text* and keeps no tokens, with *reasoning* beside it."""

    name = "server"

    def __init__(self, text: str, reasoning: str = "") -> None:
        self.said = Reply(text=text, reasoning=reasoning)

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling
    ) -> Reply:
        return self.said


@pytest.mark.parametrize(
    "text, reasoning, reply",
    [
        ("5", "", "5"),
        ("<think>a \\boxed{9}</think>\n5", "a \\boxed{9}", "5"),
        ("a \\boxed{9}</think>\n5", "a \\boxed{9}", "5"),
        ("<think>\n\n</think>\n\n5", "", "5"),
        ("<thinking>a</thinking>5", "a", "5"),
        ("◁think▷a◁/think▷5", "a", "5"),
        ("<think>a \\boxed{9}", "", "<think>a \\boxed{9}"),
        ("Close it with `</think>`.", "", "Close it with `</think>`."),
    ],
)
def test_a_reply_is_the_same_on_an_engine_of_text_and_of_tokens(
    text: str, reasoning: str, reply: str
) -> None:
    of_text = run_episode(Base(), TASK, TextServer(text)).turns[0]
    of_tokens = run_episode(Base(), TASK, text).turns[0]
    assert (of_text.text, of_text.reasoning, of_text.reply) == (text, reasoning, reply)
    assert (of_tokens.text, of_tokens.reasoning, of_tokens.reply) == (text, reasoning, reply)


def test_reasoning_that_a_server_splits_off_is_not_split_again() -> None:
    turn = run_episode(Base(), TASK, TextServer("See </think> there.", "a")).turns[0]
    assert (turn.reasoning, turn.reply) == ("a", "See </think> there.")
