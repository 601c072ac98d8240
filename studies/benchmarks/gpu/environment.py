"""Makes Quintain importable on a machine without network, without installing the workspace.

Packages that the machine lacks are unpacked from a folder of wheels. Every member whose
requirements are then met gets a ``dist-info`` with its entry points, and its sources are put on the
path: to discovery it looks like an editable install, and no build backend is needed. Members that
lack a package are left out with a line that names it.

    python studies/benchmarks/gpu/environment.py        prints the value for PYTHONPATH

Uses the standard library and pip alone, and ``packaging``, which comes with transformers.
"""

from __future__ import annotations

import argparse
import email
import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parent.parent.parent
WHEELS, SITE = FOLDER / "wheels", FOLDER / ".site"
CORE = "quintain"
UNUSED = {"datasets"}
"""Required by an extra, but imported only to fetch data from the hub, which this machine cannot."""


SHOWN = ("torch", "transformers", "peft", "vllm")


@dataclass(frozen=True)
class Member:
    """A distribution of the workspace.

    Attributes:
        folder: of its ``pyproject.toml``.
        project: its table of that name.
    """

    folder: Path
    project: Mapping[str, Any]

    @property
    def name(self) -> str:
        return canonicalize_name(self.project["name"])

    @property
    def sources(self) -> Path:
        """The folder that has its packages."""
        return self.folder / ("core" if self.name == CORE else "src")

    @property
    def requirements(self) -> list[Requirement]:
        """What it needs; core with the extras that training takes, rewards with that of math."""
        texts = list(self.project.get("dependencies", ()))
        if self.name == CORE:
            extras = self.project["optional-dependencies"]
            texts += [*extras["train"], *extras["lora"]]
        if self.name == "quintain-rewards":
            texts += self.project["optional-dependencies"]["math"]
        return [Requirement(text) for text in texts]


def members(root: Path = ROOT) -> dict[str, Member]:
    """Return the distributions of the workspace by name, core first."""
    files = [root / "pyproject.toml", *sorted(root.glob("*/*/pyproject.toml"))]
    tables = [(file.parent, tomllib.loads(file.read_text(encoding="utf-8"))) for file in files]
    found = [Member(folder, table["project"]) for folder, table in tables if "project" in table]
    return {
        member.name: member
        for member in found
        if member.name == CORE or member.folder.parent.name in ("plugins", "environments")
    }


@dataclass
class Packages:
    """What of the requirements is there, what the wheels have, and what neither has.

    Attributes:
        wheels: carried files by canonical name.
        taken: names of the wheels that are needed.
        missing: requirements that are nowhere, as text.
    """

    wheels: Mapping[str, Path]
    taken: dict[str, Path] = field(default_factory=dict)

    def missing(self, requirement: Requirement) -> Iterator[str]:
        """Yield what *requirement* lacks after all wheels that help are taken, itself included."""
        name = canonicalize_name(requirement.name)
        if name in self.taken or name in UNUSED or not applies(requirement):
            return
        if fits(requirement, installed(name)):
            return
        wheel = self.wheels.get(name)
        if wheel is None or not fits(requirement, str(parse_wheel_filename(wheel.name)[1])):
            yield str(requirement)
            return
        self.taken[name] = wheel
        for needed in wheel_requirements(wheel):
            yield from self.missing(needed)


def applies(requirement: Requirement) -> bool:
    """Return whether the marker of *requirement* holds here, without extras."""
    return requirement.marker is None or requirement.marker.evaluate({"extra": ""})


def fits(requirement: Requirement, found: str) -> bool:
    """Return whether version *found* meets *requirement*; an empty one does not."""
    return bool(found) and requirement.specifier.contains(found, prereleases=True)


def installed(name: str) -> str:
    """Return the installed version of *name*, or an empty text."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def wheel_requirements(wheel: Path) -> list[Requirement]:
    """Return what the file *wheel* requires by its metadata."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        headers = email.message_from_bytes(archive.read(name))
    return [Requirement(text) for text in headers.get_all("Requires-Dist", ())]


