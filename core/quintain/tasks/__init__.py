"""The tasks of a run: shuffled splits of environments, mixed by weight.

The names below are what plugins may import from here; each module is imported when one of its names
is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import lazy_names

if TYPE_CHECKING:
    from .mixture import Mixture as Mixture
    from .mixture import WeightedTurns as WeightedTurns
    from .mixture import stream_seed as stream_seed
    from .mixture import tasks_changed as tasks_changed
    from .stream import WINDOW as WINDOW
    from .stream import Shuffled as Shuffled
    from .stream import SplitReader as SplitReader
    from .stream import TaskStream as TaskStream
    from .visits import Visits as Visits

__getattr__, __dir__ = lazy_names(__name__)
