"""A loop with the plain `anthropic` client: question on standard input, answer on standard output."""

import sys
from typing import Any

from anthropic import Anthropic

NUMBERS = {"x": {"type": "integer"}, "y": {"type": "integer"}}
ADD: Any = {"name": "add", "input_schema": {"type": "object", "properties": NUMBERS}}
history: list[Any] = [{"role": "user", "content": sys.stdin.read()}]
client, results = Anthropic(), [{}]
while results:
    message = client.messages.create(model="policy", max_tokens=1000, tools=[ADD], messages=history)
    results = [
        {
            "type": "tool_result",
            "tool_use_id": block.id,
            "content": str(block.input["x"] + block.input["y"]),
        }
        for block in message.content
        if block.type == "tool_use"
    ]
    history += [
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": results},
    ]
print("".join(block.text for block in message.content if block.type == "text"))
