"""A run whose failures have different texts keeps state, log and rollouts small."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from quintain import Environment, Limits, Rollout, Task, reward
from quintain.console.screen import Screen
from quintain.recipe.tables import Recipe
from quintain.run.build import run_training
from quintain.run.record import MOST_KINDS
from quintain.store.run_folder import RunFolder

from ..learning.learns import tiny_folder

HUGE = 30_000_000


@reward
def unreadable(rollout: Rollout[Task, None]) -> float:
    if rollout.sample % 4 == 0:
        raise ValueError(
            f"cannot read {rollout.reply!r} of {rollout.task.id} {rollout.seed}" + "x" * 1000
        )
    if rollout.sample % 4 == 1:
        raise type(f"Error{rollout.seed}", (Exception,), {})("of its own kind")
    if rollout.seed % 16 == 2:
        raise ValueError("y" * HUGE)
    return float(rollout.seed % 2)


class Unreadable(Environment[Task, None]):
    reward = unreadable
    limits = Limits(turns=1)

    def tasks(self, split: str) -> Iterable[Task]:
        return (Task(prompt=f"{split} {i}") for i in range(1000))


@pytest.mark.more
@pytest.mark.usefixtures("no_curves")
def test_a_run_with_many_texts_of_failures_stays_small(tmp_path: Path) -> None:
    steps, prompts, group_size = 12, 4, 8
    recipe: Any = {
        "run": {"steps": steps},
        "model": {"name": str(tiny_folder())},
        "environments": [{"use": f"{Unreadable.__module__}:Unreadable"}],
        "sampling": {"max_tokens": 2},
        "batch": {"prompts": prompts, "group_size": group_size},
        "evaluation": {"every": 0, "test": {"tasks": 0}},
    }
    out = io.StringIO()
    with RunFolder.create(tmp_path / "run", Recipe.model_validate(recipe).to_toml()) as folder:
        summary = run_training(Recipe.parse(folder.recipe()), folder, Screen(out))

    kinds: dict[str, int] = summary["failures"]
    assert steps * prompts * group_size // 2 <= sum(kinds.values())
    assert len(kinds) == MOST_KINDS + 1, "96 kinds came, the last ones are counted together"
    assert steps * prompts * 2 == max(n for kind, n in kinds.items() if "ValueError" in kind)
    assert len(json.dumps(kinds)) < 10_000
    assert len(out.getvalue()) < 40_000
    assert all(p.stat().st_size < 1_000_000 for p in (tmp_path / "run").rglob("*.parquet"))
    assert all(p.stat().st_size < 30_000 for p in (tmp_path / "run").rglob("state.json"))
