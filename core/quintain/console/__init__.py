"""What a person reads while a run goes on: the screen, and the metrics behind it.

The names below are what plugins may import from here; each module is imported when one of its names
is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import lazy_names

if TYPE_CHECKING:
    from .metrics import TRAINING as TRAINING
    from .metrics import alert_intervals as alert_intervals
    from .metrics import distinct_names as distinct_names
    from .metrics import failures_in as failures_in
    from .metrics import success_of as success_of
    from .metrics import time_metrics as time_metrics
    from .screen import Screen as Screen
    from .screen import clock_text as clock_text
    from .screen import for_terminal as for_terminal
    from .screen import printable as printable
    from .screen import program_name as program_name

__getattr__, __dir__ = lazy_names(__name__)
