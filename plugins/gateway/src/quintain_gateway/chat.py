"""The chat-completions API: requests, responses and streams as JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from quintain import Message, ToolCall, ToolSpec

from .errors import invalid, unsupported
from .fields import (
    MOST_REPLIES,
    call_of,
    choice_of,
    distinct,
    format_of,
    get,
    named,
    pieces,
    positive,
    refuse,
    sampling_of,
    stops_of,
    text_of,
    tool_of,
    with_schema,
)
from .request import PolicyTurn, Token, TurnRequest

_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_REFUSED = {
    "functions": "use tools",
    "function_call": "use tool_choice",
    "logit_bias": "it would change the policy that is trained",
    "audio": "only text is",
    "web_search_options": "the policy has the tools of its agent alone",
}


def request_of(body: Mapping[str, Any]) -> TurnRequest:
    """Return a request.

    Raises:
        ApiError: 400, naming the field.
    """
    refuse(body, _REFUSED)
    form = format_of(get(body, "response_format", dict, {}), "json_schema", "response_format")
    if get(body, "modalities", list, ["text"]) != ["text"]:
        raise unsupported("modalities", "only text is supported")
    limit = positive(body, "max_completion_tokens") or positive(body, "max_tokens")
    top = get(body, "top_logprobs", int, 0)
    if not 0 <= top <= 20:
        raise invalid(f"top_logprobs is {top}; expected 0 to 20", "top_logprobs")
    messages = get(body, "messages", list, [])
    if not messages:
        raise invalid("messages is empty; expected at least one message", "messages")
    return TurnRequest(
        messages=with_schema(
            named(_message(m, f"messages[{i}]") for i, m in enumerate(messages)), form.get("schema")
        ),
        tools=distinct(
            [_tool(t, f"tools[{i}]") for i, t in enumerate(get(body, "tools", list, []))]
        ),
        **choice_of(body.get("tool_choice")),
        **form,
        n=positive(body, "n", MOST_REPLIES) or 1,
        max_tokens=limit,
        stop=stops_of(body),
        sampling=sampling_of(body),
        logprobs=get(body, "logprobs", bool, False),
        top_logprobs=top,
        token_ids=get(body, "return_token_ids", bool, False),
        stream=get(body, "stream", bool, False),
        stream_usage=bool(get(body, "stream_options", dict, {}).get("include_usage")),
        model=get(body, "model", str, "default"),
    )


def _message(data: Any, where: str) -> Message:
    if not isinstance(data, dict):
        raise invalid(f"{where} is no object", where, "invalid_type")
    role: Any = _ROLES.get(get(data, "role", str, "", f"{where}."))
    if role is None:
        raise invalid(
            f"{where}.role is {data.get('role')!r}; expected one of {', '.join(_ROLES)}",
            f"{where}.role",
        )
    content = text_of(data.get("content"), f"{where}.content")
    if role == "tool":
        call_id = get(data, "tool_call_id", str, "", f"{where}.")
        return Message(role, content, call_id=call_id, name=get(data, "name", str, "", f"{where}."))
    if role != "assistant":
        return Message(role, content)
    calls = tuple(
        _call(c, f"{where}.tool_calls[{i}]") for i, c in enumerate(data.get("tool_calls") or ())
    )
    refusal = get(data, "refusal", str, "", f"{where}.")
    return Message(role, content or refusal, calls=calls)


def _call(data: Any, where: str) -> ToolCall:
    function = data.get("function") if isinstance(data, dict) else None
    if not isinstance(function, dict):
        raise invalid(f"{where} has no function", where, "invalid_type")
    return call_of(function.get("name"), function.get("arguments"), data.get("id"), where)


def _tool(data: Any, where: str) -> ToolSpec:
    kind = data.get("type") if isinstance(data, dict) else None
    if kind != "function":
        raise unsupported(where, f"{where} is of type {kind!r}; only functions are supported")
    return tool_of(data.get("function"), f"{where}.function")


def response(
    request: TurnRequest, answers: Sequence[PolicyTurn], response_id: str
) -> dict[str, Any]:
    """Return the whole answer."""
    choices = [_choice(request, answer, i) for i, answer in enumerate(answers)]
    body = _head(request, response_id, "chat.completion") | {
        "choices": choices,
        "usage": usage(answers),
    }
    if request.token_ids:
        body["prompt_token_ids"] = list(answers[0].prompt_ids)
    return body


def stream(request: TurnRequest, answers: Sequence[PolicyTurn], response_id: str) -> Iterator[str]:
    """Yield the answer as the data of server-sent events."""
    head = _head(request, response_id, "chat.completion.chunk")

    def chunk(index: int, delta: Mapping[str, Any], finish: str | None = None, **more: Any) -> str:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish} | more
        return json.dumps(
            head | {"choices": [choice]} | ({"usage": None} if request.stream_usage else {})
        )

    for i, answer in enumerate(answers):
        message = _said(answer)
        yield chunk(
            i,
            {
                "role": "assistant",
                "content": None if message["content"] is None else "",
                "refusal": None,
            },
        )
        if message.get("reasoning_content"):
            yield chunk(i, {"reasoning_content": message["reasoning_content"]})
        if request.logprobs:
            yield chunk(i, {}, logprobs=_logprobs(request, answer.tokens))
        for piece in pieces(message["content"] or ""):
            yield chunk(i, {"content": piece})
        for k, call in enumerate(message.get("tool_calls", ())):
            function = {"name": call["function"]["name"], "arguments": ""}
            yield chunk(i, {"tool_calls": [call | {"index": k, "function": function}]})
            for piece in pieces(call["function"]["arguments"]):
                yield chunk(i, {"tool_calls": [{"index": k, "function": {"arguments": piece}}]})
        more = {"token_ids": [t.id for t in answer.tokens]} if request.token_ids else {}
        yield chunk(i, {}, finish_of(answer), **more)
    if request.stream_usage:
        yield json.dumps(head | {"choices": [], "usage": usage(answers)})
    yield "[DONE]"


def finish_of(answer: PolicyTurn) -> str:
    """Return why the turn ended, in this API's words."""
    if answer.turn.finish == "length":
        return "length"
    return "tool_calls" if answer.turn.calls else "stop"


