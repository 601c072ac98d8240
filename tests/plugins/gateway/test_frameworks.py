"""Agents that know nothing of Quintain, unmodified: those of `openai-agents` and `smolagents`, and
coding agents, each in every dialect that it speaks (docs/gateway.md has the table).
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
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

from .kit import client

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


def with_litellm(api: str, endpoint: Endpoint) -> dict[str, str]:
    """The name of the model that makes `litellm` speak *api* (``responses``: chat clients only), and
    where it is.
    """
    names = {"chat": "openai/m", "responses": "openai/responses/m", "messages": "anthropic/m"}
    address = "ANTHROPIC_BASE_URL" if api == "messages" else "OPENAI_BASE_URL"
    return {"model": names[api], "url": endpoint.environment[address]}


@pytest.fixture
def litellm(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The package, which fetches its price list from the network unless told not to."""
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    return pytest.importorskip("litellm", reason="litellm is not installed (pip install litellm)")


def by_litellm(test: Any) -> Any:
    """Mark a *test* that needs `litellm`, whose own imports warn."""
    for mark in (
        pytest.mark.ci,
        pytest.mark.usefixtures("litellm"),
        pytest.mark.filterwarnings("ignore"),
    ):
        test = mark(test)
    return test


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
            if api == "messages":
                from agents.extensions.models.litellm_model import LitellmModel

                place = with_litellm(api, endpoint)
                model: Any = LitellmModel(place["model"], place["url"], endpoint.api_key)
            elif api == "responses":
                model = agents.OpenAIResponsesModel(model="gpt-4o", openai_client=client)
            else:
                model = agents.OpenAIChatCompletionsModel(model="gpt-4o", openai_client=client)
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


@pytest.mark.parametrize(
    ("api", "stream"),
    [
        ("chat", False),
        ("responses", True),
        pytest.param("chat", True, marks=pytest.mark.slow),
        pytest.param("responses", False, marks=pytest.mark.slow),
    ],
)
def test_openai_agents_keep_one_conversation(api: str, stream: bool) -> None:
    keep_one_conversation(api, stream)


@by_litellm
@pytest.mark.parametrize("stream", [False, True])
def test_openai_agents_keep_one_conversation_in_messages(stream: bool) -> None:
    """By their extension for `litellm`."""
    keep_one_conversation("messages", stream)


def keep_one_conversation(api: str, stream: bool) -> None:
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


def smolagents_program(model_of: Any) -> Any:
    """An agent of `smolagents` whose model *model_of* makes of the module and an endpoint."""
    smolagents = pytest.importorskip("smolagents", reason="smolagents is not installed (extra dev)")
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
        model = model_of(smolagents, endpoint)
        agent = smolagents.ToolCallingAgent(
            tools=[add], model=model, max_steps=4, verbosity_level=0
        )
        try:
            return str(agent.run(prompt))
        finally:
            # It leaves its client to the collector, which may finalize the socket before the client
            # that would close it: a warning in whatever test then runs.
            if hasattr(model.client, "close"):
                model.client.close()

    return program


def rewrites_its_history(program: Any) -> None:
    """Agents of smolagents rewrite calls and results as text, so each of their turns has a
    conversation of its own.
    """

    def replies(messages: list[Message]) -> Reply | str:
        text = json.dumps([m.content for m in messages if m.role != "system"])
        if "Observation" in text:
            return call("final_answer", answer="42")
        return call("add", x=2, y=40)

    for rollout in play(program, replies, tasks=2):
        assert list(rollout.transcripts) == ["", "thread-2"]
        assert [len(t.branches) for t in rollout.transcripts.values()] == [1, 1]


def test_smolagents_in_a_thread() -> None:
    pytest.importorskip("openai")

    def model(smolagents: Any, endpoint: Endpoint) -> Any:
        return smolagents.OpenAIModel(
            model_id="gpt-4o",
            api_base=endpoint.base_url,
            api_key=endpoint.api_key,
            client_kwargs={"max_retries": 0},
        )

    rewrites_its_history(smolagents_program(model))


