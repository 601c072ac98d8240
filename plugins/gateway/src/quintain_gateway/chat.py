"""The chat-completions API: requests, responses and streams as JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from operator import eq
from typing import Any

from quintain import Message, ToolCall

from .dialect import Dialect
from .errors import invalid, unsupported
from .fields import (
    MOST_REPLIES,
    call_of,
    get,
    named,
    pieces,
    positive,
    stops_of,
    texts_alone,
    with_schema,
)
from .recent import Recent
from .request import PolicyTurn, TurnRequest, arguments_of, logprobs_of

__all__ = ["DIALECT", "request_of", "response", "stream"]

DIALECT = Dialect(
    roles={
        "system": "system",
        "developer": "system",
        "user": "user",
        "assistant": "assistant",
        "tool": "tool",
    },
    refused={
        "functions": "use tools",
        "function_call": "use tool_choice",
        "logit_bias": "it would change the policy that is trained",
        "audio": "only text is",
        "web_search_options": "the policy has the tools of its agent alone",
    },
    limits=("max_completion_tokens", "max_tokens"),
    format_at=("response_format",),
    schema_in="json_schema",
    function_in="function",
)

THOUGHTS = ("reasoning_content", "reasoning")
"""Fields of a message in which clients send a thought back, by the servers that they know."""


def request_of(body: Mapping[str, Any], read: Recent | None = None) -> TurnRequest:
    """Return a request.

    Args:
        read: the messages of earlier requests of the same agent.

    Raises:
        ApiError: 400, naming the field.
    """
    common = DIALECT.read(body)
    if get(body, "modalities", list, ["text"]) != ["text"]:
        raise unsupported("modalities", "only text is supported")
    messages = get(body, "messages", list, [])
    if not messages:
        raise invalid("messages is empty; expected at least one message", "messages")

    def more(known: list[Message], items: Sequence[Any]) -> list[Message]:
        new = [_message(m, f"messages[{i}]") for i, m in enumerate(items, len(known))]
        return named(new, known)

    return TurnRequest(
        messages=with_schema(
            (read or Recent(eq, texts_alone)).made(messages, more), common.get("schema")
        ),
        **common,
        n=positive(body, "n", MOST_REPLIES) or 1,
        stop=stops_of(body),
        logprobs=get(body, "logprobs", bool, False),
        token_ids=get(body, "return_token_ids", bool, False),
        stream_usage=bool(get(body, "stream_options", dict, {}).get("include_usage")),
    )


def _message(data: Any, where: str) -> Message:
    if not isinstance(data, dict):
        raise invalid(f"{where} is no object", where, "invalid_type")
    message = DIALECT.message(data, where)
    if message.role == "tool":
        call_id = get(data, "tool_call_id", str, "", f"{where}.")
        return replace(message, call_id=call_id, name=get(data, "name", str, "", f"{where}."))
    if message.role != "assistant":
        return message
    calls = tuple(
        _call(c, f"{where}.tool_calls[{i}]") for i, c in enumerate(data.get("tool_calls") or ())
    )
    refusal = get(data, "refusal", str, "", f"{where}.")
    thoughts = (get(data, name, str, "", f"{where}.") for name in THOUGHTS)
    return replace(
        message,
        content=message.content or refusal,
        reasoning=next(filter(None, thoughts), ""),
        calls=calls,
    )


def _call(data: Any, where: str) -> ToolCall:
    function = data.get("function") if isinstance(data, dict) else None
    if not isinstance(function, dict):
        raise invalid(f"{where} has no function", where, "invalid_type")
    return call_of(function.get("name"), function.get("arguments"), data.get("id"), where)


def response(
    request: TurnRequest, answers: Sequence[PolicyTurn], response_id: str
) -> dict[str, Any]:
    """Return the whole answer."""
    # tokens of the prompt, counted once, and of all replies
    prompt, sampled = answers[0].prompt, sum(a.sampled for a in answers)
    body = {
        "id": f"chatcmpl-{response_id}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": request.model,
        "choices": [_choice(request, answer, i) for i, answer in enumerate(answers)],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": sampled,
            "total_tokens": prompt + sampled,
        },
    }
    if request.token_ids:
        body["prompt_token_ids"] = list(answers[0].prompt_ids)
    return body


def stream(whole: Mapping[str, Any], *, with_usage: bool) -> Iterator[str]:
    """Yield a response as server-sent events; *with_usage* adds one that has the usage."""
    head = {k: whole[k] for k in ("id", "object", "created", "model")}
    head["object"] = "chat.completion.chunk"

    def chunk(index: int, delta: Mapping[str, Any], finish: str | None = None, **more: Any) -> str:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish} | more
        return _event(head | {"choices": [choice]} | ({"usage": None} if with_usage else {}))

    for choice in whole["choices"]:
        i, message = choice["index"], choice["message"]
        yield chunk(
            i,
            {
                "role": "assistant",
                "content": None if message["content"] is None else "",
                "refusal": None,
            },
        )
        if "reasoning_content" in message:
            yield chunk(i, {"reasoning_content": message["reasoning_content"]})
        if choice["logprobs"] is not None:
            yield chunk(i, {}, logprobs=choice["logprobs"])
        for piece in pieces(message["content"] or ""):
            yield chunk(i, {"content": piece})
        for k, call in enumerate(message.get("tool_calls", ())):
            function = {"name": call["function"]["name"], "arguments": ""}
            yield chunk(i, {"tool_calls": [call | {"index": k, "function": function}]})
            for piece in pieces(call["function"]["arguments"]):
                yield chunk(i, {"tool_calls": [{"index": k, "function": {"arguments": piece}}]})
        ids = {k: choice[k] for k in ("token_ids",) if k in choice}
        yield chunk(i, {}, choice["finish_reason"], **ids)
    if with_usage:
        yield _event(head | {"choices": [], "usage": whole["usage"]})
    yield "data: [DONE]\n\n"


def _event(data: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(data)}\n\n"


def _choice(request: TurnRequest, answer: PolicyTurn, index: int) -> dict[str, Any]:
    turn = answer.turn
    message: dict[str, Any] = {
        "role": "assistant",
        "content": answer.text or (None if turn.calls else ""),
        "refusal": None,
    }
    if turn.reasoning:
        message["reasoning_content"] = turn.reasoning
    if turn.calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": arguments_of(call)},
            }
            for call in turn.calls
        ]
    logprobs = {"content": logprobs_of(request, answer), "refusal": None}
    choice = {
        "index": index,
        "message": message,
        "logprobs": logprobs if request.logprobs else None,
        "finish_reason": "length" if answer.cut else "tool_calls" if turn.calls else "stop",
    }
    if request.token_ids:
        choice["token_ids"] = [t.id for t in answer.tokens]
    if answer.version is not None:
        choice["weight_version"] = answer.version
    return choice
