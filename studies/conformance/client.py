"""The client of a case: an agent that speaks one API, over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from quintain import Message, ToolSpec

from .dialects import DIALECTS, DialectName
from .truth import Received, TruthEngine

__all__ = ["AgentClient", "Exchange", "RefusedError", "UnexpectedError", "expect", "talk"]


class RefusedError(Exception):
    """The layer refused a request. *status* is that of HTTP."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"HTTP {status}: {text[:300]}")
        self.status = status


class UnexpectedError(Exception):
    """The layer answered otherwise than the case demands."""


def expect(condition: bool, what: str) -> None:
    """Raise an `UnexpectedError` that says *what* was expected, unless *condition* holds."""
    if not condition:
        raise UnexpectedError(f"expected {what}")


@dataclass(frozen=True)
class Exchange:
    """A reply that arrived whole, and the conversation that it was asked for with."""

    messages: tuple[Message, ...]
    reply: Received


class AgentClient:
    """Asks a capture layer in one API and keeps what it read.

    Attributes:
        read: what was asked and arrived whole.
        stream: ask for streams.
        truth: the engine behind the layer.
    """

    def __init__(
        self,
        http: aiohttp.ClientSession,
        base_url: str,
        key: str,
        truth: TruthEngine,
        dialect: DialectName,
        *,
        stream: bool = False,
    ) -> None:
        self._http, self._base_url, self._key = http, base_url, key
        self.truth, self.stream = truth, stream
        self.name = dialect
        self._dialect = DIALECTS[dialect]
        self.read: list[Exchange] = []

    async def ask(
        self, *messages: Message | str, tools: Sequence[ToolSpec] = (), **options: Any
    ) -> Received:
        """Return the reply to *messages*; texts are those of a user and an assistant in turns."""
        return (await self.ask_all(*messages, tools=tools, **options))[0]

    async def ask_all(
        self, *messages: Message | str, tools: Sequence[ToolSpec] = (), **options: Any
    ) -> list[Received]:
        """Return all replies, of which there are several with ``n``.

        Raises:
            RefusedError: the status is not 200.
        """
        body = self._body(messages, tools, options)
        whole = await self.post(self._dialect.path, body)
        previous = options.get("previous_response_id", "")
        before = next(
            (
                (*x.messages, x.reply.message)
                for x in self.read
                if previous and x.reply.id == previous
            ),
            (),
        )
        return self.note([*before, *talk(*messages)], whole)

    async def post(self, path: str, body: Any) -> Any:
        """Return the JSON of an answer; of a stream, what its events carry."""
        async with self._posted(path, body) as answer:
            text = await answer.text()
            if answer.status != 200:
                raise RefusedError(answer.status, text)
            if answer.content_type != "text/event-stream":
                return json.loads(text)
        lines = [line.removeprefix("data: ") for line in text.splitlines() if line[:6] == "data: "]
        return self._dialect.whole([json.loads(line) for line in lines if line != "[DONE]"])

    def note(self, messages: Sequence[Message], whole: Any) -> list[Received]:
        """Keep and return the replies of a whole answer to *messages*."""
        replies = self._dialect.replies(whole)
        self.read += [Exchange(tuple(messages), reply) for reply in replies]
        return replies

    async def refused(
        self, *messages: Message | str, tools: Sequence[ToolSpec] = (), **options: Any
    ) -> int:
        """Send a request that has to be refused; return the status."""
        try:
            await self.ask_all(*messages, tools=tools, **options)
        except RefusedError as e:
            return e.status
        raise UnexpectedError("expected a refusal of a request that cannot be served")

    async def cut(self, *messages: Message | str, **options: Any) -> None:
        """Begin to read a stream, and leave. What was sampled for it may train or not."""
        before = len(self.truth.log)
        body = self._body(messages, options.pop("tools", ()), options) | {"stream": True}
        async with self._posted(self._dialect.path, body) as answer:
            expect(answer.status == 200, f"a stream, not HTTP {answer.status}")
            await answer.content.read(40)
            answer.close()
        await asyncio.sleep(0.05)  # the layer sees that nobody reads
        self.truth.unread |= set(range(before, len(self.truth.log)))

    async def cancelled(self, *messages: Message | str, **options: Any) -> None:
        """Send a request and leave while it is sampled."""
        before, calls = len(self.truth.log), self.truth.running
        self.truth.hold()
        body = self._body(messages, options.pop("tools", ()), options)
        task = asyncio.create_task(self.post(self._dialect.path, body))
        await self.running(calls + 1)
        task.cancel()
        await asyncio.wait([task])
        await asyncio.sleep(0.05)
        self.truth.release()
        await self.running(0)
        self.truth.unread |= set(range(before, len(self.truth.log)))

    async def running(self, count: int) -> None:
        """Wait until the engine has *count* calls."""
        for _ in range(1000):
            if self.truth.running == count:
                return
            await asyncio.sleep(0.005)
        raise UnexpectedError(f"expected {count} calls of the engine, not {self.truth.running}")

    def _body(
        self, messages: Sequence[Message | str], tools: Sequence[ToolSpec], options: dict[str, Any]
    ) -> Any:
        more = {"stream": True} if self.stream else {}
        body = self._dialect.body(talk(*messages), tools, {**options, **more})
        return {"model": "policy", **body}

    @asynccontextmanager
    async def _posted(self, path: str, body: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        head = {"Authorization": f"Bearer {self._key}", "x-api-key": self._key}
        async with self._http.post(self._base_url + path, json=body, headers=head) as answer:
            yield answer


def talk(*messages: Message | str) -> list[Message]:
    """Return messages; texts are those of a user and an assistant in turns."""
    turns: list[Message] = []
    for m in messages:
        if isinstance(m, str):
            asked = bool(turns) and turns[-1].role in ("user", "tool")
            m = Message("assistant" if asked else "user", m)
        turns.append(m)
    return turns
