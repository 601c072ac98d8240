"""Write ``registry.toml``, the directory of known plugins, from the workspace's manifests and project files.

Run ``make registry`` after adding a member or a component; a test fails where the file is out of date.
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from quintain.registry.discovery import GROUPS
from quintain.registry.manifest import FILE, Manifest, parse

ROOT = Path(__file__).resolve().parent.parent
HEAD = """\
# The directory of known plugins. Generated from their manifests by `make registry`; do not edit.
# Members of this repository are tested on every change.
"""


def members(root: Path = ROOT) -> list[Path]:
    """Folders of the workspace's distributions, core's own first."""
    found = [p.parent for place in ("environments", "plugins") for p in (root / place).glob("*/pyproject.toml")]
    return [root, *sorted(found)]


def project(member: Path) -> dict[str, Any]:
    """What a member's ``pyproject.toml`` says."""
    return tomllib.loads((member / "pyproject.toml").read_text(encoding="utf-8"))


def package(member: Path) -> Path:
    """The folder of a member's import package."""
    return member / project(member)["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"][0]


def declared(member: Path) -> set[tuple[str, str]]:
    """Kind and name of each component among a member's entry points."""
    groups = project(member)["project"].get("entry-points", {})
    return {(kind, name) for kind, group in GROUPS.items() for name in groups.get(group, {})}


def manifest(member: Path) -> Manifest:
    """A member's manifest.

    Raises:
        PluginError: it is faulty.
    """
    path = package(member) / FILE
    return parse(path.read_text(encoding="utf-8"), str(path))


def render(root: Path = ROOT) -> str:
    """The text of ``registry.toml``."""
    return HEAD + "".join("\n" + "\n".join(_record(member, root)) + "\n" for member in members(root))


def _record(member: Path, root: Path) -> Iterator[str]:
    about, told = project(member)["project"], manifest(member)
    yield "[[plugin]]"
    yield f"name = {json.dumps(about['name'])}"
    yield f"summary = {json.dumps(about['description'])}"
    yield f"source = {json.dumps(member.relative_to(root).as_posix())}"
    yield f"api = {told.api}"
    yield f"licence = {json.dumps(told.licence)}"
    yield f"tags = {json.dumps(list(told.tags))}"
    yield "provides = ["
    yield from (
        f"    {json.dumps(f'{kind}:{name}')}," for kind, name in sorted((e.kind, e.name) for e in told.components)
    )
    yield "]"


if __name__ == "__main__":
    target = ROOT / "registry.toml"
    target.write_text(render(), encoding="utf-8")
    sys.stdout.write(f"wrote {target.relative_to(ROOT)}: {len(members())} distributions\n")
