"""A wheel, read before anything of it is installed."""

from __future__ import annotations

import configparser
import hashlib
import zipfile
from dataclasses import dataclass
from email import message_from_string
from functools import cached_property
from pathlib import Path

from quintain import API_VERSION
from quintain.errors import PluginError, UsageError
from quintain.registry import KINDS, Manifest, normalise, parse_manifest

from .records import PluginRecord

MANIFEST = "quintain.toml"
UNNAMED = {
    "hooks": "in every run",
    "check": "on every environment that a command uses",
    "planner": "before every run",
    "reward_adapter": "on plain functions that a recipe names",
    "loader": "where a model is loaded",
    "decoder": "where a model is loaded",
    "kernels": "where a GPU computes",
    "hint": "on a name that nothing has",
    "completion": "where a shell completes words",
}
"""Kinds of components that run without being named in a recipe or on the command line, and when."""


@dataclass(frozen=True)
class WheelFile:
    """A wheel at *path*."""

    path: Path

    @cached_property
    def sha256(self) -> str:
        """The hash of the file, as a registry writes it."""
        return f"sha256:{hashlib.sha256(self.path.read_bytes()).hexdigest()}"

    @cached_property
    def texts(self) -> dict[str, str]:
        """The files of the wheel that are read here, by their last name; those of its metadata
        without their folder.
        """
        with zipfile.ZipFile(self.path) as archive:
            wanted = [n for n in archive.namelist() if n.count("/") == 1]
            wanted = [n for n in wanted if n.endswith(MANIFEST) or ".dist-info/" in n]
            return {
                name.rpartition("/")[2] if ".dist-info/" in name else name: archive.read(
                    name
                ).decode("utf-8", "replace")
                for name in wanted
            }

    @cached_property
    def names(self) -> list[str]:
        """The files of the wheel."""
        with zipfile.ZipFile(self.path) as archive:
            return [name for name in archive.namelist() if not name.endswith("/")]

    @property
    def modules(self) -> list[str]:
        """The files that are installed beside other packages, without the metadata."""
        found = []
        for name in self.names:
            top, *rest = name.split("/")
            if top.endswith(".data") and rest[0] in ("purelib", "platlib"):
                found.append("/".join(rest[1:]))
            elif not top.endswith((".data", ".dist-info")):
                found.append(name)
        return found

    def header(self, name: str) -> str:
        """Return a field of the metadata; empty where it has none."""
        return str(message_from_string(self.texts.get("METADATA", "")).get(name, ""))

    @property
    def name(self) -> str:
        return normalise(self.header("Name"))

    @property
    def version(self) -> str:
        return self.header("Version")

    @property
    def requires(self) -> list[str]:
        """What it needs in any case, as pip takes it."""
        found = message_from_string(self.texts.get("METADATA", "")).get_all("Requires-Dist", [])
        return [str(r) for r in found if "extra ==" not in str(r)]

    def homepage(self) -> str:
        """Return the first of its addresses; empty where it names none."""
        rows = message_from_string(self.texts.get("METADATA", "")).get_all("Project-URL", [])
        return str(rows[0]).partition(",")[2].strip() if rows else ""

    @cached_property
    def entry_points(self) -> dict[str, dict[str, str]]:
        """Targets by group and name."""
        parser = configparser.ConfigParser(delimiters=("=",), interpolation=None)
        parser.optionxform = str  # type: ignore[assignment,method-assign]  # names keep their case
        parser.read_string(self.texts.get("entry_points.txt", ""))
        return {group: dict(parser[group]) for group in parser.sections()}

    @property
    def components(self) -> set[tuple[str, str]]:
        """Kind and name of each component among the entry points."""
        points = self.entry_points
        return {(KINDS[g], name) for g in points if g in KINDS for name in points[g]}

    @cached_property
    def manifest(self) -> Manifest:
        """The manifest.

        Raises:
            PluginError: it has none, or several, or a faulty one.
        """
        places = [name for name in self.texts if "/" in name and name.endswith(f"/{MANIFEST}")]
        if len(places) != 1:
            said = f"in {', '.join(places)}" if places else f"nowhere; every plugin has {MANIFEST}"
            raise PluginError(f"{self.path.name}: its manifest is {said}")
        return parse_manifest(self.texts[places[0]], f"{self.path.name}: {places[0]}")

    def own_record(self) -> PluginRecord:
        """Return what a registry would say about the wheel.

        Raises:
            PluginError: the manifest is missing or faulty.
        """
        entries = self.manifest.components
        return PluginRecord(
            name=self.header("Name"),
            summary=self.header("Summary"),
            version=self.version,
            api=self.manifest.api,
            licence=self.manifest.licence,
            tags=self.manifest.tags,
            needs=tuple(sorted({need for entry in entries for need in entry.needs})),
            memory=", ".join(sorted({entry.memory for entry in entries if entry.memory})),
            provides=tuple(sorted(f"{entry.kind}:{entry.name}" for entry in entries)),
        )

    def runs_unasked(self) -> list[str]:
        """Return what of it runs although nobody names it."""
        lines = [
            f"{kind} {name} {UNNAMED[kind]}"
            for kind, name in sorted(self.components)
            if kind in UNNAMED
        ]
        started = [n for n in self.modules if n.endswith(".pth")]
        lines += [f"{name} at every start of Python" for name in started]
        plugins = self.entry_points.get("pytest11", {})
        return lines + [f"{name} in every run of pytest" for name in plugins]

    def programs(self) -> list[str]:
        """Return the programs that it installs."""
        groups = ("console_scripts", "gui_scripts")
        found = {name for group in groups for name in self.entry_points.get(group, {})}
        files = {n.rpartition("/")[2] for n in self.names if ".data/scripts/" in n}
        return sorted(found | files)


