"""Worker processes for Quintain: the service `workers` for calls that may hang or crash, and the
service `episodes`, which plays the episodes of a run outside of its process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quintain import lazy_names

if TYPE_CHECKING:
    from .episodes import EpisodeProcesses as EpisodeProcesses
    from .pool import WorkerPool as WorkerPool
    from .venvs import python_with as python_with

__getattr__, __dir__ = lazy_names(__name__)
