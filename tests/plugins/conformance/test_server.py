"""The truth as a server in the shape of vLLM's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from quintain_conformance import TruthEngine
from quintain_conformance.server import EngineServer
from quintain_conformance.tokenizer_files import save_tokenizer

Post = Callable[[str, Any], Awaitable[tuple[int, Any]]]
ASK = {"messages": [{"role": "user", "content": "What?"}]}


def served(truth: TruthEngine, use: Callable[[Post], Awaitable[None]]) -> None:
    async def run() -> None:
        async with EngineServer(truth) as server, aiohttp.ClientSession() as http:

            async def post(path: str, body: Any) -> tuple[int, Any]:
                url = server.base_url.removesuffix("/v1") + path
                async with http.post(url, json=body) as answer:
                    return answer.status, await answer.json()

            await use(post)

    asyncio.run(run())


def test_chat_completions_report_the_ids_and_log_probs_of_the_log() -> None:
    truth = TruthEngine(lambda messages, again: f"the answer {again}")

    async def use(post: Post) -> None:
        body = ASK | {"n": 2, "return_token_ids": True, "logprobs": True, "temperature": 0.5}
        status, answer = await post("/v1/chat/completions", body)
        assert status == 200
        for choice, turn in zip(answer["choices"], truth.log, strict=True):
            assert choice["token_ids"] == list(turn.ids)
            logps = [row["logprob"] for row in choice["logprobs"]["content"]]
            assert logps == pytest.approx(turn.logps)
            assert answer["prompt_token_ids"] == list(turn.context)
            assert turn.temperature == 0.5

    served(truth, use)


def test_generate_and_completions_take_ids_and_report_versions() -> None:
    truth = TruthEngine("the answer", updates={1: 3})

    async def use(post: Post) -> None:
        settings = {"temperature": 2, "max_tokens": 5}
        _, answer = await post(
            "/inference/v1/generate", {"token_ids": [1, 2], "sampling_params": settings}
        )
        (choice,), (turn,) = answer["choices"], truth.log
        assert choice["token_ids"] == list(turn.ids)
        assert choice["finish_reason"] == "length"
        assert choice["weight_versions"] == [
            {"version": 3, "start": 0, "end": 3},
            {"version": 4, "start": 3, "end": 5},
        ]
        tokens = [row["token"] for row in choice["logprobs"]["content"]]
        assert tokens == [f"token_id:{i}" for i in turn.ids]
        _, answer = await post("/v1/completions", {"prompt": [[1, 2], [3]], "stop": ["swe"]})
        assert [c["text"] for c in answer["choices"]] == ["the an"] * 2
        assert truth.log[2].context == (3,)

    served(truth, use)


def test_tokens_and_texts_and_errors() -> None:
    truth = TruthEngine("x", context=60, fail_on=(1,))

    async def use(post: Post) -> None:
        _, tokens = await post("/tokenize", {"prompt": "the answer"})
        assert tokens["tokens"] == truth.tokenizer.encode("the answer")
        _, text = await post("/detokenize", {"tokens": tokens["tokens"]})
        assert text == {"prompt": "the answer"}
        _, tokens = await post("/tokenize", ASK)
        assert (await post("/v1/chat/completions", ASK))[0] == 500
        status, answer = await post(
            "/v1/chat/completions", ASK | {"return_token_ids": True, "logprobs": True}
        )
        assert (status, answer["prompt_token_ids"]) == (200, tokens["tokens"])
        long = {"messages": [{"role": "user", "content": "long " * 90}]}
        assert (await post("/v1/chat/completions", long))[0] == 400
        assert (await post("/v1/chat/completions", {"messages": []}))[0] == 400

    served(truth, use)


def test_the_files_of_the_tokenizer_have_its_ids(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    ours = TruthEngine("x").tokenizer
    theirs = tokenizers.Tokenizer.from_file(str(save_tokenizer(tmp_path) / "tokenizer.json"))
    assert theirs.get_vocab_size() == ours.vocab_size
    text = "the answer <tool_call>\né \U0001f600<|im_end|>\n\n</tool_call>"
    for ids in (ours.encode(text), theirs.encode(text).ids, list(text.encode())):
        assert theirs.decode(ids, skip_special_tokens=False) == ours.decode(ids)
    for token in (*ours.stop_ids, *ours.encode("<tool_call>")):
        assert theirs.encode(ours.decode([token])).ids == [token]
