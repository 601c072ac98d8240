"""An engine behind any OpenAI-compatible URL: vLLM, SGLang, llama.cpp, a hosted service."""

from __future__ import annotations

import asyncio
import base64
import os
import re
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Self
from urllib.parse import unquote, urlsplit

from quintain import Engine, Message, Reply, Sampling, ToolSpec
from quintain.errors import InfrastructureError, LimitReached, UsageError
from quintain.registry import takes

from ..http import HttpAnswer, HttpClient, NoAnswer, json_of
from . import protocol
from .retries import RETRIED, wait_before_retry
from .server_watch import ServerWatch
from .settings import ChatSettings

__all__ = ["OpenAIEngine"]

_JSON = {"Content-Type": "application/json"}
_MOST_LISTED = 16_000_000
"""Bytes of the list of models, at most."""


class OpenAIEngine(Engine):
    """Chat completions over HTTP, for evaluation and for players that are not trained.

    Transient failures (no connection, a time-out, 408, 409, 425, 429, 5xx) are retried with
    exponential backoff and jitter, or after what ``Retry-After`` says; then, and for any other
    refusal, the episode ends as an infrastructure error. A prompt that the server finds too long is
    `LimitReached`: the policy's fault.

    Attributes:
        longest: tokens of the longest sequence of each served model, where the server says it (vLLM
            does).
    """

    @takes(ChatSettings)
    def __init__(self, **settings: Any) -> None:
        """Prepare requests with `ChatSettings`; nothing is asked until the engine is entered.

        Raises:
            UsageError: the URL or the key cannot be used.
        """
        self._settings = chosen = ChatSettings(**settings)
        self.base_url, host, login = _without_login(chosen.base_url)
        self.model = chosen.model
        self.name = f"openai:{protocol.shortened(self.model, 100) or host}"
        self._key_name = chosen.api_key or (
            "OPENAI_API_KEY" if host.lower().partition(":")[0] == "api.openai.com" else ""
        )
        self._key = _key_of(self._key_name, required=bool(chosen.api_key))
        if self._key and login:
            raise UsageError(
                f"base_url has a password and ${self._key_name} a key; leave one of them out"
            )
        self._authorization = f"Bearer {self._key}" if self._key else login
        self._extra = dict(chosen.extra or {})
        self._served: tuple[str, ...] = ()
        self.longest: Mapping[str, int] = {}
        self._http = HttpClient(
            self.base_url,
            seconds=chosen.timeout,
            most_bytes=chosen.max_bytes,
            headers={"Authorization": self._authorization} if self._authorization else {},
        )
        self._watch = ServerWatch(
            f"the server at {self.base_url}",
            timeout=chosen.timeout,
            setting="the engine's timeout",
            sign_of_life=self._answers,
        )

    @property
    def concurrency(self) -> int | None:
        return self._settings.concurrency

    async def __aenter__(self) -> Self:
        await self._http.__aenter__()
        try:
            await self._probe()
        except InfrastructureError as e:
            await self._http.__aexit__()
            if isinstance(e.__cause__, NoAnswer):
                raise InfrastructureError(
                    f"no server answers at {self.base_url} ({e}); is the server running? Start it, "
                    f"or check the URL"
                ) from e
            raise
        except BaseException:
            await self._http.__aexit__()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._http.__aexit__()

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling
    ) -> Reply:
        body = (
            protocol.request_body(
                self.model, messages, tools, sampling, limit_key=self._settings.limit_key
            )
            | self._extra
        )
        status, text = await self.send("POST", "/chat/completions", sampling.seed, body)
        if self._settings.limit_key in body and protocol.says_limit(status, text):
            # The context leaves less than the limit, so the context is the limit, as for every
            # other engine.
            del body[self._settings.limit_key]
            status, text = await self.send("POST", "/chat/completions", sampling.seed, body)
        if protocol.says_context(status, text):
            raise self._too_long(messages, tools, sampling, protocol.said_by(text))
        if status != 200:
            raise self.refusal(status, text)
        return protocol.reply_of(self.read_json(text))

    def _too_long(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        sampling: Sampling,
        said: str,
    ) -> LimitReached | InfrastructureError:
        """Return what it means that the server finds a conversation too long.

        A conversation in which the policy has said nothing is not long by its fault, and one that
        fits whatever its tokens are is not too long.
        """
        message = f"{self.name}: {said}"
        if not any(m.role == "assistant" for m in messages):
            return InfrastructureError(
                f"{message}. The policy has said nothing yet: leave the task out, or serve the "
                "model with a longer context"
            )
        context = self.longest.get(self.model, 0)
        most = protocol.most_tokens(messages, tools) + (sampling.max_tokens or 0)
        if most < context:
            return InfrastructureError(
                f"{message}. The server lists a context of {context} tokens, and the conversation "
                f"has at most {most}"
            )
        return LimitReached("context", message)

    async def _probe(self) -> None:
        """Ask what is served: it shows a wrong address or key before the first episode does."""
        status, text = await self.send("GET", "/models")
        if status in (401, 403):
            raise self.refusal(status, text)
        if status == 200:
            listed = self.read_json(text)
            rows = listed.get("data") if isinstance(listed, dict) else None
            if not isinstance(rows, list):
                raise InfrastructureError(
                    f"{self.base_url}/models answered no list: {protocol.shortened(text)}"
                )
            models = {
                str(m["id"]): m.get("max_model_len")
                for m in rows
                if isinstance(m, dict) and "id" in m
            }
            self._served = tuple(models)
            self.longest = {
                name: context
                for name, context in models.items()
                if type(context) is int and context > 0
            }
        if self.model:
            return
        if len(self._served) != 1:
            served = self._listed() or "nothing it names"
            raise UsageError(
                f"{self.base_url} serves {served}; say which model is meant (--model NAME)"
            )
        self.model = self._served[0]
        self.name = f"openai:{protocol.shortened(self.model, 100)}"

    def _listed(self) -> str:
        return protocol.shortened(", ".join(self._served))

    async def send(
        self, method: str, path: str, seed: int | None = None, body: Any = None
    ) -> tuple[int, str]:
        """Send a request and return status and text of the answer; transient failures are retried.

        Raises:
            InfrastructureError: still failing after the last retry, or no sign of life for the
                timeout.
        """
        async with self._watch.request(f"{method} {path}", may_take_longer=True):
            return await self._send(method, path, seed, body)

    async def _answers(self, seconds: float) -> object:
        """Return something new if the server answers at all, whatever it says; ``None`` if not."""
        try:
            async with asyncio.timeout(seconds):
                await self.send_once("GET", "/models", None)
        except (TimeoutError, NoAnswer):
            return None
        except InfrastructureError:  # too long an answer, or the engine is being closed
            pass
        return object()

    async def _send(self, method: str, path: str, seed: int | None, body: Any) -> tuple[int, str]:
        retry_after = 0.0
        for attempt in range(self._settings.retries + 1):
            try:
                status, text, retry_after = await self.send_once(method, path, body)
            except NoAnswer as e:
                failure: Exception = e
                message = str(e)
            else:
                if status not in RETRIED:
                    return status, text
                failure = self.refusal(status, text)
                message = str(failure)
            if attempt < self._settings.retries:
                rng = Random(None if seed is None else seed + attempt)
                await asyncio.sleep(
                    wait_before_retry(self._settings.backoff, attempt, rng, asked=retry_after)
                )
        tries = self._settings.retries + 1
        raise InfrastructureError(
            f"{method} {self.base_url}{path} failed {tries} times; last: {message}"
        ) from failure

    async def send_once(self, method: str, path: str, body: Any) -> HttpAnswer:
        """Send one request without retries.

        Args:
            body: sent as JSON; bytes are JSON already.

        Raises:
            NoAnswer: no answer.
            InfrastructureError: not started, or an answer of more than ``max_bytes``.
        """
        if not self._http.started:
            raise InfrastructureError(f"{self.name} is not started: use `async with engine:`")
        raw = isinstance(body, bytes)
        return await self._http.send(
            method,
            path,
            json=None if raw else body,
            data=body if raw else None,
            headers=_JSON if raw else None,
            most_bytes=None if method == "POST" else _MOST_LISTED,
        )

    def read_json(self, text: str) -> Any:
        return json_of(text, self.base_url)

    def refusal(self, status: int, text: str) -> InfrastructureError:
        message = f"{self.base_url} answered {status}: {protocol.said_by(text) or 'nothing'}"
        if status in (401, 403):
            has = f"the key in ${self._key_name} was sent" if self._key else "no key was sent"
            return InfrastructureError(
                f"{message} ({has}; `api_key` names the environment variable that holds it)"
            )
        if status == 404:
            served = f"; it serves {self._listed()}" if self._served else ""
            return InfrastructureError(
                f"{message} (model {self.model!r}{served}; base_url should end in /v1)"
            )
        if 300 <= status < 400:
            return InfrastructureError(
                f"{message} (redirects are not followed: give the final address as base_url)"
            )
        if "max_completion_tokens" in text:
            message += ' (set the engine\'s limit_key = "max_completion_tokens")'
        return InfrastructureError(message)


