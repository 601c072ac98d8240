"""The libraries of rubrics of this process, for the hooks of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .library import RubricLibrary

RUNNING: list[RubricLibrary] = []
"""Those that are started and not stopped."""
