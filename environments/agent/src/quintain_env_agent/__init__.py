"""Environments whose episodes are runs of an agent that knows nothing of Quintain."""

from __future__ import annotations

from .environment import AgentProgram, Answer, right_answer
from .sandboxed import SandboxedAgent

__all__ = ["AgentProgram", "Answer", "SandboxedAgent", "right_answer"]
