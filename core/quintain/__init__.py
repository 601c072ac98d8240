"""Reinforcement learning for language models: a small policy-gradient core, everything else a plugin.

Public names are imported when first used, so ``import quintain`` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .errors import InfrastructureError as InfrastructureError
    from .errors import LimitReached as LimitReached
    from .errors import PolicyFault as PolicyFault
    from .errors import QuintainError as QuintainError
    from .interfaces.agent import Agent as Agent
    from .interfaces.agent import Endpoint as Endpoint
    from .interfaces.agent import Limits as Limits
    from .interfaces.algorithm import KL as KL
    from .interfaces.algorithm import Algorithm as Algorithm
    from .interfaces.engine import Engine as Engine
    from .interfaces.engine import Replay as Replay
    from .interfaces.engine import Reply as Reply
    from .interfaces.engine import TokenEngine as TokenEngine
    from .interfaces.engine import Weights as Weights
    from .interfaces.environment import Demonstration as Demonstration
    from .interfaces.environment import Environment as Environment
    from .interfaces.environment import control as control
    from .interfaces.pieces import Piece as Piece
    from .interfaces.pieces import advantage as advantage
    from .interfaces.pieces import aggregation as aggregation
    from .interfaces.pieces import correction as correction
    from .interfaces.pieces import group_filter as group_filter
    from .interfaces.pieces import objective as objective
    from .interfaces.pieces import optimizer_step as optimizer_step
    from .interfaces.pieces import per_group as per_group
    from .interfaces.reward import Reward as Reward
    from .interfaces.reward import group_reward as group_reward
    from .interfaces.reward import reward as reward
    from .interfaces.sampling_plan import SamplingPlan as SamplingPlan
    from .interfaces.service import Judge as Judge
    from .interfaces.service import Judgement as Judgement
    from .interfaces.service import Likelihood as Likelihood
    from .interfaces.service import Sandbox as Sandbox
    from .interfaces.service import Service as Service
    from .interfaces.service import Workers as Workers
    from .interfaces.service import need as need
    from .interfaces.tools import Tool as Tool
    from .interfaces.tools import ToolSpec as ToolSpec
    from .types.rollout import Group as Group
    from .types.rollout import Rollout as Rollout
    from .types.rollout import Score as Score
    from .types.rollout import Termination as Termination
    from .types.rollout import Turn as Turn
    from .types.sampling import Sampling as Sampling
    from .types.sampling import ThinkingBudget as ThinkingBudget
    from .types.task import Message as Message
    from .types.task import Task as Task
    from .types.task import ToolCall as ToolCall
    from .types.transcript import Sampled as Sampled
    from .types.transcript import Transcript as Transcript

__version__ = "0.1.0"

API_VERSION = 1
"""Of the contract with plugins; a manifest names the one it was written for. It changes only when something breaks."""

_HOMES = {
    "errors": ("InfrastructureError", "LimitReached", "PolicyFault", "QuintainError"),
    "interfaces.agent": ("Agent", "Endpoint", "Limits"),
    "interfaces.algorithm": ("KL", "Algorithm"),
    "interfaces.engine": ("Engine", "Replay", "Reply", "TokenEngine", "Weights"),
    "interfaces.environment": ("Demonstration", "Environment", "control"),
    "interfaces.pieces": (
        "Piece",
        "advantage",
        "aggregation",
        "correction",
        "group_filter",
        "objective",
        "optimizer_step",
        "per_group",
    ),
    "interfaces.reward": ("Reward", "group_reward", "reward"),
    "interfaces.sampling_plan": ("SamplingPlan",),
    "interfaces.service": ("Judge", "Judgement", "Likelihood", "Sandbox", "Service", "Workers", "need"),
    "interfaces.tools": ("Tool", "ToolSpec"),
    "types.rollout": ("Group", "Rollout", "Score", "Termination", "Turn"),
    "types.sampling": ("Sampling", "ThinkingBudget"),
    "types.task": ("Message", "Task", "ToolCall"),
    "types.transcript": ("Sampled", "Transcript"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted(["API_VERSION", *_HOME], key=str.casefold)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'quintain' has no attribute {name!r}")
    value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
