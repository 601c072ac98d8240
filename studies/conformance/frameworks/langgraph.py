"""A graph of langgraph: question on standard input, answer on standard output."""

import sys
from typing import Any

from langchain_anthropic import ChatAnthropic
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition


@tool
def add(x: int, y: int) -> int:
    """Add two numbers."""
    return x + y


if sys.argv[1] == "messages":
    model: Any = ChatAnthropic(model="policy", max_tokens=1000)
else:
    model = ChatOpenAI(model="policy", use_responses_api=sys.argv[1] == "responses")
model = model.bind_tools([add])
graph = StateGraph(MessagesState)
graph.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
graph.add_node("tools", ToolNode([add]))
graph.add_edge(START, "model")
graph.add_conditional_edges("model", tools_condition)
graph.add_edge("tools", "model")
done = graph.compile().invoke({"messages": [("user", sys.stdin.read())]})
print(done["messages"][-1].text)
