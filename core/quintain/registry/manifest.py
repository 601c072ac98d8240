"""The manifest ``quintain.toml`` beside a distribution's top ``__init__.py``: what listings show
without importing it::

    api = 1
    licence = "Apache-2.0"
    tags = ["math", "single-turn"]

    [[components]]
    kind = "environment"
    name = "arithmetic"
    summary = "Sums and products of whole numbers, by level."
    needs = ["network"]        # docker, gpu, keys, network
    memory = "6 GiB"           # what it takes beside a run
    extra = "hub"              # the pip extra that it imports
    source = "..."             # of an algorithm: the paper
    section = "look"           # of a command: where `quintain --help` shows it

It is checked without pydantic, whose import would add 0.11 s to the 0.3 s of a listing.
"""

from __future__ import annotations

import sys
import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .. import API_VERSION
from ..errors import PluginError, did_you_mean
from .discovery import GROUPS, Component

MANIFEST = "quintain.toml"
NEEDS = ("docker", "gpu", "keys", "network")
SECTIONS = {
    "start": "Start here",
    "write": "Write and check",
    "look": "Look at runs and models",
    "data": "Train on data",
    "serve": "Serve and grade",
    "scale": "Plan and scale",
}
"""Sections of `quintain --help` in their order: what a manifest says, and the title."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    kind: str
    name: str
    summary: str
    needs: tuple[str, ...] = ()
    memory: str = ""
    tags: tuple[str, ...] = ()
    extra: str = ""
    source: str = ""
    section: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """The manifest of a distribution."""

    api: int
    licence: str = ""
    homepage: str = ""
    tags: tuple[str, ...] = ()
    components: tuple[Entry, ...] = ()

    def entry(self, component: Component) -> Entry | None:
        return next(
            (e for e in self.components if (e.kind, e.name) == (component.kind, component.name)),
            None,
        )


def parse_manifest(text: str, where: str = MANIFEST) -> Manifest:
    """Read a manifest.

    Raises:
        PluginError: all faults of the manifest, one per line, each with *where* and the key.
    """
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as e:
        raise PluginError(f"{where}: not TOML: {e}") from e
    faults: list[str] = []
    manifest = _manifest(data, faults)
    if faults:
        raise PluginError("\n".join(f"{where}: {fault}" for fault in faults))
    return manifest


def read(module: str) -> Manifest | None:
    """Return the manifest of the top package of *module*; ``None`` if it has none.

    Raises:
        PluginError: the package cannot be found, or the manifest is faulty.
    """
    path = package_folder(module) / MANIFEST
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as e:
        raise PluginError(f"{path}: cannot be read: {e}") from e
    return parse_manifest(text, str(path))


def package_folder(module: str) -> Path:
    """Return the folder of the top package of *module*, located without running its code.

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
        raise PluginError(
            f"no module named {top!r} for {sys.executable}; correct the entry point or install it "
            f"again"
        )
    place = Path(places[0])
    return place if spec and spec.submodule_search_locations else place.parent


def _manifest(data: Mapping[str, Any], faults: list[str]) -> Manifest:
    texts = _texts(Manifest, data, "", faults)
    api = data.get("api")
    if type(api) is not int:
        faults.append(
            f"`api` is {'missing' if api is None else repr(api)}; expected the number {API_VERSION}"
        )
        api = 0
    elif api != API_VERSION:
        faults.append(
            f"`api` is {api}, and this Quintain speaks {API_VERSION}; upgrade the older of the two"
        )
    rows = data.get("components", [])
    if not isinstance(rows, list) or not all(isinstance(r, dict) for r in rows):
        faults.append("`components` is to be a list of tables: [[components]]")
        rows = []
    entries = tuple(_entry(row, f"components[{i}].", faults) for i, row in enumerate(rows, 1))
    twice = [
        name for name, count in Counter((e.kind, e.name) for e in entries).items() if count > 1
    ]
    faults.extend(f"{kind} {name!r} is listed twice" for kind, name in twice)
    return Manifest(api=api, components=entries, **texts)


def _entry(row: Mapping[str, Any], where: str, faults: list[str]) -> Entry:
    required = ("kind", "name", "summary")
    faults.extend(f"`{where}{key}` is missing" for key in required if not row.get(key))
    entry = Entry(**dict.fromkeys(required, "") | _texts(Entry, row, where, faults))
    if entry.kind and entry.kind not in GROUPS:
        faults.append(f"`{where}kind` is {entry.kind!r}{did_you_mean(entry.kind, GROUPS)}")
    if entry.section and entry.section not in SECTIONS:
        faults.append(
            f"`{where}section` is {entry.section!r}{did_you_mean(entry.section, SECTIONS)}"
        )
    faults.extend(
        f"`{where}needs` has {n!r}{did_you_mean(n, NEEDS)}" for n in entry.needs if n not in NEEDS
    )
    return entry


def _texts(record: type, table: Mapping[str, Any], where: str, faults: list[str]) -> dict[str, Any]:
    """Return the values of *table* for the fields of *record* that are text or tuples of text."""
    types = {f.name: f.type for f in fields(record)}
    faults.extend(
        f"unknown key `{where}{key}`{did_you_mean(key, types)}" for key in table if key not in types
    )
    texts: dict[str, Any] = {}
    for key, value in table.items():
        if types.get(key) == "str" and isinstance(value, str):
            texts[key] = value
        elif (
            types.get(key) == "tuple[str, ...]"
            and isinstance(value, list)
            and all(type(v) is str for v in value)
        ):
            texts[key] = tuple(value)
        elif types.get(key) in ("str", "tuple[str, ...]"):
            faults.append(
                f"`{where}{key}` is {value!r}; expected "
                f"{'' if types[key] == 'str' else 'a list of '}text"
            )
    return texts
