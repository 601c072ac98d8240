"""A registry: a TOML file with a record of each plugin."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from quintain import InfrastructureError
from quintain.errors import UnknownNameError, UsageError, did_you_mean
from quintain.registry import Manifest, normalise

OURS = Path(__file__).with_name("registry.toml")
"""The registry that comes with this package."""
LARGEST = 16 << 20
"""Bytes of a registry at most."""
SECONDS = 30.0
HASH = re.compile(r"sha256:[0-9a-f]{64}")
CHECKS = {
    "tests": "tested on every change of Quintain's repository",
    "suite": "`quintain check` passed on what was published",
    "": "none that the registry knows of",
}
"""What the key ``check`` of a record says."""


@dataclass(frozen=True, kw_only=True)
class PluginRecord:
    """What a registry says about a distribution.

    Attributes:
        api: version of the contract with plugins that it was written for.
        provides: ``"kind:name"`` of each component.
        needs: of any of its components: docker (images of containers), gpu, keys, network.
        memory: what the hungriest component takes beside a run; empty where nobody said.
        version: the one that is installed; empty for the newest.
        url: of a wheel or source archive; empty for pip's index.
        hashes: ``"sha256:..."`` of each file that may be installed; empty for any.
        check: a key of `CHECKS`.
    """

    name: str
    summary: str = ""
    source: str = ""
    version: str = ""
    api: int
    licence: str = ""
    tags: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    memory: str = ""
    check: str = ""
    url: str = ""
    hashes: tuple[str, ...] = ()
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


def read_registry(place: str = "") -> list[PluginRecord]:
    """Return the records of a registry.

    Args:
        place: a file or an address, which ``#sha256=HEX`` pins; empty for ours.

    Raises:
        UsageError: there is no such file, or it is no registry, or another one than was pinned.
        InfrastructureError: the address does not answer.
    """
    name, _, fragment = place.partition("#")
    data = _fetched(name) if "://" in name else _file(Path(name) if name else OURS)
    if fragment and fragment != (found := f"sha256={hashlib.sha256(data).hexdigest()}"):
        raise UsageError(f"registry {name}: it has {found}, and {fragment} was asked for")
    try:
        table = tomllib.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as e:
        raise UsageError(f"registry {name or OURS}: not TOML: {e}") from e
    rows = table.get("plugin", [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UsageError(f"registry {name or OURS}: expected a list of tables [[plugin]]")
    faults: list[str] = []
    records = [record_of(row, f"[[plugin]] {n}", faults) for n, row in enumerate(rows, 1)]
    if faults:
        raise UsageError("\n".join(f"registry {name or OURS}: {fault}" for fault in faults))
    return records


def record_of(row: Mapping[str, Any], where: str, faults: list[str]) -> PluginRecord:
    """Return the record of a table; what is wrong with it is added to *faults*."""
    kinds = {f.name: str(f.type) for f in fields(PluginRecord)}
    where = f"{where} ({row.get('name', 'without a name')})"
    faults.extend(
        f"{where}: unknown key {k!r}{did_you_mean(k, kinds)}" for k in row if k not in kinds
    )
    faults.extend(f"{where}: no key {k!r}" for k in ("name", "api") if k not in row)
    values: dict[str, Any] = {"name": "", "api": 0}
    for key, value in row.items():
        kind = kinds.get(key, "")
        is_list = isinstance(value, list) and all(type(item) is str for item in value)
        if kind.startswith("tuple") and is_list:
            values[key] = tuple(value)
        elif kind == type(value).__name__:
            values[key] = value
        elif kind:
            faults.append(f"{where}: {key} is {value!r}; expected {kind}")
    record = PluginRecord(**values)
    faults.extend(
        f"{where}: {h!r} is no hash; expected sha256: and 64 digits"
        for h in record.hashes
        if not HASH.fullmatch(h)
    )
    if record.check not in CHECKS:
        faults.append(f"{where}: check is {record.check!r}{did_you_mean(record.check, CHECKS)}")
    return record


def find(records: list[PluginRecord], name: str) -> PluginRecord:
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
        raise UnknownNameError.of("plugin", name, known, "`quintain search TEXT` looks for words")
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


def _file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as e:
        raise UsageError(f"registry {path}: cannot be read: {e.strerror}") from e


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows an answer to addresses that a registry may have."""

    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        check_address(newurl, "registry")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _fetched(address: str) -> bytes:
    check_address(address, "registry")
    try:
        opener = urllib.request.build_opener(_Redirects)
        with opener.open(address, timeout=SECONDS) as answer:
            data: bytes = answer.read(LARGEST + 1)
    except (OSError, urllib.error.URLError) as e:
        raise InfrastructureError(f"registry {address}: {e}") from e
    if len(data) > LARGEST:
        raise UsageError(f"registry {address}: it is larger than {LARGEST:,} bytes")
    return data


def check_address(address: str, what: str) -> None:
    """Check that nobody on the way can change what comes from *address*; *what* is named in the
    message.

    Raises:
        UsageError: it is no file of this machine, and not https.
    """
    parts = urlsplit(address)
    if parts.scheme not in ("https", "http", "file"):
        raise UsageError(f"{what} {address}: expected a file, or an address of https")
    if parts.scheme == "http" and parts.hostname not in ("127.0.0.1", "localhost", "::1"):
        raise UsageError(f"{what} {address}: anybody on the way can change it; use https")
