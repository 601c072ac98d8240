"""Agents of two frameworks that know nothing of Quintain: `openai-agents` and `smolagents`,
unmodified.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from quintain import (
    Environment,
    Limits,
    Message,
    Reply,
    Rollout,
    Sampling,
    Task,
    ToolCall,
    need,
    reward,
)
from quintain.evaluation import evaluate
from quintain_authoring import ScriptedEngine
from quintain_gateway import Endpoint, Gateway

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


@reward
def right(rollout: Rollout) -> float:
    return float("42" in rollout.result)


class Outside(Environment[Task, str]):
    """Runs *program* with the endpoint: awaited if it is async, else in a thread."""

    reward = right
    limits = Limits(turns=12, seconds=60)
    gateway: Gateway = need()
    program: Any = None

    def tasks(self, split: str) -> Iterator[Task]:
        return (Task(prompt=f"What is {i} + {42 - i}?", answer="42") for i in range(4))

    async def rollout(self, task: Task, agent: Any) -> str:
        async with self.gateway.endpoint(agent) as endpoint:
            if asyncio.iscoroutinefunction(self.program):
                return str(await self.program(task.prompt, endpoint))
            return str(await asyncio.to_thread(self.program, task.prompt, endpoint))


def play(program: Any, replies: Any, tasks: int = 4) -> list[Rollout[Any, Any]]:
    async def run() -> list[Rollout[Any, Any]]:
        async with Gateway() as gateway:
            environment = Outside(gateway=gateway, program=program)
            engine = ScriptedEngine(replies=replies)
            done = await evaluate(environment, engine, tasks=tasks, sampling=Sampling(), retries=0)
            return list(done.rollouts)

    rollouts = asyncio.run(run())
    assert {(r.termination.kind, r.termination.reason) for r in rollouts} == {("finished", "")}
    assert all(r.outcome is not None and r.outcome.total == 1 for r in rollouts)
    for rollout in rollouts:  # each sampled token is trained exactly once
        sampled = sum(t.sampled for t in rollout.transcripts.values())
        assert sampled == sum(
            sum(s.mask) for t in rollout.transcripts.values() for s in t.sequences()
        )
        assert sampled == sum(t.tokens for t in rollout.turns) > 0
    return rollouts


def call(name: str, **arguments: Any) -> Reply:
    return Reply(text="", calls=(ToolCall(name=name, arguments=arguments),))


def adding(messages: list[Message]) -> Reply | str:
    """Calls `add` with the numbers of the question, then says what the tool said."""
    last = messages[-1].content
    if "tool_response" in last:
        return f"It is {last.splitlines()[1]}."
    x, y = (
        int(word.strip("?")) for word in messages[-1].content.split() if word.strip("?").isdigit()
    )
    return call("add", x=x, y=y)


def agents_program(api: str, stream: bool) -> Any:
    agents = pytest.importorskip("agents", reason="openai-agents is not installed (extra dev)")
    openai = pytest.importorskip("openai")
    agents.set_tracing_disabled(True)

    @agents.function_tool
    def add(x: int, y: int) -> int:
        """Add two numbers."""
        return x + y

    async def program(prompt: str, endpoint: Endpoint) -> str:
        async with openai.AsyncOpenAI(
            base_url=endpoint.base_url, api_key=endpoint.api_key
        ) as client:
            kind = (
                agents.OpenAIResponsesModel
                if api == "responses"
                else agents.OpenAIChatCompletionsModel
            )
            model = kind(model="gpt-4o", openai_client=client)
            agent = agents.Agent(
                name="Adder", instructions="Use the tool.", model=model, tools=[add]
            )
            if not stream:
                return str((await agents.Runner.run(agent, prompt)).final_output)
            result = agents.Runner.run_streamed(agent, prompt)
            async for _ in result.stream_events():
                pass
            return str(result.final_output)

    return program


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("stream", [False, True])
def test_openai_agents_keep_one_conversation(api: str, stream: bool) -> None:
    for rollout in play(agents_program(api, stream), adding):
        assert list(rollout.transcripts) == [""]
        assert len(rollout.transcripts[""].branches) == 1
        assert [m.role for m in rollout.messages] == [
            "system",
            "user",
            "assistant",
            "tool",
            "assistant",
        ]


def test_openai_agents_as_tools_are_conversations_of_one_rollout() -> None:
    """A main agent asks two sub-agents in one turn, which run in parallel."""
    agents = pytest.importorskip("agents", reason="openai-agents is not installed (extra dev)")
    openai = pytest.importorskip("openai")
    agents.set_tracing_disabled(True)

    async def program(prompt: str, endpoint: Endpoint) -> str:
        async with openai.AsyncOpenAI(
            base_url=endpoint.base_url, api_key=endpoint.api_key
        ) as client:
            model = agents.OpenAIChatCompletionsModel(model="gpt-4o", openai_client=client)
            helper = agents.Agent(name="Helper", instructions="Help.", model=model)
            tool = helper.as_tool(tool_name="helper", tool_description="Ask the helper.")
            main = agents.Agent(name="Main", instructions="Ask.", model=model, tools=[tool])
            return str((await agents.Runner.run(main, prompt)).final_output)

    def replies(messages: list[Message]) -> Reply | str:
        if messages[0].content == "Help.":
            return f"about {messages[-1].content}"
        if "tool_response" in messages[-1].content:
            return "42"
        calls = tuple(ToolCall(name="helper", arguments={"input": f"part {i}"}) for i in range(2))
        return Reply(text="I ask.", calls=calls)

    for rollout in play(program, replies):
        assert sorted(rollout.transcripts) == ["", "thread-2", "thread-3"]
        texts = {
            bytes(i for i in t.path(0).ids if i < 256).decode()
            for t in rollout.transcripts.values()
        }
        # sampled by the helper, read by the main agent
        assert sum("about part 0" in text for text in texts) == 2


def test_smolagents_in_a_thread() -> None:
    """Its agents rewrite calls and results as text, so each of their turns has a conversation of
    its own.
    """
    smolagents = pytest.importorskip("smolagents", reason="smolagents is not installed (extra dev)")
    pytest.importorskip("openai")

    tool = smolagents.tool

    @tool
    def add(x: int, y: int) -> int:
        """Add two numbers.

        Args:
            x: one.
            y: the other.
        """
        return x + y

    def program(prompt: str, endpoint: Endpoint) -> str:
        model = smolagents.OpenAIModel(
            model_id="gpt-4o",
            api_base=endpoint.base_url,
            api_key=endpoint.api_key,
            client_kwargs={"max_retries": 0},
        )
        agent = smolagents.ToolCallingAgent(
            tools=[add], model=model, max_steps=4, verbosity_level=0
        )
        return str(agent.run(prompt))

    def replies(messages: list[Message]) -> Reply | str:
        text = json.dumps([m.content for m in messages if m.role != "system"])
        if "Observation" in text:
            return call("final_answer", answer="42")
        return call("add", x=2, y=40)

    for rollout in play(program, replies, tasks=2):
        assert list(rollout.transcripts) == ["", "thread-2"]
        assert [len(t.branches) for t in rollout.transcripts.values()] == [1, 1]