def carried(folder: Path) -> dict[str, Path]:
    """Return the wheels in *folder* by canonical name."""
    return {parse_wheel_filename(file.name)[0]: file for file in sorted(folder.glob("*.whl"))}


def usable(packages: Packages) -> tuple[dict[str, Member], dict[str, list[str]]]:
    """Return the members that work here, and what each of the others lacks.

    Raises:
        SystemExit: core lacks something.
    """
    everyone = members()
    lacks: dict[str, list[str]] = {}

    def check(name: str) -> bool:
        """Note in *lacks* what member *name* lacks; that another member lacks it counts."""
        if name not in lacks:
            lacks[name] = []  # members may need one another
            for requirement in everyone[name].requirements:
                other = canonicalize_name(requirement.name)
                if other in everyone:
                    lacks[name] += [] if check(other) else [other]
                else:
                    lacks[name] += packages.missing(requirement)
        return not lacks[name]

    ready = {name: everyone[name] for name in everyone if check(name)}
    if lacks[CORE]:
        names = ", ".join(lacks[CORE])
        raise SystemExit(
            f"{CORE} needs {names}, which neither {sys.executable} nor the wheels in {WHEELS} "
            "have: add them to carried.txt and run carry.sh where there is a network"
        )
    return ready, {name: needs for name, needs in lacks.items() if needs}


def write_metadata(site: Path, member: Member) -> None:
    """Write the ``dist-info`` of *member*, whose sources are on the path, into *site*."""
    project = member.project
    info = site / f"{re.sub(r'[-.]+', '_', project['name'])}-{project['version']}.dist-info"
    info.mkdir(parents=True)
    headers = [
        "Metadata-Version: 2.1",
        f"Name: {project['name']}",
        f"Version: {project['version']}",
    ]
    headers += [f"Requires-Dist: {text}" for text in project.get("dependencies", ())]
    (info / "METADATA").write_text("\n".join(headers) + "\n", encoding="utf-8")
    (info / "direct_url.json").write_text(
        f'{{"url": "{member.folder.as_uri()}", "dir_info": {{"editable": true}}}}',
        encoding="utf-8",
    )
    groups = dict(project.get("entry-points", {}))
    groups |= {"console_scripts": project["scripts"]} if "scripts" in project else {}
    lines = [
        line
        for group, entries in groups.items()
        for line in (f"[{group}]", *(f"{name} = {target}" for name, target in entries.items()), "")
    ]
    (info / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")


def unpack(wheels: Sequence[Path], site: Path) -> None:
    """Install *wheels* into the folder *site*, without a look at any index."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    command += ["--no-cache-dir", "--disable-pip-version-check", "--target", str(site)]
    subprocess.run([*command, *map(str, wheels)], check=True, stdout=sys.stderr)


def prepare(wheels: Path = WHEELS, site: Path = SITE) -> list[Path]:
    """Make *site* anew; return the folders that belong on the path, *site* and the root first."""
    packages = Packages(carried(wheels))
    ready, others = usable(packages)
    shutil.rmtree(site, ignore_errors=True)
    site.mkdir(parents=True)
    if packages.taken:
        unpack([*packages.taken.values()], site)
    for member in ready.values():
        write_metadata(site, member)
    there = [f"{name} {installed(name) or 'absent'}" for name in SHOWN]
    print(f"Python {platform.python_version()}, {', '.join(there)}", file=sys.stderr)
    sizes = sum(file.stat().st_size for file in packages.taken.values())
    names = ", ".join(sorted(packages.taken)) or "nothing"
    print(f"from wheels ({sizes / 2**20:.1f} MiB): {names}", file=sys.stderr)
    for name, needs in others.items():
        print(f"left out: {name} (needs {', '.join(needs)})", file=sys.stderr)
    return [site, ROOT, *(member.sources for member in ready.values())]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--wheels", type=Path, default=WHEELS, help="folder of carried wheels")
    parser.add_argument("--site", type=Path, default=SITE, help="folder to make")
    args = parser.parse_args()
    print(os.pathsep.join(map(str, prepare(args.wheels, args.site.resolve()))))


if __name__ == "__main__":
    main()
