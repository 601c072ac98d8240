"""A run: the loop, what takes part in it, and how it is put together.

The names below are what plugins may import from here; each module is imported when one of its names
is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import lazy_names

if TYPE_CHECKING:
    from .build import collector_for as collector_for
    from .build import run_training as run_training
    from .build import seed_everything as seed_everything
    from .collect import Collected as Collected
    from .collect import Collector as Collector
    from .collect import check_failures as check_failures
    from .hooks import Hooks as Hooks
    from .hooks import hookimpl as hookimpl
    from .replays import Replay as Replay
    from .run import Run as Run

__getattr__, __dir__ = lazy_names(__name__)
