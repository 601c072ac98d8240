"""The recipe that a command about an environment begins from."""

from __future__ import annotations

import json
from collections.abc import Sequence

from quintain.recipe import Recipe, base_recipe, bundled_text


def recipe_for(environment: str, changes: Sequence[str], model: str | None = None) -> Recipe:
    """Return the recipe that `quintain train ENVIRONMENT` begins from, with *changes* as in
    ``--set``.
    """
    base = base_recipe(model)
    own = Recipe.parse(bundled_text(base)).environments[0]  # with its arguments
    sets = [] if model is None else [f"model.name={json.dumps(model)}"]
    if environment not in (own.use, own.label):
        sets.append(f"environments=[{{use={json.dumps(environment)}}}]")
    return Recipe.parse(bundled_text(base), [*sets, *changes], source=f"{base}.toml")
