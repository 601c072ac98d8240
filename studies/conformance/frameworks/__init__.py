"""Agents of well-known frameworks, unmodified, against the gateway (docs/gateway.md has the table).

Each program beside this file is an ordinary agent with one tool. It reads a question from standard
input, prints the answer, and knows nothing of Quintain. Its argument is the API that it speaks. Run
it with `python -I`, for it has the name of the package that it imports.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from quintain import Limits, Message, Reply, Sampling, Task, ToolCall
from quintain.evaluation import evaluate
from quintain.types import trained
from quintain_env_agent import AgentProgram
from quintain_gateway import Gateway, api
from quintain_gateway.errors import ApiError
from quintain_gateway.messages import NO_THREADS

from ..comparison import compared
from ..truth import TruthEngine

__all__ = ["FRAMEWORKS", "Framework", "Played", "played"]

PAIRS = ((4821, 3377), (5102, 2946), (6374, 1815))
CONCURRENCIES = (1, 3)
_QUESTION = re.compile(r"What is (\d+) \+ (\d+)\?")


@dataclass(frozen=True, kw_only=True)
class Framework:
    """A framework and what its program needs.

    Attributes:
        package: distribution whose version is reported.
        apis: that its program speaks, with the class or the name of a model that chooses each.
        more: further requirements of the program.
        setting: of the program in every API, and why it has more than one conversation.
    """

    package: str
    apis: Mapping[str, str]
    more: tuple[str, ...] = ()
    setting: str = ""

    def remark(self, api: str) -> str:
        """Return what its program sets to speak *api*."""
        return ". ".join(filter(None, (self.apis[api], self.setting)))


_LITELLM = "`litellm.suppress_debug_info = True`, else it writes to standard output"
_BY_LITELLM = {
    "chat": "model `openai/NAME`",
    "responses": "model `openai/responses/NAME`",
    "messages": "model `anthropic/NAME`",
}
FRAMEWORKS: Mapping[str, Framework] = {
    "openai": Framework(
        package="openai",
        apis={"chat": "`chat.completions.create`", "responses": "`responses.create`"},
    ),
    "anthropic": Framework(package="anthropic", apis={"messages": "`messages.create`"}),
    "anthropic_tool_runner": Framework(
        package="anthropic", apis={"messages": "`beta.messages.tool_runner`"}
    ),
    "openai_agents": Framework(
        package="openai-agents",
        more=("litellm",),
        apis={
            "chat": '`set_default_openai_api("chat_completions")`',
            "responses": "the default",
            "messages": "`LitellmModel`, model `anthropic/NAME`",
        },
        setting="`set_tracing_disabled(True)`, else it sends traces to OpenAI",
    ),
    "google_adk": Framework(
        package="google-adk",
        more=("litellm",),
        apis={api: f"`LiteLlm`, {model}" for api, model in _BY_LITELLM.items()},
        setting=_LITELLM,
    ),
    "pydantic_ai": Framework(
        package="pydantic-ai-slim",  # pydantic-ai is this with all extras, and no code
        more=("pydantic-ai-slim[openai,anthropic]",),
        apis={
            "chat": "model `openai-chat:NAME`",
            "responses": "model `openai-responses:NAME`",
            "messages": "model `anthropic:NAME`",
        },
    ),
    "langgraph": Framework(
        package="langgraph",
        more=("langchain-openai", "langchain-anthropic"),
        apis={
            "chat": "`ChatOpenAI`",
            "responses": "`ChatOpenAI(use_responses_api=True)`",
            "messages": "`ChatAnthropic`",
        },
    ),
    "smolagents": Framework(
        package="smolagents",
        more=("smolagents[openai,litellm]",),
        apis={
            "chat": "`OpenAIModel`",
            "responses": "`LiteLLMModel`, model `openai/responses/NAME`",
            "messages": f"`LiteLLMModel`, model `anthropic/NAME`. {_LITELLM}",
        },
        setting="It sends calls and results as text",
    ),
    "crewai": Framework(
        package="crewai",
        more=("crewai[anthropic]",),
        apis={
            "chat": '`LLM(provider="openai")`',
            "responses": '`LLM(provider="openai", api="responses")`',
            "messages": '`LLM(provider="anthropic")`',
        },
        setting="`CREWAI_DISABLE_TELEMETRY=true`. It leaves out the text beside a call",
    ),
    "strands": Framework(
        package="strands-agents",
        more=("strands-agents[openai,anthropic]",),
        apis={
            "chat": "`OpenAIModel`",
            "responses": "`OpenAIResponsesModel`",
            "messages": "`AnthropicModel`",
        },
        setting="`callback_handler=None`, else it writes to standard output",
    ),
    "dspy": Framework(
        package="dspy",
        apis={
            "chat": "`LM`, model `openai/NAME`",
            "responses": '`LM(model_type="responses")`, model `openai/NAME`',
            "messages": "`LM`, model `anthropic/NAME`",
        },
        setting="`ReAct` sends all steps as one message",
    ),
    "litellm": Framework(package="litellm", apis=_BY_LITELLM, setting=_LITELLM),
}
"""By the name of the program."""


@dataclass(kw_only=True)
class Played:
    """What became of the episodes of one program in one API.

    Attributes:
        episodes, right: all of them, and those that finished with the right answer.
        sampled, trained: tokens that the engine sampled, and tokens that train.
        conversations: numbers of conversations that an episode had.
        faults: tokens that do not train exactly as they were sampled, refused requests, wrong
            answers, and terminations other than finished.
    """

    episodes: int = 0
    right: int = 0
    sampled: int = 0
    trained: int = 0
    conversations: set[int] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether each episode was right, each token trains once and nothing was refused."""
        return not self.faults and self.right == self.episodes and self.trained == self.sampled > 0


