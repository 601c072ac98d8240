"""The monitors of this process, for the hooks of a run, which import no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .monitor import OverOptimisation

RUNNING: list[OverOptimisation] = []
"""Those that are started and not stopped."""
