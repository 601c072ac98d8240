"""An agent of openai-agents: question on standard input, answer on standard output."""

import os
import sys

from agents import Agent, Runner, function_tool, set_default_openai_api, set_tracing_disabled

set_tracing_disabled(True)  # traces go to OpenAI


@function_tool
def add(x: int, y: int) -> int:
    """Add two numbers."""
    return x + y


agent = Agent(name="Adder", instructions="Use the tool.", model="policy", tools=[add])
if sys.argv[1] == "messages":
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    import litellm
    from agents.extensions.models.litellm_model import LitellmModel

    litellm.suppress_debug_info = True  # else it writes to standard output
    agent.model = LitellmModel("anthropic/policy")
else:
    set_default_openai_api("responses" if sys.argv[1] == "responses" else "chat_completions")
print(Runner.run_sync(agent, sys.stdin.read()).final_output)