async def played(python: str, name: str, program_api: str) -> Played:
    """Return what became of the episodes of the program *name*, run by the interpreter *python*."""
    found = Played()
    program = str(Path(__file__).with_name(f"{name}.py"))
    tasks = [Task(prompt=f"What is {x} + {y}?", answer=str(x + y)) for x, y in PAIRS]
    response_of = api.ApiResponse.of

    def refused(error: ApiError, path: str) -> api.ApiResponse:
        if error.code != NO_THREADS:  # after which a client sends the whole history
            found.faults.append(f"{path}: {error.status} {error}")
        return response_of(error, path)

    for concurrency in CONCURRENCIES:
        truth = TruthEngine(_reply)
        with patch.object(api.ApiResponse, "of", refused):
            async with Gateway() as gateway:
                environment = AgentProgram(
                    gateway=gateway, argv=(python, "-I", program, program_api), source="arithmetic"
                )
                done = await evaluate(
                    environment.overridden(limits=Limits(turns=8, seconds=300)),
                    truth,
                    tasks=tasks,
                    sampling=Sampling(temperature=0.7),
                    concurrency=concurrency,
                    retries=0,
                )
        sequences = [s for _, _, branches in trained(done.groups) for s in branches]
        differences = compared(truth.log, sequences)
        if differences:
            found.faults.append(f"{len(differences)} differences, the first: {differences[0]}")
        found.sampled += sum(len(turn.ids) for turn in truth.log)
        found.trained += sum(sum(s.mask) for s in sequences)
        for rollout in done.rollouts:
            found.episodes += 1
            found.right += rollout.outcome is not None and rollout.outcome.total == 1
            found.conversations.add(len(rollout.transcripts))
            if rollout.termination.kind != "finished":
                found.faults.append(f"{rollout.termination.kind}: {rollout.termination.reason}")
            elif rollout.result.answer != rollout.task.answer:
                found.faults.append(f"the answer is {rollout.result.answer[:60]!r}")
    return found


def _reply(messages: Sequence[Message]) -> Reply | str:
    """Call `add` with the numbers of the question, and write a text beside the call. Once the sum is
    in the conversation, say it, in the way that the framework asks for.
    """
    text = "\n".join(m.content for m in messages)
    questions = _QUESTION.findall(text)
    if not questions:
        return "There is no question."
    x, y = map(int, questions[-1])
    answer = str(x + y) if str(x + y) in text else ""
    if "[[ ## next_tool_name ## ]]" in text:  # dspy
        name, arguments = ("finish", "{}") if answer else ("add", f'{{"x": {x}, "y": {y}}}')
        return _fields(next_thought="I add.", next_tool_name=name, next_tool_args=arguments)
    if "[[ ## answer ## ]]" in text:
        return _fields(reasoning="I added.", answer=answer)
    if not answer:
        return _call("add", x=x, y=y)
    if '"final_answer"' in messages[0].content:  # smolagents
        return _call("final_answer", answer=answer)
    return answer


def _call(name: str, **arguments: Any) -> Reply:
    return Reply(text="I call it.", calls=(ToolCall(name=name, arguments=arguments),))


def _fields(**fields: str) -> str:
    """Return fields in the format that dspy asks for."""
    blocks = (f"[[ ## {name} ## ]]\n{value}" for name, value in fields.items())
    return "\n\n".join((*blocks, "[[ ## completed ## ]]"))
