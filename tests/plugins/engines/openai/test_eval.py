"""`quintain eval` against a local server, through the plugin's engine."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp import web

from quintain.registry.lookup import isolated

from ....core.evaluation.evaluations import Doubling, called
from .http_kit import in_thread, openai_server


@pytest.fixture
def plugins() -> Iterator[None]:
    with isolated(keep=["quintain", "quintain-authoring", "quintain-engines"]) as registry:
        registry.add("environment", "doubling", Doubling)
        yield


def a_server(thought: str = "") -> contextlib.AbstractContextManager[str]:
    """A local OpenAI-compatible server in another thread that can double; it leaves *thought* in
    the content.
    """

    async def chat(request: Any) -> Any:
        body = await request.json()
        n = int(body["messages"][-1]["content"].split()[0])
        message = {"role": "assistant", "content": f"{thought}{2 * n if n % 2 else 0}"}
        return web.json_response(
            {
                "choices": [{"message": message, "finish_reason": "stop"}],
                "usage": {"completion_tokens": 3},
            }
        )

    async def models(request: Any) -> Any:
        return web.json_response({"data": [{"id": "doubler"}]})

    return in_thread(openai_server(chat, models))


@pytest.mark.usefixtures("plugins")
def test_eval_against_a_local_server(capsys: pytest.CaptureFixture[str]) -> None:
    with a_server() as url:
        status, out, _ = called(
            capsys, "doubling", "--engine", url.removesuffix("/v1"), "--json", "--arg", "size=8"
        )
    found = json.loads(out)
    assert status == 0
    assert found["pass@1"] == 0.5
    assert found["engine"] == "openai:doubler"
    assert found["tokens"] == 3


@pytest.mark.usefixtures("plugins")
@pytest.mark.parametrize("thought", ["<think>7?</think>", "7?</think>\n\n"])
def test_a_thought_in_the_content_is_no_reply(
    thought: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Servers without a parser of reasoning leave it there."""
    with a_server(thought) as url:
        words = ("doubling", "--engine", url.removesuffix("/v1"), "--json", "--arg", "size=8")
        status, out, _ = called(capsys, *words)
    assert (status, json.loads(out)["pass@1"]) == (0, 0.5)


@pytest.mark.usefixtures("plugins")
def test_eval_against_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    quick = ["--engine-arg", "retries=0"]
    status, out, err = called(capsys, "doubling", "--engine", "http://127.0.0.1:1", *quick)
    assert status == 1
    assert out == ""
    assert "http://127.0.0.1:1/v1/models failed" in err
