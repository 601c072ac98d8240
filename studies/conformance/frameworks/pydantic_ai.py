"""An agent of pydantic-ai: question on standard input, answer on standard output."""

import sys

from pydantic_ai import Agent

PROVIDERS = {"chat": "openai-chat", "responses": "openai-responses", "messages": "anthropic"}
agent = Agent(f"{PROVIDERS[sys.argv[1]]}:policy")


@agent.tool_plain
def add(x: int, y: int) -> int:
    """Add two numbers."""
    return x + y


print(agent.run_sync(sys.stdin.read()).output)
