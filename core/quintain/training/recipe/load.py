"""A recipe that builds on another: ``extends`` at its top names a bundled one, or a file."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import RecipeError, did_you_mean

KEY = "extends"


class RecipeLayer(NamedTuple):
    """One of the recipes that make up a run's: what errors call it, its TOML, what that says, and what it extends."""

    source: str
    text: str
    data: Mapping[str, Any]
    extends: Any = None


def layers(text: str, source: str, folder: Path) -> list[RecipeLayer]:
    """The recipe *text*, the one that it extends, and so on.

    Args:
        source: what errors call it.
        folder: where the paths that it names begin.

    Raises:
        RecipeError: not TOML, no such recipe, or a circle.
    """
    chain = [_layer(text, source)]
    paths = [folder / Path(source).name]
    while (name := chain[-1].extends) is not None:
        text, path, source = _extended(name, chain[-1].source, paths[-1].parent)
        chain.append(_layer(text, source))
        if path.resolve() in [p.resolve() for p in paths]:
            names = " extends ".join(layer.source for layer in chain)
            raise RecipeError(f"{chain[0].source}: recipes extend each other in a circle ({names}); take one out")
        paths.append(path)
    return chain


def _layer(text: str, source: str) -> RecipeLayer:
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        raise RecipeError(f"{source} is not TOML: {e}") from e
    return RecipeLayer(source, text, data, data.pop(KEY, None))


def _extended(name: Any, by: str, folder: Path) -> tuple[str, Path, str]:
    """Text and file of the recipe *name* that the recipe *by* in *folder* extends, and what errors call it."""
    if not isinstance(name, str) or not name:
        raise RecipeError(f"{by}: {KEY} is {name!r}; expected {_EXPECTED}, in quotes")
    if name in BUNDLED:
        return bundled(name), Path(str(_RECIPES / f"{name}.toml")), f"{name}.toml"
    path = folder / name
    try:
        return path.read_text(encoding="utf-8"), path, str(path)
    except (OSError, UnicodeDecodeError) as e:
        reason = e.strerror if isinstance(e, OSError) else "not UTF-8 text"
        near = did_you_mean(name, [*BUNDLED, *(p.name for p in path.parent.glob("*.toml"))])
        raise RecipeError(
            f"{by}: {KEY} is {name!r}; cannot read {str(path)!r}: {reason}{near}; expected {_EXPECTED}"
        ) from e


_RECIPES = files("quintain") / "recipes"
BUNDLED = tuple(sorted(p.name.removesuffix(".toml") for p in _RECIPES.iterdir() if p.name.endswith(".toml")))
"""Names of the recipes that come with Quintain."""
_EXPECTED = f"a bundled recipe ({', '.join(BUNDLED)}) or a path from where this recipe lies"


def bundled(name: str) -> str:
    """The text of a recipe that comes with Quintain."""
    return (_RECIPES / f"{name}.toml").read_text(encoding="utf-8")


def merged(chain: Sequence[RecipeLayer]) -> dict[str, Any]:
    """What *chain* (the recipe first, then what it extends) says together.

    Tables are merged key by key and lists replaced; the first that has a key wins. Where a table takes another ``use``,
    the ``args`` further down belong to something else and are left behind.
    """
    data: dict[str, Any] = {}
    for layer in reversed(chain):
        data = _over(layer.data, data)
    return data


def _over(upper: Mapping[str, Any], lower: Mapping[str, Any]) -> dict[str, Any]:
    out = dict(lower)
    if "use" in upper and upper["use"] != lower.get("use"):
        out.pop("args", None)
    for key, value in upper.items():
        below = out.get(key)
        both = isinstance(value, Mapping) and isinstance(below, Mapping)
        out[key] = _over(value, below) if both else value  # type: ignore[arg-type]
    return out


def holder(chain: Sequence[RecipeLayer], loc: Sequence[int | str]) -> RecipeLayer:
    """The one of *chain* that has the key *loc*, or gets nearest to it; of several the first, since its word counts."""
    at: list[tuple[RecipeLayer, Any]] = [(layer, layer.data) for layer in chain]
    for part in loc:
        deeper = [(layer, data[part]) for layer, data in at if _has(data, part)]
        if not deeper:
            break
        at = deeper[:1] if isinstance(deeper[0][1], list) else deeper  # a list hides those below it
    return at[0][0]


def _has(data: Any, part: int | str) -> bool:
    if isinstance(data, list):
        return isinstance(part, int) and part < len(data)
    return isinstance(data, Mapping) and part in data
