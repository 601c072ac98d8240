"""Messages, tools and replies as OpenAI chat-completions JSON, and what a server's refusal
means.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any, Literal

from quintain import Message, Reply, Sampling, ToolCall, ToolSpec
from quintain.data import read_json
from quintain.errors import InfrastructureError, UsageError
from quintain.models import PICTURE, PICTURE_PLACES

_FINISH: Mapping[str | None, Literal["stop", "length"]] = {
    None: "stop",  # some servers leave it out
    "stop": "stop",
    "tool_calls": "stop",
    "function_call": "stop",
    "length": "length",
}
# vLLM, llama.cpp, SGLang and the hosted services each say it in their own words, all with a status
# of 4xx.
_CONTEXT = re.compile(
    r"context[_ ](length|window|size)|exceed_context_size|maximum model length|max_model_len|"
    r"(prompt|input|request) is too (long|large)|too many (input )?tokens|exceeds? .{0,40}token "
    r"limit",
    re.IGNORECASE,
)
_TOO_LARGE = re.compile(
    r"max_(completion_)?tokens.{0,40}(too large|exceed|must be|at most)", re.IGNORECASE
)

__all__ = ["only_choice", "reply_of", "request_body", "shortened"]


DEEPEST = 64
"""Levels of objects and lists in an answer, at most."""

MOST_TOKENS = 2**31
"""A count of tokens from here on is an error of the server."""


def request_body(
    model: str,
    messages: Sequence[Message],
    tools: Sequence[ToolSpec],
    sampling: Sampling,
    *,
    limit_key: str = "max_tokens",
) -> dict[str, Any]:
    """Return the JSON of one request. Neutral values are left out, as strict servers refuse fields
    they do not know.

    Args:
        limit_key: what the server calls the limit on new tokens (``max_completion_tokens`` for
            newer hosted models).
    """
    body: dict[str, Any] = {
        "model": model,
        "messages": [message_json(m) for m in messages],
        "temperature": sampling.temperature,
    }
    optional = {
        limit_key: sampling.max_tokens,
        "top_p": sampling.top_p if sampling.top_p < 1 else None,
        "top_k": sampling.top_k or None,
        "min_p": sampling.min_p or None,
        "stop": list(sampling.stop) or None,
        "stop_token_ids": list(sampling.stop_ids) or None,
        # Servers keep seeds in 32 bits, signed or not.
        "seed": None if sampling.seed is None else sampling.seed % 2**31,
        "tools": [t.to_json() for t in tools] or None,
        "response_format": json.loads(sampling.response_format or "null"),
        "tool_choice": json.loads(sampling.tool_choice or "null") if tools else None,
    }
    return body | {k: v for k, v in optional.items() if v is not None}


def message_json(message: Message) -> dict[str, Any]:
    """Return one message, its pictures as parts ``image_url``. Reasoning is not sent back, as chat
    templates drop it.

    Raises:
        UsageError: a picture is lost, or ``quintain-vision`` is missing.
    """
    content = _content_json(message)
    out: dict[str, Any] = {"role": message.role, "content": content}
    if message.calls:
        out["content"] = content or None
        out["tool_calls"] = [_call_json(c, i) for i, c in enumerate(message.calls)]
    if message.call_id:
        out["tool_call_id"] = message.call_id
    if message.name and message.role != "tool":
        out["name"] = message.name
    return out


def _content_json(message: Message) -> str | list[dict[str, Any]]:
    """Return the content of *message*: text, or parts if it holds pictures. What an assistant and
    a tool spell is text.
    """
    if message.role == "assistant" or message.content.count(PICTURE) < 2:
        return message.content
    if find_spec("quintain_vision") is None:
        if message.role == "tool":  # no tool of this process has made a picture
            return message.content
        raise UsageError(
            "a message holds a picture, for which quintain-vision is missing: "
            "pip install 'quintain-engines[pictures]'"
        )
    from quintain_vision import content_json

    return content_json(message)


def _call_json(call: ToolCall, index: int) -> dict[str, Any]:
    # A call that could not be read has no name of its own, and servers refuse an empty one.
    function = {"name": call.name or "unreadable", "arguments": json.dumps(dict(call.arguments))}
    return {"id": call.id or _call_id(index), "type": "function", "function": function}


def reply_of(response: Any) -> Reply:
    """Return the first choice of a response.

    Raises:
        InfrastructureError: the response is not a chat completion, or the server withheld the
            content.
    """
    try:
        if error := response.get("error"):
            raise InfrastructureError(f"the server answered an error: {shortened(error)}")
        choice = only_choice(response)
        message = choice["message"]
        finish = choice.get("finish_reason")
        text, reasoning = message.get("content") or "", _reasoning(message)
        calls = tuple(_call_of(c, i) for i, c in enumerate(message.get("tool_calls") or ()))
        counts = (response.get("usage") or {}).items()
        usage = {k: v for k, v in counts if type(v) is int and 0 <= v < MOST_TOKENS}
    except (KeyError, IndexError, TypeError, AttributeError) as e:
        raise InfrastructureError(
            f"not a chat completion ({type(e).__name__}: {e}): {shortened(response)}"
        ) from e
    if not isinstance(finish, str | None) or finish not in _FINISH:
        raise InfrastructureError(
            f"the server cut the reply off (finish_reason {shortened(finish)})"
        )
    if not isinstance(text, str):
        raise InfrastructureError(f"the reply's content is not text: {shortened(text)}")
    refusal = message.get("refusal")
    if not text and isinstance(refusal, str):
        text = refusal  # what the model says instead, in the place of another server
    if not (text or reasoning or calls) and message.get("content") is None:
        raise InfrastructureError(f"the reply has no content: {shortened(response)}")
    return Reply(
        text=_plain(text),
        reasoning=_plain(reasoning),
        calls=calls,
        finish=_FINISH[finish],
        usage=usage,
    )


def only_choice(response: Mapping[str, Any]) -> Any:
    """Return the choice of a response to a request for one.

    Raises:
        InfrastructureError: there are others, or it says that it is another one.
        KeyError, IndexError, TypeError: there is none.
    """
    choices = response["choices"]
    choice = choices[0]
    if len(choices) != 1 or choice.get("index", 0) != 0:
        places = shortened([c.get("index") if isinstance(c, dict) else c for c in choices])
        raise InfrastructureError(f"the server answered choices {places}; one was asked for")
    return choice


def most_tokens(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> int:
    """Return a number of tokens that a conversation cannot exceed: a token is at least a byte, and
    a template adds less than its names, roles and marks, generously counted.
    """
    sent = [message_json(m) for m in messages] + [t.to_json() for t in tools]
    # of a picture, the bytes say nothing
    pictures = sum(m.content.count(PICTURE) // 2 for m in messages) * PICTURE_PLACES
    return len(json.dumps(sent, ensure_ascii=False).encode()) + 64 * len(sent) + 1024 + pictures


def _reasoning(message: Mapping[str, Any]) -> str:
    """Return the reasoning, which servers name differently: ``reasoning_content`` (DeepSeek,
    SGLang, llama.cpp), ``reasoning`` (newer vLLM).
    """
    text = message.get("reasoning_content") or message.get("reasoning") or ""
    return text if isinstance(text, str) else ""


def _call_of(data: Mapping[str, Any], index: int) -> ToolCall:
    """Return a tool call; one that cannot be read carries an ``error``, since it is the policy's
    fault.
    """
    function = data["function"]
    name, text = function.get("name") or "", function.get("arguments") or "{}"
    call_id = data.get("id") or _call_id(index)
    if not isinstance(name, str) or not isinstance(call_id, str):
        raise TypeError("the name or the id of a tool call is no text")
    try:
        arguments = parsed(text) if isinstance(text, str) else text
    except ValueError as e:
        return ToolCall(name=name, id=call_id, error=f"the arguments are not JSON: {e}")
    if not isinstance(arguments, dict):
        return ToolCall(name=name, id=call_id, error="the arguments must be an object")
    return ToolCall(name=_plain(name), arguments=_plain(arguments), id=call_id)


def _plain(value: Any) -> Any:
    """Return *value*, JSON of a server, without the marks of pictures: an environment may repeat it in
    a message of the user, and a server shows no picture.
    """
    if isinstance(value, str):
        return value.replace(PICTURE, "\ufffd")
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    return [*map(_plain, value)] if isinstance(value, list) else value


def _call_id(index: int) -> str:
    return f"call-{index}"


def says_context(status: int, text: str) -> bool:
    """Return whether a refusal means that the conversation has outgrown the context."""
    return (
        400 <= status < 500 and status not in (401, 403, 404, 429) and bool(_CONTEXT.search(text))
    )


def says_limit(status: int, text: str) -> bool:
    """Return whether a refusal means that the limit on new tokens, not the prompt, is more than the
    context leaves.
    """
    return status in (400, 422) and bool(_TOO_LARGE.search(text))


def said_by(text: str) -> str:
    """Return the message in an error body: OpenAI's shape, FastAPI's, or the text itself."""
    try:
        data = parsed(text)
    except ValueError:  # also of a text that was cut
        return shortened(text)
    inner = data.get("error", data) if isinstance(data, dict) else data
    if isinstance(inner, dict):
        inner = inner.get("message") or inner.get("detail") or inner
    return shortened(inner)


def shortened(value: Any, limit: int = 300) -> str:
    """Return *value* as one line of at most *limit* characters, without control characters: a
    terminal would obey them.
    """
    text = " ".join(
        (value if isinstance(value, str) else json.dumps(value, default=str))[: 10 * limit].split()
    )
    text = "".join(c if c.isprintable() else "\ufffd" for c in text)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def parsed(text: str) -> Any:
    """Return the value of a JSON text, as `quintain.data.read_json`.

    Raises:
        ValueError: not JSON, or of more than `DEEPEST` levels.
    """
    return read_json(text, deepest=DEEPEST)