def _without_login(url: str) -> tuple[str, str, str]:
    """Return the URL without user and password, its host and port, and a header of basic
    authentication, empty without them.

    Raises:
        UsageError: it is no URL of a server.
    """
    # of a URL that cannot be parsed, too: it may be shown
    bare = re.sub(r"//.*@", "//", url).rstrip("/")
    try:
        parts = urlsplit(url)
        valid = (
            parts.scheme in ("http", "https")
            and parts.hostname
            and parts.port != 0
            and url.isprintable()
        )
    except ValueError:
        valid = False
    if not valid:
        raise UsageError(
            f"base_url is {protocol.shortened(bare)!r}; expected something like "
            f"http://127.0.0.1:8000/v1"
        )
    user, separator, host = parts.netloc.rpartition("@")
    login = base64.b64encode(unquote(user).encode()).decode()
    return bare, host, f"Basic {login}" if separator else ""


def _key_of(name: str, *, required: bool) -> str:
    if not name:
        return ""
    if not name.isidentifier():
        # It may be a key: it must not reach a log.
        raise UsageError(
            "api_key takes the NAME of an environment variable that holds the key, such as "
            "OPENAI_API_KEY"
        )
    key = os.environ.get(name, "")
    if required and not key:
        raise UsageError(f"api_key names ${name}, which is not set: export {name}=...")
    if not (key.strip().isascii() and key.strip().isprintable()):
        raise UsageError(
            f"${name} holds characters that no key has, such as a line break; set it again"
        )
    return key.strip()
