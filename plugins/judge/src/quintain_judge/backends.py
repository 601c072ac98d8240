"""What gives the verdicts: a server with OpenAI's protocol, or an engine of this process."""

from __future__ import annotations

import hashlib
import json
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from quintain import Engine, InfrastructureError, LimitReached, Message, Sampling, TokenEngine
from quintain.errors import UsageError
from quintain_engines.http import NoAnswer, TimedOut
from quintain_engines.openai import OpenAIEngine, protocol
from quintain_engines.openai.retries import RETRIED

from .cache import JudgeAnswer
from .prompts import Prompt
from .verdicts import UnreadableVerdict

TRUNCATION = ("top_p", "top_k", "min_p")
"""Settings of the samples of a judge."""


class TransientFailure(InfrastructureError):
    """A failure that may pass.

    Attributes:
        wait: seconds that the server asks for.
        tokens: of the prompt and of the reply, where the server counted them; they are paid for.
    """

    def __init__(self, message: str, wait: float = 0.0) -> None:
        super().__init__(message)
        self.wait = wait
        self.tokens = (0, 0)


class Outage(TransientFailure):
    """The server cannot be reached, or says that what is behind it is down: nothing was judged,
    nothing is paid.
    """


OUTAGE_STATUS = (502, 503, 504)
"""What a server or a proxy answers while the model behind it starts."""


class Refusal(UnreadableVerdict):
    """The judge declines to judge."""


class Backend(ABC):
    """One judge model.

    Attributes:
        name: in messages.
        identity: what decides its answers besides the prompt, for the key of the cache; empty keeps
            them out of the cache, because the model changes.
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
        """Return what `send` takes to ask *messages*, which *prompt* was rendered to. It is made
        before the call has its turn among the concurrent ones, and `answer` is called after it: so
        requests follow each other without a gap.
        """
        return prompt, messages, sampling

    @abstractmethod
    async def send(self, request: Any) -> Any:
        """Send *request*; what comes back is for `answer`.

        Raises:
            TransientFailure, UnreadableVerdict: may be tried again.
            InfrastructureError: any other failure.
        """

    def answer(self, response: Any) -> JudgeAnswer:
        """Return the answer in what `send` returned.

        Raises:
            As `send`.
        """
        assert isinstance(response, JudgeAnswer)
        return response


class Replayed(Backend):
    """Stands for the judges of a recording."""

    name = "recording"

    async def send(self, request: Any) -> Any:
        raise InfrastructureError("a recording answers no new prompts")


class EndpointTable(BaseModel):
    """A judge behind a URL.

    Attributes:
        base_url, model, api_key, timeout: see the engine `openai`.
        extra: fields of each request that are no setting of the judge.
        constrain: how the server is held to the form of a verdict: ``json_schema``, ``json_object``
            or ``none``.
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


@dataclass(kw_only=True)
class JudgeModels:
    """Which models judge: settings of a judge service.

    Attributes:
        base_url: of the judge model's server, up to and including ``/v1``; empty judges by rules.
        model: as the server calls it; empty takes the only one that it serves.
        api_key: name of the environment variable that holds the key.
        constrain: how the server is held to the form of a verdict.
        prices: per million tokens of the prompt and of the reply, for the budget of money.
        extra: fields of each request that are no setting here, such as ``reasoning_effort``.
        panel: several judges instead; scores are averaged, choices need a majority.
    """

    base_url: str = ""
    model: str = ""
    api_key: str = ""
    constrain: Literal["json_schema", "json_object", "none"] = "json_schema"
    prices: list[float] = field(default_factory=lambda: [0.0, 0.0])
    extra: dict[str, Any] = field(default_factory=dict)
    panel: list[EndpointTable] = field(default_factory=list)


