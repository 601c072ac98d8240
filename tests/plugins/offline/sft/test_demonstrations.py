"""Demonstrations that are played: turns, tools and players have the tokens that the policy would
have sampled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from quintain import (
    Agent,
    Demonstration,
    Environment,
    Limits,
    Message,
    Reply,
    Rollout,
    Task,
    ToolCall,
    control,
    reward,
)
from quintain.errors import UsageError
from quintain.models import HFTokenizer
from quintain.recipe.tables import EnvironmentTable
from quintain_authoring import ScriptedEngine, run_episode
from quintain_authoring.byte_tokenizer import ByteTokenizer
from quintain_offline.sft.demonstrations import demonstrations_of
from quintain_offline.sft.example import Example
from quintain_offline.sft.sources import Selection, rows_of, source_of
from quintain_offline.sft.supervised import end_of_turn
from quintain_starter.architecture import build_tokenizer
from quintain_starter.cache_key import cache_key, values_of

from ....core.models.tiny import byte_tokenizer

DEFAULT = HFTokenizer(build_tokenizer())


@reward
def never(rollout: Rollout[Task, Any]) -> float:
    raise AssertionError("a demonstration is not scored")


class Relay(Environment[Task, int]):
    """Add with a tool, say the sum, and let another player repeat it."""

    reward, limits, system = never, Limits(turns=8), "Be exact."
    count: int = 3

    def tasks(self, split: str) -> Iterator[Task]:
        for i in range(self.count):
            yield Task(prompt=f"{split}: {i} + 5?", answer=i)

    async def rollout(self, task: Task, agent: Agent) -> int:
        def add(a: int, b: int) -> int:
            """Add two numbers."""
            return a + b

        agent.user(task.prompt)
        first = await agent.run(add)
        agent.user("Sure?")
        await agent.turn()
        second = agent.player("second")
        second.user(f"Repeat: {first.reply}")
        await second.turn()
        return 1

    @control()
    def demonstrator(self, task: Task, messages: Sequence[Message]) -> str | Reply:
        last = messages[-1]
        if last.role == "tool":
            return f"It is {last.content}."
        if last.content.startswith("Repeat: "):
            return last.content.removeprefix("Repeat: ")
        if last.content == "Sure?":
            return "yes"
        return Reply(
            text="I add.", calls=(ToolCall(name="add", arguments={"a": task.answer, "b": 5}),)
        )


def demonstrated(environment: Environment[Any, Any]) -> list[Example]:
    async def all_of_them() -> list[Example]:
        return [example async for example in demonstrations_of(environment)]

    return asyncio.run(all_of_them())


def trained(example: Example, tokenizer: Any) -> str:
    (row,) = rows_of(example, tokenizer, end_of_turn(tokenizer))
    return str(tokenizer.decode([i for i, m in zip(row.ids, row.mask, strict=True) if m]))


def test_every_reply_of_every_player_trains_and_nothing_else() -> None:
    examples = demonstrated(Relay())
    assert len(examples) == 6, "two players in each of three episodes"
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 5}}\n</tool_call>'
    own, second = examples[2:4]
    assert trained(own, DEFAULT) == f"I add.\n{call}<|im_end|>It is 6.<|im_end|>yes<|im_end|>"
    assert trained(second, DEFAULT) == "It is 6.<|im_end|>"
    assert [m.content for m in own.messages if m.role == "system"] == ["Be exact."]


def test_the_tokens_are_those_of_an_episode() -> None:
    """A policy that samples what the demonstrator says leaves the same ids and trains the same ones
    of them.
    """
    tokenizer = ByteTokenizer()
    environment = Relay()
    task = next(iter(environment.tasks("train")))

    def replies(messages: Sequence[Message]) -> str | Reply:
        last = messages[-1]
        result = last.content.removeprefix("<tool_response>\n").removesuffix("\n</tool_response>")
        role = "tool" if result != last.content else last.role
        return environment.demonstrator(task, [Message(role, result)])

    played = run_episode(environment, task, ScriptedEngine(replies=replies))
    examples = demonstrated(Relay(count=1))
    assert list(played.transcripts) == ["", "second"]
    for transcript, example in zip(played.transcripts.values(), examples, strict=True):
        (sampled,) = transcript.sequences()
        (row,) = rows_of(example, tokenizer, end_of_turn(tokenizer))
        assert tuple(row.ids) == sampled.ids
        assert tuple(map(bool, row.mask)) == sampled.mask


class Compacted(Relay):
    """Two questions, each followed by a summary that replaces them."""

    async def rollout(self, task: Task, agent: Agent) -> int:
        for question in ("Repeat: one", "Repeat: two"):
            agent.user(question)
            await agent.turn()
            await agent.compact("Repeat: so far")
        agent.user("Sure?")
        await agent.turn()
        return 1


def test_replies_after_a_rewrite_train_in_the_rewritten_context() -> None:
    """Each example has the tokens of one branch of an episode, and trains the same ones."""
    tokenizer = ByteTokenizer()
    environment = Compacted(count=1)
    task = next(iter(environment.tasks("train")))

    def replies(messages: Sequence[Message]) -> str | Reply:
        return environment.demonstrator(task, messages)

    played = run_episode(environment, task, ScriptedEngine(replies=replies))
    rows = [
        row
        for e in demonstrated(environment)
        for row in rows_of(e, tokenizer, end_of_turn(tokenizer))
    ]

    sequences = played.transcripts[""].sequences()
    assert len(rows) == len(sequences) == 3
    assert [(tuple(r.ids), tuple(map(bool, r.mask))) for r in rows] == [
        (s.ids, s.mask) for s in sequences
    ]


def test_a_failed_demonstration_is_an_error() -> None:
    class Broken(Relay):
        @control()
        def demonstrator(self, task: Task, messages: Sequence[Message]) -> str:
            raise ValueError("lost the thread")

    with pytest.raises(
        UsageError, match=r"3 of 3 demonstrations of Broken failed: .*lost the thread"
    ):
        demonstrated(Broken())


def test_without_a_template_calls_train_as_the_policy_is_told_to_write_them() -> None:
    (example, _) = demonstrated(Relay(count=1))
    plain = HFTokenizer(byte_tokenizer(None))
    rows = rows_of(example, plain, end_of_turn(plain))
    (call,) = next(m.calls for m in example.messages if m.calls)
    trained = [plain.decode([i for i, m in zip(r.ids, r.mask, strict=True) if m]) for r in rows]
    assert f"<{call.name}>" in "".join(trained)
    assert f"<{call.name}>JSON object of arguments</{call.name}>" in plain.decode(rows[0].ids)


def test_both_kinds_of_demonstrations_count() -> None:
    class Both(Relay):
        def demonstrations(self, split: str) -> Iterator[Demonstration]:
            yield Demonstration(prompt="hi", reply="yo")

    assert [e.messages[-1].content for e in demonstrated(Both(count=1))] == [
        "yo",
        "yes",
        "It is 5.",
    ]


def test_sft_takes_episodes_as_a_source() -> None:
    source = source_of(EnvironmentTable(use=f"{__name__}:Relay"), Selection(count=3))
    assert source.kind == "demonstrations"
    assert len(source.examples) == 3


def test_the_cache_key_has_the_tasks_that_are_played() -> None:
    def key(count: int) -> str:
        relay = Relay(count=count)
        return cache_key([relay], {}, values_of([relay], examples=100, tasks=1))

    assert key(2) == key(2) != key(3)
