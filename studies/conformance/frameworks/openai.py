"""A loop with the plain `openai` client: question on standard input, answer on standard output."""

import json
import sys
from typing import Any

from openai import OpenAI

NUMBERS = {"x": {"type": "integer"}, "y": {"type": "integer"}}
ADD: Any = {"name": "add", "parameters": {"type": "object", "properties": NUMBERS}}
client = OpenAI()


def added(arguments: str) -> str:
    """Return the result of a call of `add`."""
    numbers = json.loads(arguments)
    return str(numbers["x"] + numbers["y"])


def chat(history: list[Any]) -> str:
    """Answer by chat completions."""
    tools: Any = [{"type": "function", "function": ADD}]
    reply = client.chat.completions.create(model="policy", messages=history, tools=tools)
    message = reply.choices[0].message
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": added(call.function.arguments)}
        for call in message.tool_calls or ()
    ]
    return chat([*history, message, *results]) if results else message.content or ""


def responses(history: list[Any]) -> str:
    """Answer by the Responses API."""
    tools: Any = [{"type": "function", **ADD}]
    reply = client.responses.create(model="policy", input=history, tools=tools)
    calls = [item for item in reply.output if item.type == "function_call"]
    results = [
        {"type": "function_call_output", "call_id": c.call_id, "output": added(c.arguments)}
        for c in calls
    ]
    return responses([*history, *reply.output, *results]) if results else reply.output_text


question = [{"role": "user", "content": sys.stdin.read()}]
print(chat(question) if sys.argv[1] == "chat" else responses(question))
