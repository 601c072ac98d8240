"""Evaluate an engine on an environment without training.

The names below are what plugins may import from here; the module is imported when one of them is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .evaluation import Evaluation as Evaluation
    from .evaluation import evaluate as evaluate
    from .evaluation import tasks_of as tasks_of

_HOME = dict.fromkeys(("Evaluation", "evaluate", "tasks_of"), ".evaluation")

__all__ = sorted(_HOME, key=str.casefold)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
