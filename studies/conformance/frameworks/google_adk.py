"""An agent of google-adk: question on standard input, answer on standard output."""

import asyncio
import os
import sys
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else litellm fetches prices at its import
import litellm
from google.adk.agents import LlmAgent
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner

litellm.suppress_debug_info = True  # else it writes to standard output

NAMES = {"chat": "openai/policy", "responses": "openai/responses/policy"}


def add(x: int, y: int) -> int:
    """Add two numbers."""
    return x + y


async def main() -> None:
    """Run the agent on the question."""
    model: Any = LiteLlm(model=NAMES.get(sys.argv[1], "anthropic/policy"))
    runner = InMemoryRunner(agent=LlmAgent(name="adder", model=model, tools=[add]))
    events = await runner.run_debug(sys.stdin.read(), quiet=True)
    print("".join(part.text or "" for part in events[-1].content.parts))


asyncio.run(main())
