"""A wheel, read before anything of it is installed."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import PathDistribution
from pathlib import Path

from quintain.errors import PluginError, UsageError
from quintain.registry import KINDS, MANIFEST, Manifest, parse_manifest

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
        """The files of the wheel.

        Raises:
            UsageError: it cannot be read.
        """
        try:
            with zipfile.ZipFile(self.path) as archive:
                return [name for name in archive.namelist() if not name.endswith("/")]
        except (OSError, zipfile.BadZipFile) as e:
            raise UsageError(f"{self.path}: no wheel: {e}") from e

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

    def header(self, name: str) -> str:
        """Return a field of the metadata; empty where it has none."""
        return str(self._metadata.metadata.get(name, ""))  # type: ignore[attr-defined]

    @cached_property
    def components(self) -> set[tuple[str, str]]:
        """Kind and name of each component among the entry points."""
        points = self._metadata.entry_points
        return {(KINDS[point.group], point.name) for point in points if point.group in KINDS}

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
        record = PluginRecord.of(
            self.manifest,
            name=self.header("Name"),
            summary=self.header("Summary"),
            version=self.header("Version"),
        )
        return replace(record, hashes=(self.sha256,))

    def runs_unasked(self) -> list[str]:
        """Return what of it runs although nobody names it."""
        hooks = [name for kind, name in sorted(self.components) if kind == "hooks"]
        lines = [f"hooks {name} in every run" for name in hooks]
        starts = ("sitecustomize", "usercustomize")
        started = [n for n in self.names if n.endswith(".pth") or n.startswith(starts)]
        lines += [f"{name} at every start of Python" for name in started]
        points = self._metadata.entry_points.select(group="pytest11")
        return lines + [f"{point.name} in every run of pytest" for point in points]


def faults(wheel: WheelFile, record: PluginRecord) -> list[str]:
    """Return in what *wheel* is not what *record* says, or contradicts itself."""
    try:
        own = wheel.own_record()
    except PluginError as e:
        return [str(e)]
    found = []
    if record.hashes and wheel.sha256 not in record.hashes:
        found.append(f"its hash is {wheel.sha256}, and the registry names {list(record.hashes)}")
    pairs = {
        "version": (record.version, own.version),
        "contract": (str(record.api), str(own.api)),
        "licence": (record.licence, own.licence),
    }
    for what, (expected, actual) in pairs.items():
        if expected and expected != actual:
            found.append(f"its {what} is {actual!r}, and the registry says {expected!r}")
    declared = {f"{kind}:{name}" for kind, name in wheel.components}
    described = {*own.provides}
    if declared != described:
        found.append(f"its entry points and its manifest differ in {_listed(declared ^ described)}")
    if described != {*record.provides}:
        found.append(
            f"its manifest and the registry differ in {_listed(described ^ {*record.provides})}"
        )
    hidden = sorted(set(own.needs) - set(record.needs))
    if hidden:
        found.append(f"it needs {', '.join(hidden)}, which the registry does not say")
    return found


def _listed(components: set[str]) -> str:
    return ", ".join(sorted(components)).replace(":", " ")
