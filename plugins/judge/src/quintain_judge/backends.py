"""What gives the verdicts: a server with OpenAI's protocol, or an engine of this process."""

from __future__ import annotations

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import aiohttp
from pydantic import BaseModel, ConfigDict, Field

from quintain import Engine, InfrastructureError, LimitReached, Message, Sampling, TokenEngine
from quintain.errors import UsageError
from quintain_openai import OpenAIEngine, protocol
from quintain_openai.client import RETRIED

from .cache import Answer
from .prompts import Prompt
from .verdicts import UnreadableVerdict


class TransientFailure(InfrastructureError):
    """A failure that may pass. *wait*: seconds that the server asks for."""

    def __init__(self, message: str, wait: float = 0.0) -> None:
        super().__init__(message)
        self.wait = wait


class Refusal(UnreadableVerdict):
    """The judge declines to judge."""


class Backend(ABC):
    """One judge model.

    Attributes:
        name: in messages.
        identity: what decides its answers besides the prompt, for the key of the cache; empty keeps them out of the
            cache, because the model changes.
        prices: per million tokens of the prompt and of the reply.
        writes: whether it can answer in any form, not only choose among few verdicts.
        number: among the judges of a panel.
    """

    name: str = "judge"
    identity: str = ""
    prices: tuple[float, float] = (0.0, 0.0)
    writes: bool = True
    number: int = 0

    async def start(self) -> None:  # noqa: B027 - nothing to start by default
        """Start, and probe that it answers."""

    async def stop(self) -> None:  # noqa: B027 - as above
        """Stop."""

    def request(self, prompt: Prompt, messages: list[Message], sampling: Sampling) -> Any:
        """What `send` takes to ask *messages*, which *prompt* was rendered to. It is made before the call has its turn
        among the concurrent ones, and `answer` is called after it: so requests follow each other without a gap."""
        return prompt, messages, sampling

    @abstractmethod
    async def send(self, request: Any) -> Any:
        """Send *request*; what comes back is for `answer`.

        Raises:
            TransientFailure, UnreadableVerdict: may be tried again.
            InfrastructureError: any other failure.
        """

    def answer(self, response: Any) -> Answer:
        """The answer in what `send` returned.

        Raises:
            As `send`.
        """
        assert isinstance(response, Answer)
        return response


class Replayed(Backend):
    """Stands for the judges of a recording."""

    name = "recording"

    async def send(self, request: Any) -> Any:
        raise InfrastructureError("a recording answers no new prompts")


