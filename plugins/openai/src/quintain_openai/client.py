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

import aiohttp

from quintain import Engine, Message, Reply, Sampling, ToolSpec
from quintain.errors import InfrastructureError, LimitReached, UsageError
from quintain.registry import takes

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
        self._http: aiohttp.ClientSession | None = None
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
        self._http = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=self._settings.timeout),
            connector=aiohttp.TCPConnector(limit=0),  # the number of episodes bounds it
            headers={"Authorization": self._authorization} if self._authorization else {},
        )
        try:
            await self._probe()
        except InfrastructureError as e:
            await self._http.close()
            if isinstance(e.__cause__, (aiohttp.ClientConnectionError, TimeoutError)):
                raise InfrastructureError(
                    f"no server answers at {self.base_url} ({e}); is the server running? Start it, "
                    f"or check the URL"
                ) from e
            raise
        except BaseException:
            await self._http.close()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._http is not None:
            await self._http.close()
            self._http = None

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
            raise LimitReached("context", f"{self.name}: {protocol.said_by(text)}")
        if status != 200:
            raise self.refusal(status, text)
        return protocol.reply_of(self.read_json(text))

    async def _probe(self) -> None:
        """Ask what is served: it shows a wrong address or key before the first episode does."""
        status, text = await self.send("GET", "/models")
        if status in (401, 403):
            raise self.refusal(status, text)
        if status == 200:
            listed = self.read_json(text)
            rows = listed.get("data") if isinstance(listed, dict) else None
            models = {
                str(m["id"]): m.get("max_model_len")
                for m in rows or ()
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
        except (OSError, TimeoutError, aiohttp.ClientError):
            return None
        except InfrastructureError:  # too long an answer, or the engine is being closed
            pass
        return object()

    async def _send(self, method: str, path: str, seed: int | None, body: Any) -> tuple[int, str]:
        retry_after = 0.0
        for attempt in range(self._settings.retries + 1):
            try:
                status, text, retry_after = await self.send_once(method, path, body)
            except (OSError, TimeoutError, aiohttp.ClientError) as e:
                # aiohttp's connection errors are OSErrors too; all of them may pass.
                failure: Exception = e
                message = protocol.shortened(str(e)) or type(e).__name__
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

    async def send_once(self, method: str, path: str, body: Any) -> tuple[int, str, float]:
        """Send one request without retries; return status and text of the answer, and the seconds
        that ``Retry-After`` asks for.

        Args:
            body: sent as JSON; bytes are JSON already.

        Raises:
            InfrastructureError: not started, or an answer of more than ``max_bytes``.
            OSError, TimeoutError, aiohttp.ClientError: no answer.
        """
        if self._http is None:
            raise InfrastructureError(f"{self.name} is not started: use `async with engine:`")
        content = {"data": body, "headers": _JSON} if isinstance(body, bytes) else {"json": body}
        # A redirect would carry the conversation to a host that nobody named.
        async with self._http.request(
            method, self.base_url + path, **content, allow_redirects=False
        ) as response:
            limit = self._settings.max_bytes if method == "POST" else _MOST_LISTED
            data = bytearray()
            async for part in response.content.iter_any():  # decompressed
                data += part
                if len(data) > limit:
                    raise InfrastructureError(
                        f"{self.base_url}{path} answered more than {limit:,} bytes; check the "
                        "server" + (", or raise the engine's max_bytes" if method == "POST" else "")
                    )
            wait = _seconds(response.headers.get("Retry-After", ""))
            return response.status, data.decode(errors="replace"), wait

    def read_json(self, text: str) -> Any:
        try:
            return protocol.parsed(text)
        except ValueError as e:
            raise InfrastructureError(
                f"{self.base_url} answered no readable JSON: {protocol.shortened(text)}"
            ) from e

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


def _seconds(retry_after: str) -> float:
    """Return the seconds of a ``Retry-After`` header; its other form, a date, counts as none."""
    try:
        return max(0.0, float(retry_after))
    except ValueError:
        return 0.0