def usage(answers: Sequence[PolicyTurn]) -> dict[str, int]:
    """Tokens of the prompt, counted once, and of all replies."""
    prompt, sampled = answers[0].prompt, sum(a.sampled for a in answers)
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}


def arguments_of(call: ToolCall) -> str:
    """Return the arguments of a call, as JSON."""
    return json.dumps(dict(call.arguments), ensure_ascii=False)


def _head(request: TurnRequest, response_id: str, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{response_id}",
        "object": kind,
        "created": int(time.time()),
        "model": request.model,
    }


def _choice(request: TurnRequest, answer: PolicyTurn, index: int) -> dict[str, Any]:
    logprobs = _logprobs(request, answer.tokens) if request.logprobs else None
    choice = {
        "index": index,
        "message": _said(answer),
        "logprobs": logprobs,
        "finish_reason": finish_of(answer),
    }
    if request.token_ids:
        choice["token_ids"] = [t.id for t in answer.tokens]
    if answer.version is not None:
        choice["weight_version"] = answer.version
    return choice


def _said(answer: PolicyTurn) -> dict[str, Any]:
    turn = answer.turn
    content = answer.text or (None if turn.calls else "")
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if turn.reasoning:
        message["reasoning_content"] = turn.reasoning
    if turn.calls:
        functions = [(c.id, {"name": c.name, "arguments": arguments_of(c)}) for c in turn.calls]
        message["tool_calls"] = [
            {"id": id_, "type": "function", "function": f} for id_, f in functions
        ]
    return message


def _logprobs(request: TurnRequest, tokens: Sequence[Token]) -> dict[str, Any]:
    return {"content": [logprob_of(t, request.top_logprobs) for t in tokens], "refusal": None}


def logprob_of(token: Token, top: int) -> dict[str, Any]:
    """Return a token with its log-prob. Engines report the sampled token alone, so it is the only
    one of ``top_logprobs``.
    """
    one = {"token": token.text or f"token_id:{token.id}", "logprob": token.logp}
    one["bytes"] = list(token.text.encode()) if token.text else None
    return one | {"top_logprobs": [dict(one)] if top else []}