class EndpointTable(BaseModel):
    """A judge behind a URL.

    Attributes:
        base_url, model, api_key, timeout, extra: see the engine `openai`.
        constrain: how the server is held to the form of a verdict: ``json_schema``, ``json_object`` or ``none``.
        prices: per million tokens of the prompt and of the reply, for the budget of money.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, protected_namespaces=())
    base_url: str
    model: str = ""
    api_key: str = ""
    timeout: float = Field(60.0, gt=0)
    constrain: str = Field("json_schema", pattern="^(json_schema|json_object|none)$")
    prices: list[float] = Field(default_factory=lambda: [0.0, 0.0], min_length=2, max_length=2)
    extra: dict[str, Any] = Field(default_factory=dict)


class Endpoint(Backend):
    """A server with OpenAI's protocol, over one client with connections that stay open."""

    def __init__(self, table: EndpointTable) -> None:
        self._client = OpenAIEngine(
            base_url=table.base_url,
            model=table.model,
            api_key=table.api_key,
            timeout=table.timeout,
            retries=0,
            extra=table.extra,
        )
        self._constrain, self._extra = table.constrain, dict(table.extra)
        self.name = self._client.name
        self.prices = (table.prices[0], table.prices[1])

    async def start(self) -> None:
        await self._client.__aenter__()
        self.name = self._client.name
        about = [self._client.base_url, self._client.model, self._constrain, sorted(self._extra.items())]
        self.identity = hashlib.sha256(repr(about).encode()).hexdigest()

    async def stop(self) -> None:
        await self._client.__aexit__()

    def request(self, prompt: Prompt, messages: list[Message], sampling: Sampling) -> bytes:
        body = protocol.request_body(self._client.model, messages, (), sampling) | self._extra | self._format(prompt)
        return json.dumps(body).encode()

    async def send(self, request: bytes) -> tuple[int, str, float]:
        try:
            return await self._client.send_once("POST", "/chat/completions", request)
        except (OSError, TimeoutError, aiohttp.ClientError) as e:
            raise TransientFailure(f"{self.name}: {protocol.shortened(str(e)) or type(e).__name__}") from e

    def answer(self, response: tuple[int, str, float]) -> Answer:
        status, text, wait = response
        if status in RETRIED:
            raise TransientFailure(str(self._client.refusal(status, text)), wait)
        if status != 200:
            message = str(self._client.refusal(status, text))
            hint = ' (set constrain = "json_object" or "none")' if "response_format" in text else ""
            raise InfrastructureError(message + hint)
        try:
            data = self._client.read_json(text)
            with suppress(KeyError, IndexError, TypeError, AttributeError):
                if refused := data["choices"][0]["message"].get("refusal"):
                    raise Refusal(f"{self.name} declines to judge: {protocol.shortened(refused)}")
            reply = protocol.reply_of(data)
        except UnreadableVerdict:
            raise
        except InfrastructureError as e:
            raise TransientFailure(str(e)) from e
        if reply.finish == "length":
            raise UnreadableVerdict(f"{self.name}: the verdict was cut off; raise the judge's max_tokens")
        usage = reply.usage
        return Answer(
            text=reply.text,
            prompt_tokens=usage.get("prompt_tokens", 0),
            new_tokens=usage.get("completion_tokens", 0),
        )

    def _format(self, prompt: Prompt) -> Mapping[str, Any]:
        if self._constrain == "none":
            return {}
        if self._constrain == "json_object":
            return {"response_format": {"type": "json_object"}}
        schema = {"name": "verdict", "strict": True, "schema": prompt.form.schema()}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}


class EngineBackend(Backend):
    """An engine of this process.

    A `TokenEngine` is not asked to write: it gives the log-probs of the possible verdicts, and the likeliest is the
    verdict, so that every verdict can be read and sampling is not disturbed. Any other engine answers as text.

    Args:
        identity: of the weights, see `Backend`.
    """

    def __init__(self, engine: Engine, identity: str) -> None:
        self._engine = engine
        self.identity = identity
        self.name = engine.name
        self.writes = not isinstance(engine, TokenEngine)

    async def send(self, request: tuple[Prompt, list[Message], Sampling]) -> Answer:
        prompt, messages, sampling = request
        if not isinstance(self._engine, TokenEngine):
            try:
                reply = await self._engine.reply(messages, (), sampling)
            except LimitReached as e:
                raise InfrastructureError(f"{self.name}: the prompt of the judge is too long ({e})") from e
            if reply.finish == "length":
                raise UnreadableVerdict(f"{self.name}: the verdict was cut off; raise the judge's max_tokens")
            return Answer(text=reply.text, new_tokens=reply.usage.get("completion_tokens", 0))
        form = prompt.form
        if not form.choices:
            raise UsageError(f"{self.name} judges by likelihood, which needs few possible verdicts: pairs or scores")
        tokenizer = self._engine.tokenizer
        start = tokenizer.encode(tokenizer.render(messages, prompt=True))
        totals: dict[str, float] = {}
        for choice in form.choices:
            ids = tokenizer.encode(choice)
            try:
                totals[choice] = math.fsum(await self._engine.score([*start, *ids], len(start)))
            except LimitReached as e:
                raise InfrastructureError(f"{self.name}: the prompt of the judge is too long ({e})") from e
        best = max(form.choices, key=totals.__getitem__)
        raw = best if best in getattr(form, "labels", ()) else int(best)
        value = f'"{raw}"' if isinstance(raw, str) else str(raw)
        return Answer(text=f'{{"reason": "", "{form.key}": {value}}}', prompt_tokens=len(start) * len(totals))
