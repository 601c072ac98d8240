"""The three APIs as clients write and read them: requests from messages, replies from bodies and
streams.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from quintain import Message, ToolCall, ToolSpec

from .truth import Received

__all__ = ["DIALECTS", "ClientDialect", "DialectName"]

DialectName = Literal["chat", "responses", "messages"]
Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class ClientDialect:
    """One API.

    Attributes:
        path: after ``/v1``.
        body: messages, tools and options as a request.
        replies: of a whole answer.
        whole: the answer that the events of a stream carry, put together from their parts.
    """

    name: DialectName
    path: str
    body: Callable[[Sequence[Message], Sequence[ToolSpec], Json], Json]
    replies: Callable[[Mapping[str, Any]], list[Received]]
    whole: Callable[[Sequence[Json]], Json]


def _arguments(call: ToolCall) -> str:
    # an error is what the client wrote in place of arguments
    return call.error or json.dumps(dict(call.arguments))


def _call(name: str, arguments: str, call_id: str) -> ToolCall:
    return ToolCall(name=name, arguments=json.loads(arguments or "{}"), id=call_id)


# chat completions


def _chat_body(messages: Sequence[Message], tools: Sequence[ToolSpec], options: Json) -> Json:
    functions = [
        {"name": t.name, "description": t.description, "parameters": dict(t.parameters)}
        for t in tools
    ]
    more = {"tools": [{"type": "function", "function": f} for f in functions]} if tools else {}
    return {"messages": [_chat_message(m) for m in messages], **more, **options}


def _chat_message(m: Message) -> Json:
    if m.role == "tool":
        return {"role": "tool", "tool_call_id": m.call_id, "content": m.content}
    message: Json = {"role": m.role, "content": m.content or (None if m.calls else "")}
    if m.reasoning:
        message["reasoning_content"] = m.reasoning
    if m.calls:
        message["tool_calls"] = [
            {
                "id": c.id,
                "type": "function",
                "function": {"name": c.name, "arguments": _arguments(c)},
            }
            for c in m.calls
        ]
    return message


def _chat_replies(whole: Mapping[str, Any]) -> list[Received]:
    replies = []
    for choice in whole["choices"]:
        message = choice["message"]
        calls = tuple(
            _call(c["function"]["name"], c["function"]["arguments"], c["id"])
            for c in message.get("tool_calls") or ()
        )
        finish = choice["finish_reason"]
        logprobs = (choice.get("logprobs") or {}).get("content") or ()
        replies.append(
            Received(
                text=(message.get("content") or "").strip(),
                reasoning=message.get("reasoning_content") or message.get("reasoning") or "",
                calls=calls,
                stop="calls" if finish == "tool_calls" else finish,
                token_ids=tuple(choice.get("token_ids") or ()),
                logps=tuple(row["logprob"] for row in logprobs),
                id=whole.get("id", ""),
            )
        )
    return replies


def _chat_whole(events: Sequence[Json]) -> Json:
    choices: dict[int, Json] = {}
    for event in events:
        for part in event["choices"]:
            choice = choices.setdefault(
                part["index"], {"message": {"content": "", "tool_calls": []}, "logprobs": None}
            )
            _chat_add(choice, part)
    return {"id": events[0]["id"], "choices": [choices[i] for i in sorted(choices)]}


def _chat_add(choice: Json, part: Json) -> None:
    message, delta = choice["message"], part.get("delta") or {}
    message["content"] += delta.get("content") or ""
    for name in ("reasoning_content", "reasoning"):
        message[name] = message.get(name, "") + (delta.get(name) or "")
    for piece in delta.get("tool_calls") or ():
        calls = message["tool_calls"]
        while len(calls) <= piece["index"]:
            calls.append({"id": "", "function": {"name": "", "arguments": ""}})
        call = calls[piece["index"]]
        call["id"] += piece.get("id") or ""
        for name in ("name", "arguments"):
            call["function"][name] += (piece.get("function") or {}).get(name) or ""
    for name in ("finish_reason", "token_ids"):
        if part.get(name):
            choice[name] = part[name]
    if part.get("logprobs"):
        rows = (choice["logprobs"] or {"content": []})["content"] + part["logprobs"]["content"]
        choice["logprobs"] = {"content": rows}


# responses


def _responses_body(messages: Sequence[Message], tools: Sequence[ToolSpec], options: Json) -> Json:
    functions = [
        {
            "type": "function",
            "name": t.name,
            "description": t.description,
            "parameters": dict(t.parameters),
        }
        for t in tools
    ]
    items: list[Json] = []
    for m in messages:
        if m.role == "tool":
            items.append(
                {"type": "function_call_output", "call_id": m.call_id, "output": m.content}
            )
            continue
        if m.reasoning:
            content = [{"type": "reasoning_text", "text": m.reasoning}]
            items.append({"type": "reasoning", "summary": [], "content": content})
        if m.content or not m.calls:
            items.append({"type": "message", "role": m.role, "content": m.content})
        items += [
            {"type": "function_call", "call_id": c.id, "name": c.name, "arguments": _arguments(c)}
            for c in m.calls
        ]
    renamed = {"max_output_tokens" if k == "max_tokens" else k: v for k, v in options.items()}
    return {"input": items, **({"tools": functions} if tools else {}), **renamed}


def _responses_replies(whole: Mapping[str, Any]) -> list[Received]:
    text = reasoning = ""
    calls: list[ToolCall] = []
    for item in whole["output"]:
        if item["type"] == "message":
            text += "".join(part["text"] for part in item["content"])
        elif item["type"] == "reasoning":
            reasoning += "".join(part["text"] for part in item.get("content") or ())
        elif item["type"] == "function_call":
            calls.append(_call(item["name"], item["arguments"], item["call_id"]))
    stop = "length" if whole["status"] == "incomplete" else "calls" if calls else "stop"
    return [
        Received(
            text=text.strip(), reasoning=reasoning, calls=tuple(calls), stop=stop, id=whole["id"]
        )
    ]


def _responses_whole(events: Sequence[Json]) -> Json:
    """Return the response of the last event, whose texts and arguments must be those of the
    parts.
    """
    last: Json = events[-1]["response"]
    parts = {"text": "", "arguments": ""}
    for event in events:
        if event["type"] == "response.output_text.delta":
            parts["text"] += event["delta"]
        elif event["type"] == "response.function_call_arguments.delta":
            parts["arguments"] += event["delta"]
    texts = [p["text"] for i in last["output"] if i["type"] == "message" for p in i["content"]]
    arguments = [i["arguments"] for i in last["output"] if i["type"] == "function_call"]
    if parts != {"text": "".join(texts), "arguments": "".join(arguments)}:
        raise ValueError(f"the parts of the stream are not its response: {parts}")
    return last


# Anthropic's messages


def _messages_body(messages: Sequence[Message], tools: Sequence[ToolSpec], options: Json) -> Json:
    system = [{"type": "text", "text": m.content} for m in messages if m.role == "system"]
    turns: list[Json] = []
    for m in messages:
        if m.role == "system":
            continue
        role = "user" if m.role == "tool" else m.role
        if not turns or turns[-1]["role"] != role:
            turns.append({"role": role, "content": []})
        turns[-1]["content"] += _blocks(m)
    body: Json = {"max_tokens": 4096, "messages": turns}
    if system:
        body["system"] = system
    if tools:
        body["tools"] = [
            {"name": t.name, "description": t.description, "input_schema": dict(t.parameters)}
            for t in tools
        ]
    names = {"stop": "stop_sequences"}
    return body | {names.get(k, k): v for k, v in options.items()}


def _blocks(m: Message) -> list[Json]:
    if m.role == "tool":
        return [{"type": "tool_result", "tool_use_id": m.call_id, "content": m.content}]
    blocks: list[Json] = []
    if m.reasoning:
        blocks.append({"type": "thinking", "thinking": m.reasoning, "signature": "none"})
    if m.content:
        blocks.append({"type": "text", "text": m.content})
    return blocks + [
        {"type": "tool_use", "id": c.id, "name": c.name, "input": dict(c.arguments)}
        for c in m.calls
    ]


_STOPS = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "calls"}


def _messages_replies(whole: Mapping[str, Any]) -> list[Received]:
    blocks = whole["content"]
    calls = tuple(
        ToolCall(name=b["name"], arguments=b["input"], id=b["id"])
        for b in blocks
        if b["type"] == "tool_use"
    )
    return [
        Received(
            text="".join(b["text"] for b in blocks if b["type"] == "text").strip(),
            reasoning="".join(b["thinking"] for b in blocks if b["type"] == "thinking"),
            calls=calls,
            stop=_STOPS.get(whole["stop_reason"], whole["stop_reason"]),
            id=whole["id"],
        )
    ]


def _messages_whole(events: Sequence[Json]) -> Json:
    whole: Json = {}
    for event in events:
        if event["type"] == "message_start":
            whole = {**event["message"], "content": []}
        elif event["type"] == "content_block_start":
            whole["content"].append({**event["content_block"], "json": ""})
        elif event["type"] == "content_block_delta":
            block, delta = whole["content"][event["index"]], event["delta"]
            for name, key in (("text", "text"), ("thinking", "thinking"), ("partial_json", "json")):
                block[key] = block.get(key, "") + delta.get(name, "")
        elif event["type"] == "message_delta":
            whole |= event["delta"]
    for block in whole["content"]:
        if block["type"] == "tool_use":
            block["input"] = json.loads(block["json"] or "{}")
    return whole


DIALECTS: dict[DialectName, ClientDialect] = {
    "chat": ClientDialect(
        name="chat",
        path="/chat/completions",
        body=_chat_body,
        replies=_chat_replies,
        whole=_chat_whole,
    ),
    "responses": ClientDialect(
        name="responses",
        path="/responses",
        body=_responses_body,
        replies=_responses_replies,
        whole=_responses_whole,
    ),
    "messages": ClientDialect(
        name="messages",
        path="/messages",
        body=_messages_body,
        replies=_messages_replies,
        whole=_messages_whole,
    ),
}
"""By name."""
