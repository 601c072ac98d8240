"""ART (openpipe-art) 0.5.18 as a capture layer for `python -m studies.conformance`.

In ART the code of the agent builds a `Trajectory` of messages and of the choices that the server
returned, with log-probs and token ids (`return_tokens_as_token_ids`). What trains is made of it by
`tokenize_trajectory`, which is what is measured. Agent and server use one tokenizer and template.
Cases of one conversation with tools are played. From the root of the repository, in an environment
of its own (``conformance_env.sh art``)::

    python -m studies.conformance --layer studies.benchmarks.peers.conformance_art:ARTLayer
"""

from __future__ import annotations

import json
import math
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from art.preprocessing.tokenize import tokenize_trajectory
from art.trajectories import History, Trajectory, get_messages
from openai import AsyncOpenAI
from transformers import AutoTokenizer

from quintain import Message, ToolCall
from studies.conformance import Capture, CaptureCase, TrainingSequence, TruthEngine
from studies.conformance.cases.kit import ADD, LOOK
from studies.conformance.client import Exchange
from studies.conformance.server import EngineServer
from studies.conformance.tokenizer_files import save_tokenizer
from studies.conformance.truth import Received

from .conformance_played import PLAYED

TOKENIZER = AutoTokenizer.from_pretrained(save_tokenizer(Path(tempfile.mkdtemp(prefix="art-"))))
TOOLS: list[dict[str, Any]] = [tool.to_json() for tool in (ADD, LOOK)]
SAMPLES = {"several-replies", "several-replies-alike"}
"""Cases of which two trajectories are played."""


def prompt_of(body: dict[str, Any]) -> list[int]:
    """Return what vLLM makes of a chat request: the template over its messages."""
    return list(
        TOKENIZER.apply_chat_template(
            body["messages"], tools=body.get("tools"), add_generation_prompt=True, return_dict=False
        )
    )


class ARTLayer:
    """Trajectories of ART."""

    name = "ART"
    version = version("openpipe-art")
    plays = frozenset(PLAYED) - {"token-budget-of-the-episode"}
    dialects = frozenset({"chat"})
    features = frozenset({"n", "temperature"})
    columns = frozenset({"ids", "mask", "logps", "replies", "prompts"})

    async def capture(self, truth: TruthEngine, agent: Any, case: CaptureCase) -> Capture:
        read: list[Exchange] = []
        async with (
            EngineServer(truth, prompt=prompt_of) as engine,
            AsyncOpenAI(base_url=engine.base_url, api_key="any", max_retries=0) as ai,
        ):
            count = 2 if case.name in SAMPLES else 1
            trajectories = [await rolled_out(ai, case, read) for _ in range(count)]
        return Capture(sequences=[sequence_of(one) for one in trajectories], read=read)


async def rolled_out(ai: AsyncOpenAI, case: CaptureCase, read: list[Exchange]) -> Trajectory:
    """Return the trajectory of an agent that runs what is called."""
    played = PLAYED[case.name]
    tools: Any = TOOLS if played.tools else None
    trajectory = Trajectory(messages_and_choices=list(played.messages), tools=tools, reward=1.0)
    for _ in range(10):
        messages: Any = get_messages(trajectory.messages_and_choices)
        completion = await ai.chat.completions.create(
            model="policy",
            messages=messages,
            logprobs=True,
            temperature=case.temperature,
            extra_body={"return_tokens_as_token_ids": True},
            **({"tools": tools} if tools else {}),
        )
        choice = completion.choices[0]
        trajectory.messages_and_choices.append(choice)
        asked = choice.message.tool_calls or []
        calls: Any = [(one.id, one.function.name, one.function.arguments) for one in asked]
        read.append(
            Exchange(
                tuple(message_of(m) for m in messages),
                Received(
                    text=(choice.message.content or "").strip(),
                    calls=tuple(ToolCall(name=n, arguments=json.loads(a)) for _, n, a in calls),
                    stop="",
                ),
            )
        )
        if not calls:
            break
        for call_id, name, text in calls:
            answer = played.looked
            if name == "add" and "<|" not in answer:
                answer = str(sum(json.loads(text).values()))
            trajectory.messages_and_choices.append(
                {"role": "tool", "tool_call_id": call_id, "content": answer}
            )
    return trajectory


def message_of(data: dict[str, Any]) -> Message:
    functions = [c["function"] for c in data.get("tool_calls") or ()]
    calls = tuple(ToolCall(name=f["name"], arguments=json.loads(f["arguments"])) for f in functions)
    return Message(data["role"], data.get("content") or "", calls=calls)


def sequence_of(trajectory: Trajectory) -> TrainingSequence:
    """Return what ART trains on."""
    history = History(messages_and_choices=trajectory.messages_and_choices, tools=trajectory.tools)
    result = tokenize_trajectory(
        TOKENIZER, None, history, 1.0, False, trajectory, None, "vllm_openai"
    )
    assert result is not None
    return TrainingSequence(
        ids=tuple(result.token_ids),
        mask=tuple(map(bool, result.assistant_mask)),
        logps=tuple(0.0 if math.isnan(x) else x for x in result.logprobs),
        versions=(),
    )
