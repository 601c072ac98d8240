"""The manifest ``quintain.toml`` that each distribution ships beside its top ``__init__.py``.

It says what a listing needs without importing anything::

    api = 1
    licence = "Apache-2.0"
    tags = ["math", "single-turn"]

    [[components]]
    kind = "environment"
    name = "arithmetic"
    summary = "Sums and products of whole numbers, by level."
    needs = ["network"]        # docker, gpu, keys, network
    extra = "hub"              # the pip extra that it imports

    [[components]]
    kind = "algorithm"
    name = "grpo"
    summary = "Group-normalised advantage, clipped ratio."
    source = "Shao et al. 2024, arXiv 2402.03300"     # the paper

Checked by hand, not by pydantic: a listing reads every manifest, and importing pydantic takes 0.11 s of its 0.3 s.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .. import API_VERSION
from ..errors import PluginError, did_you_mean
from .discovery import GROUPS, Component

FILE = "quintain.toml"
NEEDS = ("docker", "gpu", "keys", "network")


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One component in a manifest."""

    kind: str
    name: str
    summary: str
    needs: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    extra: str = ""
    source: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """What a distribution says of itself."""

    api: int
    licence: str = ""
    homepage: str = ""
    tags: tuple[str, ...] = ()
    components: tuple[Entry, ...] = ()

    def entry(self, component: Component) -> Entry | None:
        """The entry of *component*, where the manifest has one."""
        return next((e for e in self.components if (e.kind, e.name) == (component.kind, component.name)), None)


def parse(text: str, where: str = FILE) -> Manifest:
    """Read a manifest.

    Raises:
        PluginError: every fault found, one per line, each with *where* and the key.
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        raise PluginError(f"{where}: not TOML: {e}") from e
    faults: list[str] = []
    manifest = _manifest(data, faults)
    if faults:
        raise PluginError("\n".join(f"{where}: {fault}" for fault in faults))
    return manifest


def read(module: str) -> Manifest | None:
    """The manifest beside the top package of *module*; ``None`` where there is none.

    Raises:
        PluginError: the package cannot be found, or the manifest is faulty.
    """
    folder = package_folder(module)
    path = folder / FILE
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as e:
        raise PluginError(f"{path}: cannot be read: {e}") from e
    return parse(text, str(path))


def package_folder(module: str) -> Path:
    """The folder of the top package of *module*, found without running any of its code.

    Raises:
        PluginError: there is no such module.
    """
    top = module.partition(".")[0]
    try:
        spec = find_spec(top)
    except (ImportError, ValueError) as e:
        raise PluginError(f"module {top!r} cannot be located: {e}") from e
    places = [*(spec.submodule_search_locations or ()), spec.origin] if spec else []
    if not places or not places[0]:
        raise PluginError(f"no module named {top!r} for {sys.executable}; install the distribution again")
    place = Path(places[0])
    return place if spec and spec.submodule_search_locations else place.parent


def _manifest(data: Mapping[str, Any], faults: list[str]) -> Manifest:
    _known(data, Manifest, "", faults)
    api = data.get("api")
    if type(api) is not int:
        faults.append(f"`api` is {_said(api)}; expected the number {API_VERSION}")
        api = 0
    elif api != API_VERSION:
        faults.append(f"`api` is {api}, and this Quintain speaks {API_VERSION}; upgrade the older of the two")
    rows = data.get("components", [])
    if not isinstance(rows, list) or not all(isinstance(r, dict) for r in rows):
        faults.append("`components` is to be a list of tables: [[components]]")
        rows = []
    entries = tuple(_entry(row, i, faults) for i, row in enumerate(rows, 1))
    _distinct(entries, faults)
    return Manifest(
        api=api,
        licence=_text(data, "licence", "", faults),
        homepage=_text(data, "homepage", "", faults),
        tags=_texts(data, "tags", "", faults),
        components=entries,
    )


def _entry(row: Mapping[str, Any], number: int, faults: list[str]) -> Entry:
    where = f"components[{number}]."
    _known(row, Entry, where, faults)
    faults.extend(f"`{where}{key}` is missing" for key in ("kind", "name", "summary") if not row.get(key))
    kind = _text(row, "kind", where, faults)
    if kind and kind not in GROUPS:
        faults.append(f"`{where}kind` is {kind!r}{did_you_mean(kind, GROUPS)}")
    needs = _texts(row, "needs", where, faults)
    faults.extend(f"`{where}needs` has {n!r}{did_you_mean(n, NEEDS)}" for n in needs if n not in NEEDS)
    return Entry(
        kind=kind,
        name=_text(row, "name", where, faults),
        summary=_text(row, "summary", where, faults),
        needs=needs,
        tags=_texts(row, "tags", where, faults),
        extra=_text(row, "extra", where, faults),
        source=_text(row, "source", where, faults),
    )


def _distinct(entries: tuple[Entry, ...], faults: list[str]) -> None:
    seen: set[tuple[str, str]] = set()
    for e in entries:
        if (e.kind, e.name) in seen:
            faults.append(f"{e.kind} {e.name!r} is listed twice")
        seen.add((e.kind, e.name))


def _known(table: Mapping[str, Any], record: type, where: str, faults: list[str]) -> None:
    names = [f.name for f in fields(record)]
    faults.extend(f"unknown key `{where}{key}`{did_you_mean(key, names)}" for key in table if key not in names)


def _text(table: Mapping[str, Any], key: str, where: str, faults: list[str]) -> str:
    value = table.get(key, "")
    if isinstance(value, str):
        return value
    faults.append(f"`{where}{key}` is {_said(value)}; expected text")
    return ""


def _texts(table: Mapping[str, Any], key: str, where: str, faults: list[str]) -> tuple[str, ...]:
    value = table.get(key, [])
    if isinstance(value, list) and all(isinstance(v, str) for v in value):
        return tuple(value)
    faults.append(f"`{where}{key}` is {_said(value)}; expected a list of text")
    return ()


def _said(value: object) -> str:
    return "missing" if value is None else repr(value)
