"""A loop with the plain `openai` client: question on standard input, answer on standard output."""

import json
import sys
from typing import Any

from openai import OpenAI

NUMBERS = {"x": {"type": "integer"}, "y": {"type": "integer"}}
ADD = {"name": "add", "parameters": {"type": "object", "properties": NUMBERS}}
history: list[Any] = [{"role": "user", "content": sys.stdin.read()}]
client, answer = OpenAI(), ""


def added(arguments: str) -> str:
    """Return the result of a call of `add`."""
    numbers = json.loads(arguments)
    return str(numbers["x"] + numbers["y"])


while not answer:
    if sys.argv[1] == "chat":
        tools: Any = [{"type": "function", "function": ADD}]
        reply = client.chat.completions.create(model="policy", messages=history, tools=tools)
        message = reply.choices[0].message
        history.append(message)
        for call in message.tool_calls or ():
            result = added(call.function.arguments)
            history.append({"role": "tool", "tool_call_id": call.id, "content": result})
        answer = message.content or ""
    else:
        tools = [{"type": "function", **ADD}]
        response = client.responses.create(model="policy", input=history, tools=tools)
        history += response.output
        for item in response.output:
            if item.type == "function_call":
                result = {"call_id": item.call_id, "output": added(item.arguments)}
                history.append({"type": "function_call_output", **result})
        answer = response.output_text
print(answer)
