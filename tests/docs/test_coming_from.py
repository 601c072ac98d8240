"""Each key that docs/coming-from.md gives is a key of a recipe, and its algorithms are what it
says.
"""

from __future__ import annotations

import re
from typing import Any

from quintain.recipe import Recipe, resolve_algorithm
from quintain_authoring.devtools.schema import recipe_schema

from .pages import page

PAGE = page("docs/coming-from.md")


def keys(schema: dict[str, Any], at: str = "") -> set[str]:
    """The dotted names of all tables and keys."""
    found = set()
    for name, value in schema.get("properties", {}).items():
        found |= {f"{at}{name}"} | keys(value.get("items", value), f"{at}{name}.")
    return found


def test_every_key_exists() -> None:
    """The second column of the tables of TRL, verl and prime-rl, the first of the last tables."""
    first, last = PAGE.text.split("## SkyRL", 1)
    columns = [row[1] for row in re.findall(r"^\| (.+?) \| (.*?) \| (.*?) ?\|$", first, re.M)]
    columns += re.findall(r"^\| (.+?) \|", last, re.M)
    named = {key for here in columns for key in re.findall(r"`(\w+(?:\.\w+)+)`", here)}

    assert len(named) >= 30
    assert set() == named - keys(recipe_schema())


def test_settings_in_the_remarks_are_accepted() -> None:
    """Arguments of algorithms, as a recipe takes them."""
    rows = re.findall(r"^\| .+? \| `algorithm.args` \| (.+?) ?\|$", PAGE.text, re.M)
    settings = [text for row in rows for text in re.findall(r"`(\w+ = [^`]+)`", row)]

    assert len(settings) >= 10
    for text in settings:
        recipe = Recipe.parse(
            f'environments = [{{ use = "arithmetic" }}]\n[algorithm]\nuse = "grpo"\nargs = {{ '
            f"{text} }}"
        )
        resolve_algorithm(recipe)
