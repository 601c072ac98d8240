"""The recipe that a command about an environment begins from."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ..recipe.extends import bundled_text
from ..recipe.resolve import base_recipe
from ..recipe.tables import Recipe


def recipe_for(environment: str | None, changes: Sequence[str], model: str | None = None) -> Recipe:
    """Return the recipe that `quintain train ENVIRONMENT` begins from, with *changes* as in
    ``--set``.

    Args:
        environment: ``None`` is that of the bundled recipe.
        model: ``None`` is that of the bundled recipe.
    """
    base = base_recipe(model)
    default = Recipe.parse(bundled_text(base)).environments[0]  # with its arguments
    sets = [] if model is None else [f"model.name={json.dumps(model)}"]
    if environment not in (None, default.use, default.label):
        sets.append(f"environments=[{{use={json.dumps(environment)}}}]")
    return Recipe.parse(bundled_text(base), [*sets, *changes], source=f"{base}.toml")
