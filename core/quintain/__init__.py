"""Reinforcement learning for language models: a small policy-gradient core, everything else a
plugin.

Public names are imported when first used, so ``import quintain`` costs next to nothing.

docs/architecture.md has the folders in their order. Plugins import the names in the ``__all__`` of
a folder.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .errors import (
        InfrastructureError,
        LimitReached,
        PolicyFault,
        PolicyTimeout,
        QuintainError,
        ToolError,
    )
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
    from .interfaces.tools import Tool, ToolSpec
    from .rollouts.function_tools import as_tool
    from .run.replays import Replay
    from .types.rollout import Group, Rollout, Score, Termination, Turn
    from .types.sampling import Sampling, ThinkingBudget
    from .types.task import Message, Task, ToolCall
    from .types.transcript import Sampled, Transcript

__version__ = "0.2.0"

API_VERSION = 1
"""Of the contract with plugins; a manifest names the one it was written for. It changes only when
something breaks.
"""

__all__ = [  # noqa: RUF022 - in alphabetical order, whatever the case
    "advantage", "Agent", "aggregation", "Algorithm", "API_VERSION", "as_tool", "control",
    "correction", "Demonstration", "Engine", "Environment", "Group", "group_filter", "group_reward",
    "InfrastructureError", "Judge", "Judgement", "KL", "lazy_names", "Likelihood", "LimitReached",
    "Limits", "Message", "need", "objective", "optimizer_step", "per_group", "Piece", "PolicyFault",
    "PolicyTimeout", "QuintainError", "Replay", "Reply", "Reward", "reward", "Rollout", "Sampled",
    "Sampling", "SamplingPlan", "Sandbox", "Score", "Service", "Task", "Termination",
    "ThinkingBudget", "TokenEngine", "Tool", "ToolCall", "ToolError", "ToolSpec", "Transcript",
    "Turn", "Weights", "Workers",
]  # fmt: skip


def lazy_names(package: str, *more: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` for a package whose names are imported when they are
    first used, and whose ``__all__`` they are.

    The names are what the package imports under ``if TYPE_CHECKING:``, so that type checkers and
    Python read one list. Its source is read when the first name is used.

    Args:
        package: its ``__name__``.
        more: names of the package itself that belong to its ``__all__``.
    """

    @cache
    def modules() -> dict[str, str]:
        """Return the module of each name."""
        import ast  # here, since `import quintain` needs neither
        import inspect

        source = inspect.getsource(sys.modules[package])
        block = next(node for node in ast.parse(source).body if isinstance(node, ast.If))
        return {
            alias.name: "." * node.level + str(node.module)
            for node in block.body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }

    def get(name: str) -> Any:
        if name == "__all__":
            return sorted([*more, *modules()], key=str.casefold)
        if name.startswith("__") or name not in modules():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(modules()[name], package), name)
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: sorted({*vars(sys.modules[package]), *modules()})


__getattr__, __dir__ = lazy_names(__name__)
