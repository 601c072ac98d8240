"""An agent of crewai: question on standard input, answer on standard output."""

import os
import sys

os.environ |= {"CREWAI_DISABLE_TELEMETRY": "true", "CREWAI_TRACING_ENABLED": "false"}
from crewai import LLM, Agent
from crewai.tools import tool

MODELS = {
    "chat": LLM(model="openai/policy"),
    "responses": LLM(model="openai/policy", api="responses"),
}


@tool
def add(x: int, y: int) -> int:
    """Add two numbers."""
    return x + y


model = MODELS.get(sys.argv[1]) or LLM(model="anthropic/policy", max_tokens=1000)
agent = Agent(role="Adder", goal="Add.", backstory="You add.", llm=model, tools=[add])
print(agent.kickoff(sys.stdin.read()).raw)
