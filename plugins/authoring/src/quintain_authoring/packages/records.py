"""A registry: a TOML file with a record of each plugin."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from quintain.errors import UnknownNameError, UsageError
from quintain.registry import Manifest, normalise

OURS = Path(__file__).with_name("registry.toml")
"""The registry that comes with this package."""
CHECKS = {
    "tests": "tested on every change of Quintain's repository",
    "suite": "`quintain check` passed on what was published",
    "": "none that the registry knows of",
}
"""What the key ``check`` of a record says."""
Hash = Annotated[str, Field(pattern="^sha256:[0-9a-f]{64}$")]


@dataclass(frozen=True, kw_only=True)
class PluginRecord:
    """What a registry says about a distribution.

    Attributes:
        api: version of the contract with plugins that it was written for.
        provides: ``"kind:name"`` of each component.
        needs: of any of its components: docker (images of containers), gpu, keys, network.
        memory: what the hungriest component takes beside a run; empty where nobody said.
        version: the one that pip installs; empty for the newest.
        url: of a wheel or source archive; empty for pip's index.
        hashes: ``"sha256:..."`` of each file that may be installed; empty for any.
        check: a key of `CHECKS`.
    """

    # A misspelt `hashes` would check nothing.
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    name: str
    summary: str = ""
    source: str = ""
    version: str = ""
    api: int
    licence: str = ""
    tags: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    memory: str = ""
    check: Literal["tests", "suite", ""] = ""
    url: str = ""
    hashes: tuple[Hash, ...] = ()
    provides: tuple[str, ...] = ()

    @classmethod
    def of(cls, manifest: Manifest, *, name: str, summary: str, version: str) -> PluginRecord:
        """Return what the manifest of a distribution says, beside what its metadata does."""
        entries = manifest.components
        return cls(
            name=name,
            summary=summary,
            version=version,
            api=manifest.api,
            licence=manifest.licence,
            tags=manifest.tags,
            needs=tuple(sorted({need for entry in entries for need in entry.needs})),
            memory=", ".join(sorted({entry.memory for entry in entries if entry.memory})),
            provides=tuple(sorted(f"{entry.kind}:{entry.name}" for entry in entries)),
        )

    def names(self) -> set[str]:
        """Return the names of its components."""
        return {entry.partition(":")[2] for entry in self.provides}

    def has(self, words: Iterable[str]) -> bool:
        """Return whether each word is in its name, description, tags or components."""
        told = " ".join((self.name, self.summary, *self.tags, *self.provides)).lower()
        return all(word.lower() in told for word in words)

    def requirement(self) -> str:
        """Return the line for a file that ``pip install -r`` reads, with its pins."""
        version = f"=={self.version}" if self.version else ""
        place = f" @ {self.url}" if self.url else version
        return " ".join([f"{self.name}{place}", *(f"--hash={one}" for one in self.hashes)])


def read_registry(path: Path | None = None) -> list[PluginRecord]:
    """Return the records of the registry at *path*; ``None`` is the one of this package.

    Raises:
        UsageError: it is no registry.
    """
    place = path or OURS
    try:
        rows = tomllib.loads(place.read_text(encoding="utf-8")).get("plugin", [])
        return TypeAdapter(list[PluginRecord]).validate_python(rows)
    except ValidationError as e:
        faults = [f"[[plugin]] {'.'.join(map(str, f['loc']))}: {f['msg']}" for f in e.errors()]
        raise UsageError("\n".join(f"registry {place}: {fault}" for fault in faults)) from e
    except (ValueError, RecursionError) as e:
        raise UsageError(f"registry {place}: not TOML: {e}") from e


def find_record(records: list[PluginRecord], name: str) -> PluginRecord:
    """Return the record of a distribution, or of the only one that has a component of this name.

    Raises:
        UnknownNameError: there is none.
        UsageError: several have it.
    """
    wanted = normalise(name)
    for record in records:
        if normalise(record.name) == wanted:
            return record
    owners = [record for record in records if name in record.names()]
    if len(owners) > 1:
        raise UsageError(f"{name!r} is in {', '.join(o.name for o in owners)}; name one of them")
    if not owners:
        known = [n for record in records for n in (record.name, *record.names())]
        help_ = "`quintain packages find WORDS` looks for words"
        raise UnknownNameError.of("plugin", name, known, help_)
    return owners[0]


def record_lines(record: PluginRecord) -> Iterator[str]:
    """Yield the lines of a record in a registry; empty keys are left out."""
    yield "[[plugin]]"
    for field in fields(PluginRecord):
        value = getattr(record, field.name)
        if isinstance(value, tuple) and value and field.name in ("provides", "hashes"):
            yield f"{field.name} = ["
            yield from (f"    {json.dumps(item)}," for item in value)
            yield "]"
        elif value:
            plain = list(value) if isinstance(value, tuple) else value
            yield f"{field.name} = {json.dumps(plain, ensure_ascii=False)}"
