"""The disk that checkpoints take."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from quintain.errors import UsageError
from quintain.recipe import RunPlan
from quintain.store import free_bytes, size_text


def check_disk(plan: RunPlan, module: Any) -> str:
    """Return a note on the room that checkpoints of *module* take, besides that of one that is
    written.

    Raises:
        UsageError: there is less.
    """
    weights = 4 * sum(p.numel() for p in module.parameters() if p.requires_grad)
    table, folder = plan.checkpoint, Path(plan.record["run"]["folder"])
    size = 3 * weights  # the weights and the two moments of AdamW
    saved = math.ceil(plan.steps / (table.every or plan.steps))
    needed = min(table.keep + 1, saved) * size + table.best * weights
    free = free_bytes(folder)
    note = f"checkpoints take up to {size_text(needed)}; {size_text(free)} are free in {folder}"
    if needed > free:
        raise UsageError(
            f"{note}: make room, or set run.folder, checkpoint.keep=1 or checkpoint.best=false"
        )
    return note
