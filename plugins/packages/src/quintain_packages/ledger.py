"""What `quintain add` has brought into an environment, so that `quintain remove` can take it away."""

from __future__ import annotations

import json
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

    version: str
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
    return {name: Added(**row | {"brought": tuple(row["brought"])}) for name, row in rows.items()}


def write_ledger(added: dict[str, Added]) -> None:
    """Write what was added.

    Raises:
        StorageError: the file cannot be written.
    """
    path = ledger_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = {name: asdict(row) for name, row in sorted(added.items())}
    write_atomically(path, json.dumps(rows, indent=1).encode() + b"\n")
