"""Settings of the engines: ``[engine] args`` of a recipe, and the keywords of the constructors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quintain.errors import UsageError

__all__ = ["ChatSettings", "CompletionSettings", "RequestSettings"]


@dataclass(frozen=True, kw_only=True)
class RequestSettings:
    """What both engines take.

    Attributes:
        base_url: up to and including ``/v1``. A user and password in it are sent as basic
            authentication and shown nowhere.
        model: as the server calls it; empty takes the only one that it serves.
        api_key: *name* of the environment variable that holds the key; empty means
            ``OPENAI_API_KEY`` for api.openai.com and no key elsewhere, so that a key never goes to
            a host it was not meant for.
        timeout: seconds for one request, and for a server that stands still: one that answers
            nothing, whatever it is asked, is named after 10 s, and fails its requests after this
            time, retries included.
        retries: after the first try.
        backoff: seconds before the first retry; doubles each time.
        concurrency: requests worth having in flight.
        max_bytes: size of an answer; a longer one is not read to its end, and the episode ends as
            an infrastructure error.
        extra: further fields for each request, such as ``{"chat_template_kwargs":
            {"enable_thinking": false}}``.
    """

    base_url: str = "http://127.0.0.1:8000/v1"
    model: str = ""
    api_key: str = ""
    timeout: float = 600.0
    retries: int = 4
    backoff: float = 0.5
    concurrency: int = 64
    max_bytes: int = 64_000_000
    extra: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class ChatSettings(RequestSettings):
    """What `OpenAIEngine` takes.

    Attributes:
        limit_key: what the server calls the limit on new tokens; newer hosted models want
            ``max_completion_tokens``.
    """

    limit_key: str = "max_tokens"


@dataclass(frozen=True, kw_only=True)
class CompletionSettings(RequestSettings):
    """What `OpenAITokenEngine` takes.

    Attributes:
        tokenizer: folder or Hugging Face id of the tokenizer that the server uses.
        context: longest sequence that the server takes; 0 asks its list of models.

    Raises:
        UsageError: the context is negative.
    """

    tokenizer: str
    context: int = 0

    def __post_init__(self) -> None:
        if self.context < 0:
            raise UsageError(
                f"context is {self.context}; expected at least 1, or 0 to ask the server"
            )
