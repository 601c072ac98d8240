"""The judges of this process, for the hooks of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .service import JudgeService

RUNNING: list[JudgeService] = []
"""Those that are started and not stopped."""
