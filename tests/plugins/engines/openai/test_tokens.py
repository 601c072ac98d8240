"""Exact tokens through a server: a real tiny model behind completions that take and return ids."""

from __future__ import annotations

import asyncio
import contextlib
import json
from array import array
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from quintain import Environment, Limits, Rollout, Sampling, Task, TokenEngine, reward
from quintain.engine.embedded import EmbeddedEngine
from quintain.errors import InfrastructureError, LimitReached, UsageError
from quintain.rollouts.runner import RolloutContext, RolloutRequest, run_groups
from quintain_engines.openai import OpenAITokenEngine
from quintain_engines.openai.tokens import IdsText

from ....core.models.tiny import save_tiny
from .http_kit import openai_server

CONTEXT = 128


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    save_tiny(path)
    return path


Answer = Callable[[dict[str, Any]], tuple[int, Any]]


@contextlib.asynccontextmanager
async def served(
    engine: TokenEngine, answer: Answer | None = None, listed: Any = CONTEXT
) -> AsyncIterator[str]:
    """The address of completions by *engine*, in the shape of vLLM; *answer* replaces them."""

    async def complete(request: web.Request) -> web.Response:
        body = await request.json()
        if answer is not None:
            status, data = answer(body)
            return web.json_response(data, status=status)
        ids = body["prompt"]
        if "prompt_logprobs" in body:
            scores = await engine.score(ids, 1)
            rows = [None, *({str(i): {"logprob": x}} for i, x in zip(ids[1:], scores, strict=True))]
            choice = {
                "finish_reason": "length",
                "token_ids": [0],
                "logprobs": {"token_logprobs": [-1.0]},
            }
            return web.json_response({"choices": [choice], "prompt_logprobs": rows})
        settings = {k: body[k] for k in ("temperature", "max_tokens", "seed") if k in body}
        stops = {
            "stop": tuple(body.get("stop", ())),
            "stop_ids": tuple(body.get("stop_token_ids", ())),
        }
        sampled = await engine.sample(ids, Sampling(**settings, **stops))
        choice = {
            "finish_reason": sampled.finish,
            "stop_reason": sampled.stop,
            "token_ids": sampled.ids,
            "logprobs": {"token_logprobs": sampled.logps},
        }
        return web.json_response({"choices": [choice]})

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "tiny", "max_model_len": listed}]})

    async with openai_server(complete, models, "/completions") as url:
        yield url


@reward
def nothing(rollout: Rollout) -> float:
    return 0.0


class Chat(Environment[Task, None]):
    reward, limits = nothing, Limits(turns=3)

    def tasks(self, split: str) -> list[Task]:
        return [Task(prompt=f"question {i}") for i in range(4)]

    async def rollout(self, task: Task, agent: Any) -> None:
        agent.user(task.prompt)
        async for _ in agent.turns():
            agent.user("more")


def test_rollouts_have_the_tokens_that_the_engine_itself_samples(folder: Path) -> None:
    """A greedy policy gives the same transcripts through the wire, and scoring them gives the
    recorded log-probs.
    """

    async def play(engine: TokenEngine) -> list[Rollout]:
        requests = [
            RolloutRequest(environment=Chat(), task=t, group_size=2) for t in Chat().tasks("test")
        ]
        # a server takes seeds of 31 bits
        sampling = Sampling(max_tokens=6, stop=("e",), temperature=0)
        groups = await run_groups(requests, RolloutContext(engine=engine, sampling=sampling))
        return [rollout for group in groups for rollout in group.rollouts]

    async def both() -> None:
        here = EmbeddedEngine(str(folder), context=CONTEXT, reproducible=False)
        async with (
            here,
            served(here) as url,
            OpenAITokenEngine(base_url=url, tokenizer=str(folder)) as there,
        ):
            assert there.context == CONTEXT
            assert there.name == "openai:tiny"
            direct, remote = await play(here), await play(there)
            for a, b in zip(direct, remote, strict=True):
                ours, theirs = a.transcripts[""].path(0), b.transcripts[""].path(0)
                assert ours.ids == theirs.ids
                assert ours.sources == theirs.sources
                assert [t.finish for t in a.turns] == [t.finish for t in b.turns]
                assert theirs.logps == pytest.approx(ours.logps, abs=1e-4)
                scores = await there.score(theirs.ids, 1)
                trained = [i for i, x in enumerate(theirs.logps) if x]
                assert [scores[i - 1] for i in trained] == pytest.approx(
                    [theirs.logps[i] for i in trained], abs=1e-4
                )

    asyncio.run(both())