def faults(wheel: WheelFile, record: PluginRecord) -> list[str]:
    """Return in what *wheel* is not what *record* says, or contradicts itself."""
    try:
        manifest, own = wheel.manifest, wheel.own_record()
    except PluginError as e:
        return [str(e)]
    found = []
    pairs = {
        "name": (normalise(record.name), wheel.name),
        "version": (record.version, wheel.version),
        "contract": (str(record.api), str(own.api)),
        "licence": (record.licence, own.licence),
    }
    for what, (expected, actual) in pairs.items():
        if expected and expected != actual:
            found.append(f"its {what} is {actual!r}, and the registry says {expected!r}")
    listed = {(entry.kind, entry.name) for entry in manifest.components}
    found += _differences("its entry points", wheel.components, "its manifest", listed)
    told = {(kind, name) for kind, _, name in (p.partition(":") for p in record.provides)}
    found += _differences("its manifest", listed, "the registry", told)
    if hidden := sorted(set(own.needs) - set(record.needs)):
        found.append(f"it needs {', '.join(hidden)}, which the registry does not say")
    return found


def _differences(
    one: str, ones: set[tuple[str, str]], other: str, others: set[tuple[str, str]]
) -> list[str]:
    said = {f"{one} have" if one.endswith("s") else f"{one} has": ones - others}
    said |= {f"{other} has": others - ones}
    return [
        f"{who} {', '.join(f'{kind} {name}' for kind, name in sorted(more))} alone"
        for who, more in said.items()
        if more
    ]


def overwritten(wheel: WheelFile, packages: Path, programs: Path) -> list[str]:
    """Return the files that the wheel would replace in the folders of packages and programs."""
    found = [name for name in wheel.modules if (packages / name).exists()]
    return found + [name for name in wheel.programs() if (programs / name).exists()]


def check_contract(record: PluginRecord) -> None:
    """Check that this Quintain speaks the contract of a plugin.

    Raises:
        UsageError: it does not.
    """
    if record.api > API_VERSION:
        raise UsageError(
            f"{record.name} was written for version {record.api} of the contract with plugins, and "
            f"this Quintain speaks {API_VERSION}: pip install --upgrade quintain"
        )
