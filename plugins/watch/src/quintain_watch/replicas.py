"""The states of the replicas of a pool, which the run writes into its folder as they change."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

FILE = "replicas.jsonl"


def replicas_of(folder: Path) -> list[dict[str, Any]]:
    """Return the last record of each replica of the run in *folder*: ``time``, ``replica``,
    ``state`` and ``why``. Replicas that nothing has happened to are absent.
    """
    records: dict[int, dict[str, Any]] = {}
    with suppress(OSError):
        for line in (folder / FILE).read_text().splitlines():
            with suppress(ValueError, KeyError):  # the last line may not be whole yet
                record = json.loads(line)
                records[record["replica"]] = record
    return [records[number] for number in sorted(records)]
