"""An agent of smolagents: question on standard input, answer on standard output."""

import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else litellm fetches prices at its import
import litellm
from smolagents import LiteLLMModel, OpenAIModel, ToolCallingAgent, tool

litellm.suppress_debug_info = True  # else it writes to standard output


@tool
def add(x: int, y: int) -> int:
    """Add two numbers.

    Args:
        x: one.
        y: the other.
    """
    return x + y


NAMES = {"responses": "openai/responses/policy", "messages": "anthropic/policy"}
if sys.argv[1] == "chat":
    model = OpenAIModel("policy")
else:
    model = LiteLLMModel(NAMES[sys.argv[1]])
agent = ToolCallingAgent(tools=[add], model=model, max_steps=4, verbosity_level=0)
print(agent.run(sys.stdin.read()))
