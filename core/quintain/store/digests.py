"""Digests of the files of a run: what a checkpoint says of its own files and of the logs beside it,
and whether they are still so.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..errors import RunError
from .toml import read_toml

SUMS = "SHA256SUMS"
ABOUT = "checkpoint.json"
_SUM = re.compile(r"[0-9a-f]{64}  .+")


@contextmanager
def read_whole(path: Path, file: str = "") -> Iterator[None]:
    """Turn any error from reading the checkpoint at *path*, or a *file* of it, into one.

    Raises:
        RunError: the checkpoint is damaged.
    """
    try:
        yield
    except MemoryError:
        raise
    except Exception as e:  # json, pickle, zip, torch and safetensors each raise their own
        reason = str(e).strip().split("\n")[0] or type(e).__name__
        if file and file not in reason:
            reason = f"{file}: {reason}"
        raise damaged(path, reason) from e


def damaged(path: Path, fault: str) -> RunError:
    """Return the error of the checkpoint at *path*, with the way out."""
    return RunError(
        f"checkpoint {path} is damaged ({fault}); remove the folder to continue from an earlier one"
    )


def digests(folder: Path, known: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """Return the SHA-256 of each file of a checkpoint but `SUMS`, by its path in *folder*; hidden
    files do not count, and those that are *known* are not read.
    """
    found = {}
    for path in folder.rglob("[!.]*"):
        name = path.relative_to(folder).as_posix()
        if name in known:
            found[name] = known[name]
        elif path.is_file() and path != folder / SUMS:
            found[name] = _digest(path)
    return found


def fault_of(checkpoint: Path, part: str = "") -> str:
    """Return a file that is not as `SUMS` of the folder *checkpoint* has it, and why; empty for none.

    Args:
        part: of the checkpoint, a folder such as ``model/`` or a file; empty for all.
    """
    try:
        lines = (checkpoint / SUMS).read_text(encoding="utf-8").splitlines()
        inside = checkpoint / part
        if not part or part.endswith("/"):
            current = {part + name: digest for name, digest in digests(inside).items()}
        else:
            current = {part: _digest(inside)} if inside.exists() else {}
    except (OSError, UnicodeDecodeError) as e:
        return f"{SUMS}: {e}" if isinstance(e, UnicodeDecodeError) else str(e)
    if odd := next((i for i, line in enumerate(lines, 1) if not _SUM.fullmatch(line)), 0):
        return f"line {odd} of {SUMS} is no digest with the name of a file"
    entries = (line.partition("  ") for line in lines)
    saved = {name: digest for digest, _, name in entries if name.startswith(part)}
    for name in sorted(saved.keys() | current.keys()):
        if name not in current or name not in saved:
            return f"{name} is {'not in ' + SUMS if name in current else 'missing'}"
        if saved[name] != current[name]:
            return f"{name} differs from its SHA-256 in {SUMS}"
    return ""


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def description_of(checkpoint: Path) -> dict[str, Any]:
    """Return what ``checkpoint.json`` says, compared with its digest where there are digests.

    Raises:
        RunError: it is damaged.
    """
    with read_whole(checkpoint, ABOUT):
        description = dict(json.loads((checkpoint / ABOUT).read_text(encoding="utf-8")))
    if (checkpoint / SUMS).exists() and (fault := fault_of(checkpoint, ABOUT)):
        raise damaged(checkpoint, fault)
    return description


def log_digest(path: Path, count: int | None = None) -> dict[str, Any]:
    """Return number and SHA-256 of the whole lines of a log, of all or the first *count*."""
    lines, digest = 0, hashlib.sha256()
    if path.exists():
        with open(path, "rb") as file:
            for line in islice(file, count):
                if line.endswith(b"\n"):
                    digest.update(line)
                    lines += 1
    return {"lines": lines, "sha256": digest.hexdigest()}


def recipe_digest(text: str) -> str:
    """Return the SHA-256 of what a recipe says: comments and blanks do not count."""
    with suppress(ValueError):  # that it is no recipe is said where it is parsed
        text = json.dumps(read_toml(text), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
