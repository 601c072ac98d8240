"""Reinforcement learning for language models: a small policy-gradient core, everything else a plugin.

Public names are imported when first used, so ``import quintain`` costs next to nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .errors import InfrastructureError, LimitReached, PolicyFault, QuintainError, ToolError
    from .interfaces.agent import Agent, Limits
    from .interfaces.algorithm import KL, Algorithm
    from .interfaces.engine import Engine, Reply, TokenEngine, Weights
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
    from .interfaces.tools import Tool, ToolSpec, as_tool
    from .training.replays import Replay
    from .types.rollout import Group, Rollout, Score, Termination, Turn
    from .types.sampling import Sampling, ThinkingBudget
    from .types.task import Message, Task, ToolCall
    from .types.transcript import Sampled, Transcript

__version__ = "0.1.0"

API_VERSION = 1
"""Of the contract with plugins; a manifest names the one it was written for. It changes only when something breaks."""

__all__ = [  # noqa: RUF022 - in alphabetical order, whatever the case
    "advantage", "Agent", "aggregation", "Algorithm", "API_VERSION", "as_tool", "control", "correction",
    "Demonstration", "Engine", "Environment", "Group", "group_filter", "group_reward", "InfrastructureError", "Judge",
    "Judgement", "KL", "Likelihood", "LimitReached", "Limits", "Message", "need", "objective", "optimizer_step",
    "per_group", "Piece", "PolicyFault", "QuintainError", "Replay", "Reply", "Reward", "reward", "Rollout", "Sampled",
    "Sampling", "SamplingPlan", "Sandbox", "Score", "Service", "Task", "Termination", "ThinkingBudget", "TokenEngine",
    "Tool", "ToolCall", "ToolError", "ToolSpec", "Transcript", "Turn", "Weights", "Workers",
]  # fmt: skip


def lazy_names(package: str, *more: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of *package*: each name that its ``if TYPE_CHECKING:`` imports is imported at
    first use, so that one table serves type checkers and Python; ``__all__`` has these names and *more*.
    """
    module = sys.modules[package]

    @cache
    def homes() -> dict[str, str]:
        import ast
        import inspect

        block = next(node for node in ast.parse(inspect.getsource(module)).body if isinstance(node, ast.If))
        imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
        return {alias.name: f"{'.' * node.level}{node.module}" for node in imports for alias in node.names}

    def get(name: str) -> Any:
        if name == "__all__":
            return sorted([*more, *homes()], key=str.casefold)
        if name.startswith("__") or name not in homes():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(homes()[name], package), name)
        setattr(module, name, value)
        return value

    return get, lambda: sorted({*vars(module), *homes()})


__getattr__, __dir__ = lazy_names(__name__)
