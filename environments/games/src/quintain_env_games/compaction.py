"""What stays where a conversation is compacted, and a tool by which the policy decides when."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quintain import Agent, Message


def head_of(messages: Sequence[Message]) -> list[Message]:
    """Return the system message, if there is one, and the first message after it: the task."""
    after = next((i for i, m in enumerate(messages, 1) if m.role != "system"), len(messages))
    return list(messages[:after])


def compact_tool(agent: Agent) -> Callable[[str], str]:
    """Return a tool for `Agent.run`: the policy calls it with a summary and goes on from there.

    The new context has the task, the call, whose tokens are copies of those that were sampled, and
    its result. Results of other calls of the same turn stay, too.
    """

    def compact(summary: str) -> str:
        """Forget the conversation so far; only the task and this summary stay."""
        agent.rewrite([*head_of(agent.messages), agent.messages[-1]])
        return "compacted"

    return compact
