"""Reinforcement learning for language models: a small policy-gradient core, everything else a plugin.

Public names are imported when first used, so ``import quintain`` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .errors import InfrastructureError, LimitReached, PolicyFault, QuintainError
    from .interfaces.agent import Agent, Limits
    from .interfaces.algorithm import KL, Algorithm
    from .interfaces.engine import Engine, Replay, Reply, TokenEngine, Weights
    from .interfaces.environment import Demonstration, Environment, control
    from .interfaces.pieces import (
        Piece,
        advantage,
        aggregation,
        correction,
        group_filter,
        objective,
        optimizer_step,
        per_group,
    )
    from .interfaces.reward import Reward, group_reward, reward
    from .interfaces.sampling_plan import SamplingPlan
    from .interfaces.service import Judge, Judgement, Likelihood, Sandbox, Service, Workers, need
    from .interfaces.tools import Tool, ToolSpec
    from .types.rollout import Group, Rollout, Score, Termination, Turn
    from .types.sampling import Sampling, ThinkingBudget
    from .types.task import Message, Task, ToolCall
    from .types.transcript import Sampled, Transcript

__version__ = "0.1.0"

API_VERSION = 1
"""Of the contract with plugins; a manifest names the one it was written for. It changes only when something breaks."""

_HOMES = {
    "errors": "InfrastructureError LimitReached PolicyFault QuintainError",
    "interfaces.agent": "Agent Limits",
    "interfaces.algorithm": "Algorithm KL",
    "interfaces.engine": "Engine Replay Reply TokenEngine Weights",
    "interfaces.environment": "control Demonstration Environment",
    "interfaces.pieces": "advantage aggregation correction group_filter objective optimizer_step per_group Piece",
    "interfaces.reward": "group_reward Reward reward",
    "interfaces.sampling_plan": "SamplingPlan",
    "interfaces.service": "Judge Judgement Likelihood need Sandbox Service Workers",
    "interfaces.tools": "Tool ToolSpec",
    "types.rollout": "Group Rollout Score Termination Turn",
    "types.sampling": "Sampling ThinkingBudget",
    "types.task": "Message Task ToolCall",
    "types.transcript": "Sampled Transcript",
}
"""Module to the public names that it defines."""
_HOME = {name: module for module, names in _HOMES.items() for name in names.split()}

__all__ = [  # noqa: RUF022 - in alphabetical order, whatever the case
    "advantage", "Agent", "aggregation", "Algorithm", "API_VERSION", "control", "correction", "Demonstration",
    "Engine", "Environment", "Group", "group_filter", "group_reward", "InfrastructureError", "Judge",
    "Judgement", "KL", "Likelihood", "LimitReached", "Limits", "Message", "need", "objective", "optimizer_step",
    "per_group", "Piece", "PolicyFault", "QuintainError", "Replay", "Reply", "Reward", "reward", "Rollout", "Sampled",
    "Sampling", "SamplingPlan", "Sandbox", "Score", "Service", "Task", "Termination", "ThinkingBudget", "TokenEngine",
    "Tool", "ToolCall", "ToolSpec", "Transcript", "Turn", "Weights", "Workers",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'quintain' has no attribute {name!r}")
    value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
