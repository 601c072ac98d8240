"""The recipe that a command about an environment begins from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.util import find_spec

from ..console.screen import for_terminal
from ..errors import QuintainError
from ..recipe.extends import bundled_text
from ..recipe.resolve import PRETRAINED, base_recipe, load_subclass
from ..recipe.tables import Recipe
from ..registry.lookup import current

FIRST, SMALL = "extraction", "quickstart"
"""Recipes of `quintain train` alone: that of a pretrained model, and where it cannot be had."""


def recipe_alone(*, quiet: bool, bring: bool = True) -> str:
    """Return the name of the recipe that `quintain train` without a choice runs: `FIRST` once its
    model is here, else `SMALL`, with a line that says why. A download shows its progress.

    Args:
        bring: download the model; without it, `FIRST` is what would run if it can be had.
    """
    if find_spec("torch") is None:
        return SMALL  # its checks say what to install, before 93 MB are downloaded
    from ..recipe.sources import ModelSource  # imports torch, which not every recipe needs

    recipe = Recipe.parse(bundled_text(FIRST))
    with for_terminal(quiet=quiet) as screen:
        try:
            for table in recipe.environments:
                current().load("environment", table.use)
            source = load_subclass("model", recipe.model.name, ModelSource)
            if bring:
                source.bring(recipe.model.name, screen.note, quiet=quiet)
        except QuintainError as e:
            screen.warn(f"training the small model (recipe {SMALL!r}), not {FIRST!r}: {e}")
            return SMALL
    return FIRST


def recipe_for(environment: str | None, changes: Sequence[str], model: str | None = None) -> Recipe:
    """Return the recipe that `quintain train ENVIRONMENT` begins from, with *changes* as in
    ``--set``. Where torch finds no GPU, that of a *model* has other values.

    Args:
        environment: ``None`` is that of the bundled recipe.
        model: ``None`` is that of the bundled recipe.
    """
    base = base_recipe(model)
    default = Recipe.parse(bundled_text(base)).environments[0]  # with its arguments
    sets = [] if model is None else [f"model.name={json.dumps(model)}"]
    if environment not in (None, default.use, default.label):
        sets.append(f"environments=[{{use={json.dumps(environment)}}}]")
    recipe = Recipe.parse(bundled_text(base), [*sets, *changes], source=f"{base}.toml")
    if base != PRETRAINED:
        return recipe
    from ..recipe.on_cpu import changes_on_cpu
    from ..recipe.precision import begins_on_cpu

    if not begins_on_cpu(recipe):
        return recipe
    here = [*sets, *changes_on_cpu(recipe), *changes]
    return Recipe.parse(bundled_text(base), here, source=f"{base}.toml")
