"""A training run: recipe, loop, run folder, metrics.

The names below are what plugins may import from here; each module is imported when one of its names is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..rollouts.runner import Job as Job
    from ..rollouts.runner import run_groups as run_groups
    from ..types.sampling import derived_seed as derived_seed
    from .alerts import spells as spells
    from .build import conduct as conduct
    from .check import check_recipe as check_recipe
    from .metrics import TRAINING as TRAINING
    from .metrics import distinct as distinct
    from .metrics import failures_in as failures_in
    from .metrics import success_of as success_of
    from .metrics import times as times
    from .recipe.load import bundled as bundled
    from .recipe.tables import Recipe as Recipe
    from .recipe.tables import override as override
    from .resolve import algorithm as algorithm
    from .resolve import cast_table as cast_table
    from .resolve import chosen as chosen
    from .run import Run as Run
    from .run_folder import RunFolder as RunFolder
    from .screen import Screen as Screen
    from .screen import clock as clock
    from .screen import for_terminal as for_terminal
    from .storage import plain as plain
    from .storage import write_atomically as write_atomically
    from .tasks import WINDOW as WINDOW
    from .tasks import Curriculum as Curriculum
    from .tasks import Pick as Pick
    from .tasks import TaskReader as TaskReader
    from .tasks import TaskStream as TaskStream
    from .tasks import shuffled as shuffled

_HOMES = {
    "..rollouts.runner": (
        "Job",
        "run_groups",
    ),
    "..types.sampling": ("derived_seed",),
    ".alerts": ("spells",),
    ".build": ("conduct",),
    ".check": ("check_recipe",),
    ".metrics": (
        "TRAINING",
        "distinct",
        "failures_in",
        "success_of",
        "times",
    ),
    ".recipe.load": ("bundled",),
    ".recipe.tables": (
        "Recipe",
        "override",
    ),
    ".resolve": (
        "algorithm",
        "cast_table",
        "chosen",
    ),
    ".run": ("Run",),
    ".run_folder": ("RunFolder",),
    ".screen": (
        "Screen",
        "clock",
        "for_terminal",
    ),
    ".storage": (
        "plain",
        "write_atomically",
    ),
    ".tasks": (
        "Curriculum",
        "Pick",
        "TaskReader",
        "TaskStream",
        "WINDOW",
        "shuffled",
    ),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME, key=str.casefold)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
