"""The responses API: requests, responses and streams as JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, replace
from typing import Any

from quintain import Message, ToolCall

from .dialect import Dialect
from .errors import ApiError, invalid, unsupported
from .fields import call_of, get, named, pieces, text_of, with_schema
from .request import PolicyTurn, TurnRequest, arguments_of, logprobs_of

MOST_KEPT = 4096
"""Responses of an episode that ``previous_response_id`` finds."""

DIALECT = Dialect(
    roles={"system": "system", "developer": "system", "user": "user", "assistant": "assistant"},
    refused={
        "background": "there is nobody to poll",
        "conversation": "send the messages, or previous_response_id",
        "prompt": "there are no stored prompts",
    },
    limits=("max_output_tokens",),
    format_at=("text", "format"),
    schema_in="",
    function_in="",
)
RETURNED = (
    "instructions",
    "metadata",
    "previous_response_id",
    "max_output_tokens",
    "temperature",
    "top_p",
)
"""Fields of a request that its response repeats."""


@dataclass(frozen=True)
class ResponseHistory:
    """A conversation up to one response, without instructions and schema, which each request sends
    again.

    Attributes:
        response: the whole one.
    """

    messages: tuple[Message, ...]
    response: Mapping[str, Any]


def request_of(body: Mapping[str, Any], histories: Mapping[str, ResponseHistory]) -> TurnRequest:
    """Return a request; *histories* are the conversations that ``previous_response_id`` may name.

    Raises:
        ApiError: 400, naming the field; 404 for an unknown previous response.
    """
    common = DIALECT.read(body)
    include = get(body, "include", list, [])
    instructions = get(body, "instructions", str, "")
    messages = tuple(
        named([*_previous(body, histories), *_messages(get(body, "input", (str, list), []))])
    )
    if not messages:
        raise invalid("input is empty; expected text or at least one item", "input")
    told = text_of(instructions, "instructions", role="system")
    system = [Message("system", told)] if told else []
    return TurnRequest(
        messages=with_schema([*system, *messages], common.get("schema")),
        history=messages,
        **common,
        logprobs="message.output_text.logprobs" in include,
    )


def remember(
    histories: MutableMapping[str, ResponseHistory],
    request: TurnRequest,
    answer: PolicyTurn,
    response: Mapping[str, Any],
) -> None:
    """Keep the conversation up to *answer* under the id of its *response*."""
    turn = answer.turn
    reply = Message("assistant", answer.text, reasoning=turn.reasoning, calls=turn.calls)
    histories[response["id"]] = ResponseHistory((*request.history, reply), response)
    while len(histories) > MOST_KEPT:
        del histories[next(iter(histories))]


def stored(histories: Mapping[str, ResponseHistory], response_id: str) -> Mapping[str, Any]:
    """Return a response that was given before.

    Raises:
        ApiError: 404.
    """
    if response_id not in histories:
        raise ApiError(404, "response_not_found", f"no response {response_id!r} in this episode")
    return histories[response_id].response


def _previous(
    body: Mapping[str, Any], histories: Mapping[str, ResponseHistory]
) -> tuple[Message, ...]:
    previous = get(body, "previous_response_id", str, "")
    if previous and previous not in histories:
        message = f"no response {previous!r} in this episode"
        raise ApiError(404, "previous_response_not_found", message, param="previous_response_id")
    return histories[previous].messages if previous else ()


def _messages(items: str | list[Any]) -> list[Message]:
    """Read items as messages. The calls and texts of one turn, which are separate items, become one
    message.
    """
    if isinstance(items, str):
        return [Message("user", text_of(items, "input", role="user"))]
    messages: list[Message] = []
    thought = ""
    for i, item in enumerate(items):
        where = f"input[{i}]"
        if not isinstance(item, dict):
            raise invalid(f"{where} is no object", where, "invalid_type")
        kind = item.get("type") or "message"
        if kind == "reasoning":
            thought += _thought(item, where)
            continue
        if kind == "function_call":
            call = call_of(item.get("name"), item.get("arguments"), item.get("call_id"), where)
            messages = _with_call(messages, call)
        elif kind == "function_call_output":
            output = text_of(item.get("output"), f"{where}.output", role="tool")
            messages.append(
                Message("tool", output, call_id=get(item, "call_id", str, "", f"{where}."))
            )
        elif kind == "message":
            messages.append(DIALECT.message(item, where))
        else:
            raise unsupported(
                where,
                f"{where} is of type {kind!r}; only messages and function calls are supported",
            )
        if thought and messages[-1].role == "assistant":
            last = messages[-1]
            messages[-1] = replace(last, reasoning=last.reasoning + thought)
        thought = ""
    return messages


def _thought(item: Mapping[str, Any], where: str) -> str:
    """Return the text of a reasoning item, else its summary; one that is encrypted has none."""
    for name in ("content", "summary"):
        parts = get(item, name, list, [], f"{where}.")
        texts = [p.get("text") for p in parts if isinstance(p, dict)]
        if any(isinstance(text, str) and text for text in texts):
            return "".join(text for text in texts if isinstance(text, str))
    return ""


def _with_call(messages: list[Message], call: ToolCall) -> list[Message]:
    if messages and messages[-1].role == "assistant":
        last = messages[-1]
        return [*messages[:-1], replace(last, calls=(*last.calls, call))]
    return [*messages, Message("assistant", "", calls=(call,))]


def response(
    body: Mapping[str, Any], request: TurnRequest, answer: PolicyTurn, response_id: str
) -> dict[str, Any]:
    """Return the whole answer."""
    now = int(time.time())
    return {
        "id": response_id,
        "object": "response",
        "created_at": now,
        "status": "incomplete" if answer.cut else "completed",
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if answer.cut else None,
        "model": request.model,
        "output": _output(request, answer, response_id),
        "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": body.get("tools") or [],
        "text": {"format": (body.get("text") or {}).get("format") or {"type": "text"}},
        "usage": {
            "input_tokens": answer.prompt,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": answer.sampled,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": answer.prompt + answer.sampled,
        },
        **{name: body.get(name) for name in RETURNED},
        "completed_at": now,
    }


def stream(whole: Mapping[str, Any]) -> Iterator[str]:
    """Yield a response as server-sent events."""
    frame = {k: v for k, v in whole.items() if k != "completed_at"}
    frame |= {"status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
    events: list[tuple[str, dict[str, Any]]] = [
        ("created", {"response": frame}),
        ("in_progress", {"response": frame}),
    ]
    for index, item in enumerate(whole["output"]):
        events += _item_events(index, item)
    events.append((whole["status"], {"response": whole}))
    for number, (name, data) in enumerate(events):
        content = json.dumps({"type": f"response.{name}", "sequence_number": number} | data)
        yield f"event: response.{name}\ndata: {content}\n\n"


def _item_events(index: int, item: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    place = {"output_index": index, "item_id": item["id"]}
    empty: dict[str, dict[str, Any]] = {
        "function_call": {"arguments": ""},
        "message": {"content": []},
    }
    yield (
        "output_item.added",
        {
            "output_index": index,
            "item": {**item, **empty.get(item["type"], {}), "status": "in_progress"},
        },
    )
    if item["type"] == "function_call":
        for piece in pieces(item["arguments"]):
            yield "function_call_arguments.delta", {**place, "delta": piece}
        yield (
            "function_call_arguments.done",
            {**place, "name": item["name"], "arguments": item["arguments"]},
        )
    elif item["type"] == "message":
        (part,) = item["content"]
        place["content_index"] = 0
        yield "content_part.added", {**place, "part": {**part, "text": "", "logprobs": []}}
        for k, piece in enumerate(pieces(part["text"])):
            yield (
                "output_text.delta",
                {**place, "delta": piece, "logprobs": [] if k else part["logprobs"]},
            )
        yield "output_text.done", {**place, "text": part["text"], "logprobs": part["logprobs"]}
        yield "content_part.done", {**place, "part": part}
    yield "output_item.done", {"output_index": index, "item": item}


def _output(request: TurnRequest, answer: PolicyTurn, response_id: str) -> list[dict[str, Any]]:
    turn, tail = answer.turn, response_id.removeprefix("resp_")
    status = "incomplete" if answer.cut else "completed"
    items: list[dict[str, Any]] = []
    if turn.reasoning:
        content = [{"type": "reasoning_text", "text": turn.reasoning}]
        items.append(
            {
                "type": "reasoning",
                "id": f"rs_{tail}",
                "summary": [],
                "content": content,
                "status": status,
            }
        )
    if answer.text or not turn.calls:
        logprobs = logprobs_of(request, answer) if request.logprobs else []
        part = {"type": "output_text", "text": answer.text, "annotations": [], "logprobs": logprobs}
        fields = {"id": f"msg_{tail}", "role": "assistant", "status": status}
        items.append({"type": "message", **fields, "content": [part]})
    for i, call in enumerate(turn.calls):
        fields = {"id": f"fc_{tail}_{i}", "call_id": call.id, "status": status}
        items.append(
            {"type": "function_call", **fields, "name": call.name, "arguments": arguments_of(call)}
        )
    return items
