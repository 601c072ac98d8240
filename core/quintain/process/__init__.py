"""The process around a run: signals, threads, its peers on other machines, and a watchdog for code
that never returns.

The names below are what plugins may import from here; each module is imported when one of its names
is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import lazy_names

if TYPE_CHECKING:
    from .interrupts import run_stoppable as run_stoppable
    from .interrupts import stop_on_signal as stop_on_signal
    from .pauses import PausingLoop as PausingLoop
    from .peers import introduced as introduced
    from .peers import keep_alive as keep_alive
    from .peers import limit_waits as limit_waits
    from .peers import welcomed as welcomed
    from .watchdog import Watchdog as Watchdog

__getattr__, __dir__ = lazy_names(__name__)
