"""An agent of strands-agents: question on standard input, answer on standard output."""

import sys
from typing import Any

from strands import Agent, tool
from strands.models.anthropic import AnthropicModel
from strands.models.openai import OpenAIModel
from strands.models.openai_responses import OpenAIResponsesModel


@tool
def add(x: int, y: int) -> int:
    """Add two numbers."""
    return x + y


if sys.argv[1] == "messages":
    model: Any = AnthropicModel(model_id="policy", max_tokens=1000)
else:
    model = (OpenAIModel if sys.argv[1] == "chat" else OpenAIResponsesModel)(model_id="policy")
# Without a handler of None it also writes what the model says to standard output.
print(Agent(model=model, tools=[add], callback_handler=None)(sys.stdin.read()))
