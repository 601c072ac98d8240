"""Environments whose episodes are runs of an agent that knows nothing of Quintain."""

from __future__ import annotations

from .environment import AgentProgram, Answer, right_answer

__all__ = ["AgentProgram", "Answer", "right_answer"]