class OpenAIBackend(Backend):
    """A server with OpenAI's protocol, over one client with connections that stay open."""

    def __init__(self, table: EndpointTable) -> None:
        """Make the client of *table*.

        Raises:
            UsageError: *extra* has a setting of the judge.
        """
        for name in TRUNCATION:
            if name in table.extra:
                value = table.extra[name]
                raise UsageError(
                    f"judge: extra.{name} is a setting: write sampling = {{ {name} = {value} }}"
                )
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
        settings = [
            self._client.base_url,
            self._client.model,
            self._constrain,
            sorted(self._extra.items()),
        ]
        self.identity = hashlib.sha256(repr(settings).encode()).hexdigest()

    async def stop(self) -> None:
        await self._client.__aexit__()

    def request(self, prompt: Prompt, messages: list[Message], sampling: Sampling) -> bytes:
        body = (
            protocol.request_body(self._client.model, messages, (), sampling)
            | self._extra
            | self._format(prompt)
        )
        return json.dumps(body).encode()

    async def send(self, request: bytes) -> tuple[int, str, float]:
        try:
            return await self._client.send_once("POST", "/chat/completions", request)
        except TimedOut as e:
            raise TransientFailure(f"{self.name} did not answer in time") from e
        except NoAnswer as e:
            raise Outage(f"{self.name}: {e}") from e

    def answer(self, response: tuple[int, str, float]) -> JudgeAnswer:
        status, text, wait = response
        if status in OUTAGE_STATUS:
            raise Outage(str(self._client.refusal(status, text)), wait)
        if status in RETRIED:
            raise TransientFailure(str(self._client.refusal(status, text)), wait)
        if status != 200:
            message = str(self._client.refusal(status, text))
            hint = ' (set constrain = "json_object" or "none")' if "response_format" in text else ""
            raise InfrastructureError(message + hint)
        data: Any = {}
        try:
            data = self._client.read_json(text)
            return self._read(data)
        except UnreadableVerdict as e:
            e.tokens = _usage(data)
            raise
        except InfrastructureError as e:
            failure = TransientFailure(str(e))
            failure.tokens = _usage(data)
            raise failure from e

    def _read(self, data: Any) -> JudgeAnswer:
        choices = data.get("choices") if isinstance(data, dict) else None
        choice = choices[0] if isinstance(choices, list) and choices else None
        message = choice.get("message") if isinstance(choice, dict) else None
        if isinstance(message, dict) and (refused := message.get("refusal")):
            raise Refusal(f"{self.name} declines to judge: {protocol.shortened(str(refused))}")
        reply = protocol.reply_of(data)
        if reply.finish == "length":
            raise UnreadableVerdict(
                f"{self.name}: the verdict was cut off; raise the judge's max_tokens"
            )
        prompt_tokens, new_tokens = _usage(data)
        return JudgeAnswer(text=reply.text, prompt_tokens=prompt_tokens, new_tokens=new_tokens)

    def _format(self, prompt: Prompt) -> dict[str, Any]:
        if self._constrain == "none":
            return {}
        if self._constrain == "json_object":
            return {"response_format": {"type": "json_object"}}
        schema = {"name": "verdict", "strict": True, "schema": prompt.form.schema()}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}


def _usage(data: Any) -> tuple[int, int]:
    """Return the tokens of the prompt and of the reply as a completion counts them; 0 where it does
    not.
    """
    usage = data.get("usage") if isinstance(data, dict) else None
    counts = [
        usage.get(name) if isinstance(usage, dict) else 0
        for name in ("prompt_tokens", "completion_tokens")
    ]
    prompt, new = (count if isinstance(count, int) and count > 0 else 0 for count in counts)
    return prompt, new


class EngineBackend(Backend):
    """An engine of this process.

    A `TokenEngine` is not asked to write: it gives the log-probs of the possible verdicts, and the
    likeliest is the verdict, so that every verdict can be read and sampling is not disturbed. Any
    other engine answers as text.

    Args:
        identity: of the weights, see `Backend`.
    """

    def __init__(self, engine: Engine, identity: str) -> None:
        self._engine = engine
        self.identity = identity
        self.name = engine.name
        self.writes = not isinstance(engine, TokenEngine)

    async def send(self, request: tuple[Prompt, list[Message], Sampling]) -> JudgeAnswer:
        prompt, messages, sampling = request
        if not isinstance(self._engine, TokenEngine):
            try:
                reply = await self._engine.reply(messages, (), sampling)
            except LimitReached as e:
                raise InfrastructureError(
                    f"{self.name}: the prompt of the judge is too long ({e})"
                ) from e
            tokens = reply.usage.get("prompt_tokens", 0), reply.usage.get("completion_tokens", 0)
            if reply.finish == "length":
                cut = UnreadableVerdict(
                    f"{self.name}: the verdict was cut off; raise the judge's max_tokens"
                )
                cut.tokens = tokens
                raise cut
            return JudgeAnswer(text=reply.text, prompt_tokens=tokens[0], new_tokens=tokens[1])
        form = prompt.form
        if not form.choices:
            raise UsageError(
                f"{self.name} judges by likelihood, which needs few possible verdicts: pairs or "
                f"scores"
            )
        tokenizer = self._engine.tokenizer
        start = tokenizer.encode(tokenizer.render(messages, prompt=True))
        totals: dict[str, float] = {}
        for choice in form.choices:
            ids = tokenizer.encode(choice)
            try:
                totals[choice] = math.fsum(await self._engine.score([*start, *ids], len(start)))
            except LimitReached as e:
                raise InfrastructureError(
                    f"{self.name}: the prompt of the judge is too long ({e})"
                ) from e
        best = max(form.choices, key=totals.__getitem__)
        raw = best if best in getattr(form, "labels", ()) else int(best)
        value = f'"{raw}"' if isinstance(raw, str) else str(raw)
        return JudgeAnswer(
            text=f'{{"reason": "", "{form.key}": {value}}}', prompt_tokens=len(start) * len(totals)
        )
