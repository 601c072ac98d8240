"""A loop with litellm: question on standard input, answer on standard output."""

import json
import os
import sys
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else prices are fetched at the import
import litellm

litellm.suppress_debug_info = True  # else it writes to standard output

NAMES = {"chat": "openai/policy", "responses": "openai/responses/policy"}
NUMBERS = {"x": {"type": "integer"}, "y": {"type": "integer"}}
ADD = {"name": "add", "parameters": {"type": "object", "properties": NUMBERS}}
tools = [{"type": "function", "function": ADD}]
model = NAMES.get(sys.argv[1], "anthropic/policy")
history: list[Any] = [{"role": "user", "content": sys.stdin.read()}]
while True:
    message = litellm.completion(model=model, messages=history, tools=tools).choices[0].message
    history.append(message)
    if not message.tool_calls:
        break
    for call in message.tool_calls:
        numbers = json.loads(call.function.arguments)
        result = str(numbers["x"] + numbers["y"])
        history.append({"role": "tool", "tool_call_id": call.id, "content": result})
print(message.content)
