"""An agent of crewai: question on standard input, answer on standard output."""

import os
import sys
from typing import Any

os.environ["CREWAI_DISABLE_TELEMETRY"] = "true"
from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool

SETTINGS: dict[str, dict[str, Any]] = {
    "chat": {"provider": "openai"},
    "responses": {"provider": "openai", "api": "responses"},
    "messages": {"provider": "anthropic", "max_tokens": 1000},
}


@tool
def add(x: int, y: int) -> int:
    """Add two numbers."""
    return x + y


model = LLM(model="policy", **SETTINGS[sys.argv[1]])
agent = Agent(role="Adder", goal="Add.", backstory="You add.", llm=model, tools=[add])
task = Task(description=sys.stdin.read(), expected_output="The sum.", agent=agent)
print(Crew(agents=[agent], tasks=[task]).kickoff().raw)
