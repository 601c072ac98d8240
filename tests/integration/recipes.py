"""Runs of the bundled recipes, for the tests of each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from quintain.console.screen import Screen
from quintain.recipe.extends import bundled_text
from quintain.recipe.tables import Recipe
from quintain.run.build import run_training
from quintain.store.run_folder import RunFolder


def recipe_run(
    name: str, folder: Path, changes: Sequence[str] = ()
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Train the recipe *name* with *changes* in *folder*; the summary, and the metrics step by
    step.
    """
    recipe = Recipe.parse(bundled_text(name), list(changes))
    with RunFolder.create(folder, recipe.to_toml()) as run:
        summary = run_training(recipe, run, Screen(quiet=True))
    return summary, metrics_of(folder)


def metrics_of(folder: Path) -> list[dict[str, Any]]:
    """The metrics of a run, step by step; the first record is from before the training."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def brief(model: Path, tokens: int, *, evaluated: int = 2) -> list[str]:
    """Changes for a short run: *model*, few samples of at most *tokens* tokens, few held-out
    tasks.
    """
    return [
        f"model.name={json.dumps(str(model))}",
        "model.device=cpu",
        "run.steps=2",
        f"sampling.max_tokens={tokens}",
        "batch={prompts=2, group_size=2}",
        f"evaluation={{every=2, tasks={evaluated}, test={{tasks={evaluated}}}}}",
    ]


def held_out(records: Sequence[dict[str, Any]]) -> list[float]:
    """The held-out accuracies of a run, in order."""
    return [record["held_out.accuracy"] for record in records if "held_out.accuracy" in record]
