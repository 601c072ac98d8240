"""Anthropic's Messages API: requests, responses, streams and errors as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from quintain import Message

from .dialect import Dialect
from .errors import ApiError, invalid, unsupported
from .fields import call_of, count_images, get, named, pieces, shown, stops_of, text_of, with_schema
from .request import ANY_TOOL, PolicyTurn, TurnRequest, arguments_of

_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
NO_THREADS = "thread_unsupported_request"
"""The code by which Anthropic's own clients know that they have to do without threads."""
_CHOICES = ("auto", "any", "tool", "none")


def _choice_of(choice: Any) -> dict[str, Any]:
    """Return the fields of `TurnRequest` that ``tool_choice`` sets. Nothing is forced."""
    if choice is None:
        return {}
    kind = choice.get("type") if isinstance(choice, dict) else None
    if kind not in _CHOICES:
        expected = ", ".join(_CHOICES)
        message = f"tool_choice is {shown(choice)}; expected an object with a type of {expected}"
        raise invalid(message, "tool_choice")
    name = get(choice, "name", str, "", "tool_choice.") if kind == "tool" else ""
    return {
        "calls_allowed": kind != "none",
        "must_call": ANY_TOOL if kind == "any" else name,
        "one_call": get(choice, "disable_parallel_tool_use", bool, False, "tool_choice."),
    }


DIALECT = Dialect(
    roles={"system": "system", "user": "user", "assistant": "assistant"},
    refused={
        "container": "there is no container",
        "mcp_servers": "the policy has the tools of its agent alone",
    },
    limits=("max_tokens",),
    format_at=("output_config", "format"),
    schema_in="",
    function_in="",
    parameters_in="input_schema",
    tool_types=(None, "custom"),
    choice=_choice_of,
)


def request_of(body: Mapping[str, Any]) -> TurnRequest:
    """Return a request.

    Raises:
        ApiError: 400, naming the field.
    """
    if body.get("thread") is not None:  # a client that is told so sends the whole history instead
        raise ApiError(
            400,
            NO_THREADS,
            "the gateway keeps no threads: send all messages, without `thread`",
            param="thread",
        )
    common = DIALECT.read(body)
    items = get(body, "messages", list, [])
    if not items:
        raise invalid("messages is empty; expected at least one message", "messages")
    turns = (_joined(_turn(item, f"messages[{i}]"), "") for i, item in enumerate(items))
    messages = _joined((message for turn in turns for message in turn), "\n\n")
    if not messages or messages[-1].role == "assistant":
        reason = "the beginning of a reply cannot be given (prefill); end with one of the user"
        raise unsupported("messages", f"messages end with one of the assistant: {reason}")
    system = text_of(body.get("system"), "system", role="system")
    thinking = get(body, "thinking", dict, {}).get("type")
    return TurnRequest(
        messages=with_schema(
            named([*([Message("system", system)] if system else []), *messages]),
            common.get("schema"),
        ),
        **common,
        stop=stops_of(body, "stop_sequences"),
        thoughts=thinking not in (None, "disabled"),
    )


def _turn(data: Any, where: str) -> Iterator[Message]:
    """Yield the messages of one turn, whose blocks may be texts, thoughts, calls and results."""
    if not isinstance(data, dict):
        raise invalid(f"{where} is no object", where, "invalid_type")
    blocks = data.get("content")
    if isinstance(blocks, str | None):
        yield DIALECT.message(data, where)
        return
    if not blocks and data.get("role") == "assistant":
        # a turn without any text was answered with no block, and comes back so
        yield DIALECT.message({**data, "content": ""}, where)
    blocks = get(data, "content", list, [], f"{where}.")
    count_images(blocks, f"{where}.content")
    for i, block in enumerate(blocks):
        place = f"{where}.content[{i}]"
        kind = block.get("type") if isinstance(block, dict) else None
        one = DIALECT.message({"role": data.get("role"), "content": ""}, where)
        if one.role == "assistant" and kind == "tool_use":
            call = call_of(block.get("name"), block.get("input"), block.get("id"), place)
            yield replace(one, calls=(call,))
        elif one.role == "assistant" and kind == "thinking":
            yield replace(one, reasoning=get(block, "thinking", str, "", f"{place}."))
        elif one.role == "assistant" and kind == "redacted_thinking":
            yield one
        elif one.role == "user" and kind == "tool_result":
            text = text_of(block.get("content"), f"{place}.content", role="tool")
            failed = get(block, "is_error", bool, False, f"{place}.") and not text
            call_id = get(block, "tool_use_id", str, "", f"{place}.")
            yield Message("tool", "error" if failed else text, call_id=call_id)
        else:
            yield replace(one, content=text_of([block], f"{where}.content", i, role=one.role))


