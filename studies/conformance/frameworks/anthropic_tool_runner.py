"""The tool runner of the `anthropic` client: question on standard input, answer on standard output."""

import sys

from anthropic import Anthropic, beta_tool


@beta_tool
def add(x: int, y: int) -> str:
    """Add two numbers."""
    return str(x + y)


message = (
    Anthropic()
    .beta.messages.tool_runner(
        model="policy",
        max_tokens=1000,
        tools=[add],
        messages=[{"role": "user", "content": sys.stdin.read()}],
    )
    .until_done()
)
print("".join(block.text for block in message.content if block.type == "text"))
