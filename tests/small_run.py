"""The set-up of tests that run `quintain train` on a tiny model: a model folder and a recipe."""

from __future__ import annotations

from pathlib import Path

RECIPE = """
[run]
steps = {steps}
[model]
name = "{model}"
[[environments]]
{environment}
[algorithm]
use = "{algorithm}"
[sampling]
max_tokens = 4
[batch]
prompts = 2
group_size = 2
[evaluation]
{evaluation}
{tables}
"""

NOTHING = "every = 0\ntest = { tasks = 0 }"
"""Of the table `evaluation`: neither during the run nor before and after it."""


def small_recipe(
    environment: str,
    *,
    steps: int = 1,
    model: str | Path = "model",
    algorithm: str = "grpo",
    evaluation: str = NOTHING,
    tables: str = "",
) -> str:
    """Write a recipe with batches of two groups of two rollouts of four tokens.

    Args:
        environment: lines of the table of the environment.
        model: the folder of the model, as `make_small_run` saves it.
        evaluation: lines of the table `evaluation`.
        tables: further tables, with their heads.
    """
    return RECIPE.format(
        steps=steps,
        model=model,
        environment=environment,
        algorithm=algorithm,
        evaluation=evaluation,
        tables=tables,
    )


def make_small_run(folder: Path, recipe: str, *, context: int = 256) -> Path:
    """Save a tiny model as ``model`` and *recipe* as ``recipe.toml`` in *folder*, and return it."""
    from .core.models.tiny import save_tiny  # here: not everything that is tested has torch

    save_tiny(folder / "model", context=context)
    (folder / "recipe.toml").write_text(recipe)
    return folder
