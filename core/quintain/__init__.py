"""Reinforcement learning for language models: a small policy-gradient core, everything else a plugin.

Public names are imported when first used, so ``import quintain`` costs next to nothing.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .agent import Agent as Agent
    from .agent import Endpoint as Endpoint
    from .agent import Limits as Limits
    from .algorithm import KL as KL
    from .algorithm import Interrupt as Interrupt
    from .algorithm import Piece as Piece
    from .algorithm import Plan as Plan
    from .algorithm import Row as Row
    from .algorithm import admission as admission
    from .algorithm import advantage as advantage
    from .algorithm import aggregation as aggregation
    from .algorithm import correction as correction
    from .algorithm import objective as objective
    from .algorithm import per_group as per_group
    from .algorithm import update as update
    from .engine import Engine as Engine
    from .engine import Reply as Reply
    from .engine import Sampled as Sampled
    from .engine import Sampling as Sampling
    from .engine import TokenEngine as TokenEngine
    from .engine import Weights as Weights
    from .environment import Demonstration as Demonstration
    from .environment import Environment as Environment
    from .environment import control as control
    from .errors import InfrastructureError as InfrastructureError
    from .errors import LimitReached as LimitReached
    from .errors import PolicyFault as PolicyFault
    from .errors import QuintainError as QuintainError
    from .reward import Reward as Reward
    from .reward import group_reward as group_reward
    from .reward import reward as reward
    from .rollout import Ending as Ending
    from .rollout import Group as Group
    from .rollout import Rollout as Rollout
    from .rollout import Score as Score
    from .rollout import Turn as Turn
    from .service import Judge as Judge
    from .service import Likelihood as Likelihood
    from .service import Sandbox as Sandbox
    from .service import Service as Service
    from .service import Verdict as Verdict
    from .service import Workers as Workers
    from .service import need as need
    from .task import Message as Message
    from .task import Task as Task
    from .task import ToolCall as ToolCall
    from .tools import Tool as Tool
    from .tools import ToolSpec as ToolSpec
    from .transcript import Transcript as Transcript

__version__ = "0.1.0"

API_VERSION = 1
"""Of the contract with plugins; a manifest names the one it was written for. It changes only when something breaks."""

_HOMES = {
    "agent": ("Agent", "Endpoint", "Limits"),
    "algorithm": (
        "Interrupt",
        "KL",
        "Piece",
        "Plan",
        "Row",
        "admission",
        "advantage",
        "aggregation",
        "correction",
        "objective",
        "per_group",
        "update",
    ),
    "engine": ("Engine", "Reply", "Sampled", "Sampling", "TokenEngine", "Weights"),
    "environment": ("Demonstration", "Environment", "control"),
    "errors": ("InfrastructureError", "LimitReached", "PolicyFault", "QuintainError"),
    "reward": ("Reward", "group_reward", "reward"),
    "rollout": ("Ending", "Group", "Rollout", "Score", "Turn"),
    "service": ("Judge", "Likelihood", "Sandbox", "Service", "Verdict", "Workers", "need"),
    "task": ("Message", "Task", "ToolCall"),
    "tools": ("Tool", "ToolSpec"),
    "transcript": ("Transcript",),
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


class _Package(ModuleType):
    """Keeps a public name that is spelled like its module (`reward`).

    The import system binds each submodule on its package, over whatever is there.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
