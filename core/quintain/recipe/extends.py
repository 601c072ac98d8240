"""Recipes that extend others: ``extends`` at the top names a bundled recipe or a file."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import RecipeError, did_you_mean
from ..interfaces.factors import SHAPES
from ..store.toml import read_toml

KEY = "extends"


class RecipeLayer(NamedTuple):
    """A recipe of the chain: its name in errors, its TOML text, the parsed data, and the recipe
    that it extends.
    """

    source: str
    text: str
    data: Mapping[str, Any]
    extends: Any = None


def layers(text: str, source: str, folder: Path) -> list[RecipeLayer]:
    """Return the recipe *text*, the one that it extends, and so on.

    Args:
        source: its name in errors.
        folder: base of its relative paths.

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
            raise RecipeError(
                f"{chain[0].source}: recipes extend each other in a circle ({names}); remove one "
                f"`extends`"
            )
        paths.append(path)
    return chain


def _layer(text: str, source: str) -> RecipeLayer:
    try:
        data = read_toml(text)
    except ValueError as e:
        if fix := fix_for_data(source):
            raise RecipeError(f"{source} has data and is no recipe{fix}") from e
        raise RecipeError(f"{source} is not TOML: {e}") from e
    return RecipeLayer(source, text, data, data.pop(KEY, None))


def fix_for_data(path: str) -> str:
    """Return how to train on a file of data that was named as a recipe; empty for other files."""
    if not path.endswith((".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")):
        return ""
    return f"; to train on its rows: quintain train dataset --arg path={shlex.quote(path)}"


def _extended(name: Any, by: str, folder: Path) -> tuple[str, Path, str]:
    """Return text, file and name in errors of the recipe *name* that the recipe *by* in *folder*
    extends.
    """
    if not isinstance(name, str) or not name:
        raise RecipeError(f"{by}: {KEY} is {name!r}; expected {_EXPECTED}, in quotes")
    if name in BUNDLED:
        return bundled_text(name), Path(str(_RECIPES / f"{name}.toml")), f"{name}.toml"
    path = folder / name
    try:
        return path.read_text(encoding="utf-8"), path, str(path)
    except (OSError, ValueError) as e:
        reason = e.strerror if isinstance(e, OSError) else not_text(e)
        near = did_you_mean(name, [*BUNDLED, *(p.name for p in path.parent.glob("*.toml"))])
        raise RecipeError(
            f"{by}: {KEY} is {name!r}; cannot read {str(path)!r}: {reason}{near}; expected "
            f"{_EXPECTED}"
        ) from e


def not_text(error: ValueError) -> str:
    """Return why a file cannot be read as text: it is not UTF-8, or its name has a NUL."""
    return "not UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error)


_RECIPES = files("quintain") / "recipes"
BUNDLED = tuple(
    sorted(p.name.removesuffix(".toml") for p in _RECIPES.iterdir() if p.name.endswith(".toml"))
)
"""Names of the bundled recipes."""
_EXPECTED = f"a bundled recipe ({', '.join(BUNDLED)}) or a path relative to this recipe"


def bundled_text(name: str) -> str:
    """Return the text of a bundled recipe."""
    return (_RECIPES / f"{name}.toml").read_text(encoding="utf-8")


def merged(chain: Sequence[RecipeLayer]) -> dict[str, Any]:
    """Return the merged data of *chain* (the recipe first, then those it extends).

    Tables are merged key by key, lists and schedules are replaced; the first recipe with a key wins. A table with
    a different ``use`` drops the inherited ``args``.
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
        if both and not SHAPES.isdisjoint(value):
            both = False  # a schedule has one shape, so that another one replaces it
        out[key] = _over(value, below) if both else value  # type: ignore[arg-type]
    return out


def holder(chain: Sequence[RecipeLayer], loc: Sequence[int | str]) -> RecipeLayer:
    """Return the first recipe of *chain* with the key *loc*, or with the longest part of its
    path.
    """
    entries: list[tuple[RecipeLayer, Any]] = [(layer, layer.data) for layer in chain]
    for part in loc:
        deeper = [(layer, data[part]) for layer, data in entries if _has(data, part)]
        if not deeper:
            break
        # a list hides those below it
        entries = deeper[:1] if isinstance(deeper[0][1], list) else deeper
    return entries[0][0]


def _has(data: Any, part: int | str) -> bool:
    if isinstance(data, list):
        return isinstance(part, int) and part < len(data)
    return isinstance(data, Mapping) and part in data


def put(data: dict[str, Any], path: Sequence[str], value: Any) -> None:
    """Set a value deep in *data*; numbers in *path* are positions in lists, and one past the end
    appends.

    Raises:
        RecipeError: the path leads through something that is neither a table nor a list, or past
            the end of a list.
    """
    container: Any = data
    for i, part in enumerate(path):
        here = ".".join(path[:i])
        place: Any = part
        if isinstance(container, list):
            place = _position(container, part, here, path)
        elif not isinstance(container, dict):
            raise RecipeError(f"cannot set {'.'.join(path)}: {here} is {container!r}, not a table")
        if i == len(path) - 1:
            container[place] = value
        elif isinstance(container, list):
            container = container[place]
        else:
            container = container.setdefault(place, [] if path[i + 1].isdecimal() else {})


def _position(items: list[Any], part: str, place: str, path: Sequence[str]) -> int:
    if not part.isdecimal() or len(part) > 9 or int(part) > len(items):
        rest = ".".join(path[len(place.split(".")) :])
        raise RecipeError(
            f"cannot set {'.'.join(path)}: {place} is a list of {len(items)}; "
            f"say which one by its position, as in {place}.0.{rest}"
        )
    if int(part) == len(items):
        items.append({})
    return int(part)