GOOD = {
    "finish_reason": "stop",
    "stop_reason": None,
    "token_ids": [5],
    "logprobs": {"token_logprobs": [-0.5]},
}


@pytest.mark.parametrize(
    "choice",
    [
        {**GOOD, "token_ids": None},
        {**GOOD, "token_ids": [5, 6]},
        {**GOOD, "token_ids": ["5"]},
        {**GOOD, "token_ids": [-1]},
        {**GOOD, "token_ids": [True]},
        {**GOOD, "logprobs": None},
        {**GOOD, "logprobs": {"token_logprobs": [None]}},
        {**GOOD, "logprobs": {"token_logprobs": [0.5]}},
        {**GOOD, "logprobs": {"token_logprobs": ["-0.5"]}},
        {**GOOD, "finish_reason": "abort"},
        "text",
    ],
)
def test_an_answer_without_exact_tokens_is_a_failure(folder: Path, choice: Any) -> None:
    """Nothing is guessed: a turn without its ids and log-probs is the server's failure, not a
    record.
    """
    with pytest.raises(InfrastructureError):
        asyncio.run(sampled(folder, lambda body: (200, {"choices": [choice]})))
    assert asyncio.run(sampled(folder, lambda body: (200, {"choices": [GOOD]}))).ids == (5,)


async def sampled(
    folder: Path, answer: Answer, listed: Any = CONTEXT, prompt: int = 3, **settings: Any
) -> Any:
    here = EmbeddedEngine(str(folder), context=CONTEXT, reproducible=False)
    async with (
        served(here, answer, listed) as url,
        OpenAITokenEngine(base_url=url, tokenizer=str(folder), retries=0, **settings) as there,
    ):
        return await there.sample([1] * prompt, Sampling())


def test_the_context_is_the_limit(folder: Path) -> None:
    """The request never asks for more tokens than fit, and a full context is the policy's limit."""
    asked = []

    def answer(body: dict[str, Any]) -> tuple[int, Any]:
        asked.append(body)
        return 200, {"choices": [GOOD]}

    asyncio.run(sampled(folder, answer, prompt=CONTEXT - 2))
    assert asked[0]["max_tokens"] == 2
    assert asked[0]["prompt"] == [1] * (CONTEXT - 2)
    assert asked[0]["return_token_ids"] is True
    assert "messages" not in asked[0]
    with pytest.raises(LimitReached, match="no room"):
        asyncio.run(sampled(folder, answer, prompt=CONTEXT))
    # The engine counts itself: a server that refuses what fits is at fault.
    refusal = {"error": {"message": "This model's maximum context length is 8 tokens"}}
    with pytest.raises(InfrastructureError, match="maximum context length"):
        asyncio.run(sampled(folder, lambda body: (400, refusal)))


@pytest.mark.parametrize("listed", [None, "128", 0])
def test_a_server_that_says_no_length_needs_the_setting(folder: Path, listed: Any) -> None:
    with pytest.raises(UsageError, match="set the engine's context"):
        asyncio.run(sampled(folder, lambda body: (200, {"choices": [GOOD]}), listed))
    assert asyncio.run(
        sampled(folder, lambda body: (200, {"choices": [GOOD]}), listed, context=9)
    ).ids == (5,)


def test_it_does_not_train(folder: Path) -> None:
    engine = OpenAITokenEngine(tokenizer=str(folder))
    with pytest.raises(UsageError, match="cannot train"):
        asyncio.run(engine.update(None))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="temperature 1"):
        asyncio.run(engine.score([1, 2], 1, temperature=0.5))
    with pytest.raises(UsageError, match="cannot be loaded"):
        asyncio.run(OpenAITokenEngine(tokenizer=str(folder / "none")).__aenter__())


def test_a_plain_dict_is_sent(folder: Path) -> None:
    """`extra` reaches the server; the body is JSON that a strict server reads."""
    seen = []
    asyncio.run(
        sampled(
            folder,
            lambda body: (200, seen.append(json.dumps(body)) or {"choices": [GOOD]}),
            extra={"priority": 2},
        )
    )
    assert json.loads(seen[0])["priority"] == 2


@given(st.lists(st.integers(0, 2**31 - 1) | st.integers(0, 300)), st.integers(1, 300))
@settings(deadline=None)
def test_ids_are_written_as_json_has_them(ids: list[int], vocabulary: int) -> None:
    """Also ids that the tokenizer does not have, of a list and of an array."""
    written = IdsText(vocabulary)
    for given_ids in (ids, tuple(ids), array("i", ids)):
        assert json.loads(b"[%b]" % written(given_ids)) == ids