@by_litellm
@pytest.mark.parametrize("api", ["responses", "messages"])
def test_smolagents_in_other_dialects(api: str) -> None:
    """By `litellm`."""

    def model(smolagents: Any, endpoint: Endpoint) -> Any:
        place = with_litellm(api, endpoint)
        return smolagents.LiteLLMModel(
            model_id=place["model"], api_base=place["url"], api_key=endpoint.api_key, num_retries=0
        )

    rewrites_its_history(smolagents_program(model))


def in_the_shell(messages: list[Message]) -> Reply:
    """Reads the number with a command, then hands it in as mini-swe-agent asks for it."""
    if "tool_response" in messages[-1].content:
        return call("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo 42")
    return call("bash", command="echo $((40 + 2))")


@by_litellm
@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
def test_a_coding_agent_in_each_dialect(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """mini-swe-agent, with commands that it runs itself."""
    monkeypatch.setenv("MSWEA_SILENT_STARTUP", "1")
    pytest.importorskip("minisweagent", reason="mini-swe-agent is not installed")
    from minisweagent.agents.default import DefaultAgent
    from minisweagent.environments.local import LocalEnvironment
    from minisweagent.models.litellm_model import LitellmModel
    from minisweagent.models.litellm_response_model import LitellmResponseModel

    def program(prompt: str, endpoint: Endpoint) -> str:
        place = with_litellm(api, endpoint)
        kind = LitellmResponseModel if api == "responses" else LitellmModel
        name = "openai/m" if api == "responses" else place["model"]  # it calls litellm.responses
        model = kind(
            model_name=name,
            model_kwargs={"api_base": place["url"], "api_key": endpoint.api_key},
            cost_tracking="ignore_errors",
        )
        agent = DefaultAgent(
            model,
            LocalEnvironment(),
            system_template="You write code.",
            instance_template="{{task}}",
            step_limit=5,
        )
        return str(agent.run(prompt)["submission"])

    for rollout in play(program, in_the_shell, tasks=2):
        assert [len(t.branches) for t in rollout.transcripts.values()] == [1]
        roles = [m.role for m in rollout.messages]
        assert roles == ["system", "user", "assistant", "tool", "assistant"]


@pytest.mark.ci
def test_a_coding_agent_that_speaks_responses_runs_unchanged(tmp_path: Path) -> None:
    """Codex (npm: `@openai/codex`) reads a file with its own tool. Two of its settings leave out
    tools that are no functions: a search at OpenAI and a group of tools for sub-agents.
    """
    program = shutil.which("codex")
    if program is None:
        pytest.skip("the program `codex` is not installed")
    (tmp_path / "number.txt").write_text("42")
    (tmp_path / ".codex").mkdir()

    def reply(messages: list[Message]) -> Reply | str:
        if "tool_response" in messages[-1].content:
            return "The file says 42." if "42" in messages[-1].content else "I cannot."
        return call("exec_command", cmd="cat number.txt")

    async def run() -> None:
        async with client(engine=ScriptedEngine(replies=reply, context=1 << 20)) as c:
            (tmp_path / ".codex" / "config.toml").write_text(
                'model = "m"\nmodel_provider = "gateway"\nweb_search = "disabled"\n'
                "[features]\nmulti_agent = false\n"
                '[model_providers.gateway]\nname = "gateway"\nenv_key = "OPENAI_API_KEY"\n'
                f'wire_api = "responses"\nbase_url = "{c.endpoint.base_url}"\n'
            )
            variables = {
                "PATH": os.environ["PATH"],
                "HOME": str(tmp_path),
                **c.endpoint.environment,
            }
            pipe = asyncio.subprocess.PIPE
            process = await asyncio.create_subprocess_exec(
                program, "exec", "--skip-git-repo-check",
                "--dangerously-bypass-approvals-and-sandbox", "What number is in number.txt?",
                cwd=tmp_path, env=variables, stdin=asyncio.subprocess.DEVNULL, stdout=pipe,
            )  # fmt: skip
            output, _ = await process.communicate()
            assert process.returncode == 0
            assert output.decode().strip() == "The file says 42."
            assert list(c.branches.values()) == [1]
            (transcript,) = c.policy.transcripts().values()
            assert transcript.sampled == sum(sum(s.mask) for s in transcript.sequences())

    asyncio.run(run())
