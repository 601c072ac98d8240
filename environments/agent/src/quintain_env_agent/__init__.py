"""Environments whose episodes are runs of an agent that knows nothing of Quintain."""

from __future__ import annotations

from .environment import AgentOutput, AgentProgram, right_answer
from .processes import run as run_program
from .sandboxed import SandboxedAgent

__all__ = ["AgentOutput", "AgentProgram", "SandboxedAgent", "right_answer", "run_program"]