def _joined(messages: Iterable[Message], between: str) -> list[Message]:
    """Return *messages* with those that follow one of the same role made one, as in Anthropic's
    API, and *between* their texts; each result stays a message of its own.
    """
    joined: list[Message] = []
    for message in messages:
        last = joined[-1] if joined else None
        if last is None or last.role != message.role or message.role == "tool":
            joined.append(message)
            continue
        joined[-1] = replace(
            last,
            content=between.join(filter(None, (last.content, message.content))),
            reasoning=last.reasoning + message.reasoning,
            calls=(*last.calls, *message.calls),
        )
    return joined


def response(request: TurnRequest, answer: PolicyTurn, response_id: str) -> dict[str, Any]:
    """Return the whole answer."""
    calls = answer.turn.calls
    stop = "max_tokens" if answer.cut else "tool_use" if calls else "end_turn"
    if stop == "end_turn" and answer.stop in request.stop:
        stop = "stop_sequence"
    return {
        "id": f"msg_{response_id}",
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": _content(request, answer),
        "stop_reason": stop,
        "stop_sequence": answer.stop if stop == "stop_sequence" else None,
        "usage": {
            "input_tokens": answer.prompt,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": answer.sampled,
        },
    }


def _content(request: TurnRequest, answer: PolicyTurn) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if answer.turn.reasoning and request.thoughts:
        # The signature proves to Anthropic's servers who thought; nobody reads it here.
        thought = {"thinking": answer.turn.reasoning, "signature": "none"}
        blocks.append({"type": "thinking", **thought})
    if answer.text:
        blocks.append({"type": "text", "text": answer.text, "citations": None})
    for call in answer.turn.calls:
        fields = {"id": call.id, "name": call.name, "input": dict(call.arguments)}
        blocks.append({"type": "tool_use", **fields})
    return blocks


def stream(whole: Mapping[str, Any], answer: PolicyTurn) -> Iterator[str]:
    """Yield a response as server-sent events."""
    usage = whole["usage"] | {"output_tokens": 0}
    ending = {name: whole[name] for name in ("stop_reason", "stop_sequence")}
    frame = {**whole, **dict.fromkeys(ending), "content": [], "usage": usage}
    yield _event("message_start", message=frame)
    yield _event("ping")
    arguments = [arguments_of(call) for call in answer.turn.calls]
    for index, block in enumerate(whole["content"]):
        kind = block["type"]
        empties: dict[str, dict[str, Any]] = {
            "text": {"text": ""},
            "thinking": {"thinking": "", "signature": ""},
            "tool_use": {"input": {}},
        }
        yield _event("content_block_start", index=index, content_block=block | empties[kind])
        deltas: list[dict[str, Any]]
        if kind == "tool_use":
            parts = pieces(arguments.pop(0))
            deltas = [{"type": "input_json_delta", "partial_json": part} for part in parts]
        else:
            deltas = [{"type": f"{kind}_delta", kind: part} for part in pieces(block[kind])]
        if kind == "thinking":
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        for delta in deltas:
            yield _event("content_block_delta", index=index, delta=delta)
        yield _event("content_block_stop", index=index)
    yield _event("message_delta", delta=ending, usage=whole["usage"])
    yield _event("message_stop")


def _event(kind: str, **fields: Any) -> str:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n"


def error_of(error: ApiError) -> dict[str, Any]:
    """Return the body that tells of *error*.

    Programs that summarise a conversation which has become too long know it by the beginning of the
    message.
    """
    too_long = "prompt is too long: " if error.code == "context_length_exceeded" else ""
    kind = _KINDS.get(error.status, "api_error" if error.status >= 500 else _KINDS[400])
    details = {"error_code": error.code, "param": error.param}
    return {
        "type": "error",
        "error": {"type": kind, "message": too_long + error.message, "details": details},
        "request_id": None,
    }
