"""A small recipe whose algorithms are compared."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="training needs quintain[train]")

from quintain.recipe.tables import Recipe

RECIPE = """
[run]
steps = 4
[model]
name = "model"
[[environments]]
use = "babble"
[sampling]
max_tokens = 6
[batch]
prompts = 2
group_size = 4
[learner]
lr = 3e-3
[evaluation]
every = 2
tasks = 4
[evaluation.test]
tasks = 4
[checkpoint]
every = 1
"""


def recipe(**changes: Any) -> Recipe:
    return Recipe.parse(RECIPE).replace({k.replace("__", "."): v for k, v in changes.items()})
