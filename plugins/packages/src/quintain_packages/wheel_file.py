"""A wheel, read before anything of it is installed."""

from __future__ import annotations

import hashlib
import posixpath
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PathDistribution
from pathlib import Path

from quintain import API_VERSION
from quintain.errors import PluginError, UsageError
from quintain.registry import KINDS, MANIFEST, UNNAMED, Manifest, normalise, parse_manifest

from .installer import install_folders
from .records import PluginRecord


@dataclass(frozen=True)
class WheelFile:
    """A wheel at *path*."""

    path: Path

    @cached_property
    def sha256(self) -> str:
        """The hash of the file, as a registry writes it."""
        return f"sha256:{hashlib.sha256(self.path.read_bytes()).hexdigest()}"

    @cached_property
    def names(self) -> list[str]:
        """The files of the wheel."""
        with zipfile.ZipFile(self.path) as archive:
            return [name for name in archive.namelist() if not name.endswith("/")]

    @cached_property
    def _metadata(self) -> PathDistribution:
        """What installed distributions are read with, so that nothing is read in another way.

        Raises:
            PluginError: the wheel has no folder of metadata, or several.
        """
        tops = {name.partition("/")[0] for name in self.names}
        found = [top for top in tops if top.endswith(".dist-info")]
        if len(found) != 1:
            raise PluginError(f"{self.path.name}: {len(found)} folders .dist-info; expected one")
        # A folder in a wheel has the methods of `Path` that are used of it.
        return PathDistribution(zipfile.Path(self.path, f"{found[0]}/"))

    def places(self, folders: Mapping[str, Path]) -> dict[Path, str]:
        """Return where the files are installed, each with its path below its folder.

        Args:
            folders: those of `install_folders`.

        Raises:
            PluginError: a name leaves its folder or is written in an unusual way, two files have
                one place, or one would be the metadata of a distribution.
        """
        found: dict[Path, str] = {}
        packages = {folders["purelib"], folders["platlib"]}
        for name in self.names:
            top, _, rest = name.partition("/")
            scheme, path = self._root, name
            if top.endswith(".data"):
                scheme, _, path = rest.partition("/")
            # pip resolves `x/../y`, so a name in another form would hide where it goes.
            usual = posixpath.normpath(name) == name and path.split("/")[0] not in ("", "..")
            if scheme not in folders or not usual:
                raise PluginError(f"{self.path.name}: {name!r} is no place of a file in a wheel")
            place = folders[scheme] / path
            if place in found:
                raise PluginError(f"{self.path.name}: two of its files are installed as {place}")
            described = any(
                above.name.lower().endswith((".dist-info", ".egg-info"))
                and above.parent in packages
                for above in (place, *place.parents)
            )
            if described and not top.endswith(".dist-info"):
                raise PluginError(
                    f"{self.path.name}: {name!r} would describe a distribution as installed"
                )
            found[place] = path
        return found

    @property
    def _root(self) -> str:
        """The folder of files that are in none of ``.data``."""
        text = self._metadata.read_text("WHEEL") or ""
        return "purelib" if "root-is-purelib: true" in text.lower() else "platlib"

    def header(self, name: str) -> str:
        """Return a field of the metadata; empty where it has none."""
        return str(self._metadata.metadata.get(name, ""))  # type: ignore[attr-defined]

    @property
    def name(self) -> str:
        return normalise(self.header("Name"))

    @property
    def version(self) -> str:
        return self.header("Version")

    @property
    def requires(self) -> list[str]:
        """What it needs in any case, as pip takes it."""
        return [r for r in self._metadata.requires or () if "extra ==" not in r]

    def homepage(self) -> str:
        """Return the first of its addresses; empty where it names none."""
        rows = self._metadata.metadata.get_all("Project-URL") or []
        return rows[0].partition(",")[2].strip() if rows else ""

    @cached_property
    def entry_points(self) -> dict[str, dict[str, str]]:
        """Targets by group and name."""
        found: dict[str, dict[str, str]] = {}
        for point in self._metadata.entry_points:
            found.setdefault(point.group, {})[point.name] = point.value
        return found

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
        places = [n for n in self.names if n.count("/") == 1 and n.endswith(f"/{MANIFEST}")]
        if len(places) != 1:
            said = f"in {', '.join(places)}" if places else f"nowhere; every plugin has {MANIFEST}"
            raise PluginError(f"{self.path.name}: its manifest is {said}")
        with zipfile.ZipFile(self.path) as archive:
            text = archive.read(places[0]).decode("utf-8", "replace")
        return parse_manifest(text, f"{self.path.name}: {places[0]}")

    def own_record(self) -> PluginRecord:
        """Return what a registry would say about the wheel.

        Raises:
            PluginError: the manifest is missing or faulty.
        """
        return PluginRecord.of(
            self.manifest,
            name=self.header("Name"),
            summary=self.header("Summary"),
            version=self.version,
        )

    def runs_unasked(self) -> list[str]:
        """Return what of it runs although nobody names it."""
        lines = [
            f"{kind} {name} {UNNAMED[kind]}"
            for kind, name in sorted(self.components)
            if kind in UNNAMED
        ]
        places = self.places(install_folders(self.name))
        started = [name for place, name in places.items() if _starts_with_python(place)]
        lines += [f"{name} at every start of Python" for name in started]
        plugins = self.entry_points.get("pytest11", {})
        return lines + [f"{name} in every run of pytest" for name in plugins]

    def programs(self) -> list[str]:
        """Return the programs that it installs."""
        groups = ("console_scripts", "gui_scripts")
        found = {name for group in groups for name in self.entry_points.get(group, {})}
        folders = install_folders(self.name)
        files = {p.name for p in self.places(folders) if folders["scripts"] in p.parents}
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


def _starts_with_python(place: Path) -> bool:
    """Return whether an interpreter reads the file at *place* when it starts."""
    if place.suffix == ".pth":
        return True
    package = place.parent if place.stem == "__init__" else place
    is_hook = package.name.partition(".")[0] in ("sitecustomize", "usercustomize")
    folders = {*map(Path, sys.path), *install_folders("").values()}
    return is_hook and package.parent in folders


def overwritten(wheel: WheelFile, folders: Mapping[str, Path]) -> list[str]:
    """Return the files that the wheel would replace.

    Args:
        folders: those of `install_folders`.

    Raises:
        PluginError: where a file goes cannot be said.
    """
    found = [name for place, name in wheel.places(folders).items() if place.exists()]
    programs = [name for name in wheel.programs() if (folders["scripts"] / name).exists()]
    return list(dict.fromkeys([*found, *programs]))


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
