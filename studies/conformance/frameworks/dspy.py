"""A ReAct module of dspy: question on standard input, answer on standard output."""

import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else litellm fetches prices at its import
import dspy


def add(x: int, y: int) -> int:
    """Add two numbers."""
    return x + y


if sys.argv[1] == "messages":
    model = dspy.LM("anthropic/policy")
else:
    model = dspy.LM("openai/policy", model_type=sys.argv[1])
dspy.configure(lm=model)
print(dspy.ReAct("question -> answer", tools=[add])(question=sys.stdin.read()).answer)
