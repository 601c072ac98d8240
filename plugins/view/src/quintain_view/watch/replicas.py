"""The states of the replicas of a pool, which the run writes into its folder as they change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quintain.store import RunFolder


def replicas_of(folder: Path) -> list[dict[str, Any]]:
    """Return the last record of each replica of the run in *folder*: ``time``, ``replica``,
    ``state`` and ``why``.

    Raises:
        RunError: a line in the middle is damaged.
    """
    records = {record["replica"]: record for record in RunFolder(folder, lock=False).replicas()}
    return [records[number] for number in sorted(records)]
