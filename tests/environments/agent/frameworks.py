"""An agent of openai-agents for tests; it knows nothing of Quintain."""

from __future__ import annotations

from typing import Any

from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

set_tracing_disabled(True)


@function_tool
def add(x: int, y: int) -> int:
    """Add two numbers."""
    return x + y


async def openai_agents(prompt: str, endpoint: Any) -> str:
    async with AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key) as client:
        model = OpenAIChatCompletionsModel(model="gpt-4o", openai_client=client)
        return str(
            (await Runner.run(Agent(name="Adder", model=model, tools=[add]), prompt)).final_output
        )
