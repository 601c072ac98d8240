"""A run that takes about a second: does a method teach a tiny model anything?

A Qwen3-shaped model of 36,000 random weights over bytes says four tokens; any small letter among
them is right. It is right about a third of the time before.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from quintain import Environment, Limits, Rollout, Task, reward
from quintain.console.screen import Screen
from quintain.recipe.tables import Recipe
from quintain.run.build import run_training
from quintain.store.run_folder import RunFolder

SEEDS = (0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2)))
"""Of learning runs: one in each test run, the others in `make test-slow`."""


@reward(range=(0, 1))
def small_letter(rollout: Rollout[Any, Any]) -> float:
    """1 where the reply holds a letter from a to z."""
    return float(any("a" <= c <= "z" for c in rollout.reply))


class Babble(Environment[Task, Any]):
    """Say a small letter."""

    reward = small_letter
    limits = Limits(turns=1, tokens=4)

    def tasks(self, split: str) -> Iterable[Task]:
        return (Task(prompt=f"{split} {i}", answer="a") for i in range(1000))


@cache
def tiny_folder() -> Path:
    """The model, saved once per process."""
    from ..models.tiny import (
        save_tiny,  # here: a run loads this file by its path, outside of any package
    )

    return save_tiny(Path(tempfile.mkdtemp(prefix="quintain-tiny-")), context=256)


def rises(algorithm: str, seed: int, *, steps: int = 12, **changes: Any) -> tuple[float, float]:
    """Success rate on 200 held-out tasks, sampled at temperature 1, before and after *steps* steps.

    Args:
        algorithm: as ``algorithm.use``.
        changes: recipe keys with ``__`` for the dot, such as ``learner__lr=1e-3`` or
            ``algorithm__args={...}``.
    """
    summary = trained(algorithm, seed, steps=steps, **changes)
    return summary["held_out"]["before"]["accuracy"], summary["held_out"]["after"]["accuracy"]


def trained(algorithm: str, seed: int, *, steps: int = 12, **changes: Any) -> Mapping[str, Any]:
    """The summary of such a run."""
    recipe = Recipe.of(
        {
            "run": {"steps": steps, "seed": seed},
            "model": {"name": str(tiny_folder()), "device": "cpu"},
            "environments": [{"use": f"{__file__}:Babble"}],
            "algorithm": {"use": algorithm},
            "sampling": {"max_tokens": 16},
            "batch": {"prompts": 8, "group_size": 8},
            "learner": {"lr": 3e-3, "warmup_steps": 2},
            "evaluation": {"every": 0, "temperature": 1.0, "test": {"tasks": 200}},
            "checkpoint": {"every": 0, "best": False},
            "rollouts": {"keep": "none"},
        }
    ).replace({key.replace("__", "."): value for key, value in changes.items()})
    with (
        tempfile.TemporaryDirectory() as place,
        RunFolder.create(Path(place) / "run", recipe.to_toml()) as folder,
    ):
        return run_training(recipe, folder, Screen(quiet=True))
