"""What `quintain add` has brought into an environment, so that `quintain remove` can take it away."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from quintain.store import write_atomically


@dataclass(frozen=True, kw_only=True)
class Added:
    """A plugin that was added.

    Attributes:
        brought: other distributions that were installed for it.
        environment: folder of its own virtual environment; empty for none.
    """

    brought: tuple[str, ...] = ()
    environment: str = ""


def ledger_file() -> Path:
    """Return the file of this environment."""
    return Path(sys.prefix) / "share" / "quintain" / "added.json"


def read_ledger() -> dict[str, Added]:
    """Return what was added, by name."""
    path = ledger_file()
    if not path.is_file():
        return {}
    rows = json.loads(path.read_text(encoding="utf-8"))
    return {
        name: Added(brought=tuple(row["brought"]), environment=row["environment"])
        for name, row in rows.items()
    }


def write_ledger(added: dict[str, Added]) -> None:
    """Write what was added.

    Raises:
        StorageError: the file cannot be written.
    """
    path = ledger_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = {name: asdict(row) for name, row in sorted(added.items())}
    write_atomically(path, json.dumps(rows, indent=1).encode() + b"\n")


def drop_environment(folder: str, added: dict[str, Added]) -> str:
    """Remove a virtual environment, unless a plugin of *added* has it, too.

    Returns:
        *folder*, or nothing if it stays.
    """
    if not folder or folder in {row.environment for row in added.values()}:
        return ""
    if Path(folder, "pyvenv.cfg").is_file():
        shutil.rmtree(folder, ignore_errors=True)
    return folder
