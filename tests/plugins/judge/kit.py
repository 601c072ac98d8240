"""A server that answers judge prompts by a script, and what tests of judges share."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from aiohttp import web

from quintain_judge import JudgeService
from quintain_judge.answers import extracted
from quintain_judge.canaries import CANARIES, PAIR_CANARIES, RUBRIC_CANARIES

from ..engines.openai.http_kit import openai_server

A = TypeVar("A")
Verdict = Any
_BLOCK = re.compile(r"\[BEGIN (.+?) ([0-9a-f]{16})\]\n(.*?)\n\[END \1 \2\]", re.DOTALL)


def texts_of(body: Mapping[str, Any]) -> dict[str, str]:
    """The texts of a judge prompt, by name, as a reader finds them who trusts the delimiters."""
    return {name: text for name, _, text in _BLOCK.findall(body["messages"][-1]["content"])}


def key_of(body: Mapping[str, Any]) -> str:
    """The delimiter of a judge prompt."""
    return str(_BLOCK.findall(body["messages"][-1]["content"])[0][1])


def completion(text: str | None, finish: str = "stop", **message: Any) -> dict[str, Any]:
    """A chat completion."""
    choice = {"finish_reason": finish, "message": {"role": "assistant", "content": text, **message}}
    return {"choices": [choice], "usage": {"prompt_tokens": 100, "completion_tokens": 10}}


def scored(score: Any, key: str = "score") -> dict[str, Any]:
    """A chat completion with a verdict."""
    return completion(json.dumps({"reason": "because", key: score}))


def of_canary(body: Mapping[str, Any]) -> dict[str, Any] | None:
    """The right verdict on a canary, in either order; ``None`` for any other question."""
    texts, asked = texts_of(body), body["messages"][0]["content"]
    for r in RUBRIC_CANARIES:
        if (texts.get("prompt"), texts.get("reply")) == (
            r.prompt,
            r.reply,
        ) and r.criterion in asked:
            return scored(2 * r.right)
    for p in PAIR_CANARIES:
        if {texts.get("A"), texts.get("B")} == {p.better, p.worse}:
            return scored("A" if texts["A"] == p.better else "B", "verdict")
    for c in CANARIES:
        if texts.get("question") == c.question:
            return scored(
                "A" if (texts["answer"] in RIGHT) == ("A if the answer is right" in asked) else "B",
                "verdict",
            )
    return None


RIGHT = {extracted(c.answer) for c in CANARIES if c.right}
Answer = Callable[[dict[str, Any]], Any]


class JudgeServer:
    """Answers with what *script* returns: a completion, or a status and a body; a coroutine may be
    slow.

    Attributes:
        bodies: what it was asked.
        most: the largest number of requests in flight at once.
        connections: distinct client ports.
    """

    def __init__(self, script: Answer, headers: Mapping[str, str] | None = None) -> None:
        self.script, self.headers = script, dict(headers or {})
        self.bodies: list[dict[str, Any]] = []
        self.most = self._now = 0
        self.connections: set[Any] = set()

    async def _chat(self, request: web.Request) -> web.Response:
        self._now += 1
        self.most = max(self.most, self._now)
        self.connections.add(
            request.transport.get_extra_info("peername") if request.transport else None
        )
        try:
            body = await request.json()
            self.bodies.append(body)
            answer = self.script(body)
            if asyncio.iscoroutine(answer):
                answer = await answer
        finally:
            self._now -= 1
        status, data = answer if isinstance(answer, tuple) else (200, answer)
        text = data if isinstance(data, str) else json.dumps(data)
        return web.Response(
            status=status, text=text, headers=self.headers, content_type="application/json"
        )

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "judge-model"}]})

    def up(self) -> contextlib.AbstractAsyncContextManager[str]:
        """The address of this server."""
        return openai_server(self._chat, self._models)


def judged(
    server: JudgeServer | Answer,
    use: Callable[[JudgeService], Coroutine[Any, Any, A]],
    **settings: Any,
) -> A:
    """What *use* returns of a judge behind *server*, with a cache in memory unless *settings* say
    otherwise.
    """

    async def run() -> A:
        running = server if isinstance(server, JudgeServer) else JudgeServer(server)
        async with running.up() as url:
            values = {"cache": "none", "backoff": 0.001, "base_url": url, **settings}
            async with JudgeService(**values) as judge:
                return await use(judge)

    return asyncio.run(run())
