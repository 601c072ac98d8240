"""The process around a run: signals, threads, its peers on other machines, and a watchdog for code
that never returns.

The names below are what plugins may import from here; each module is imported when one of its names
is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import lazy_names

if TYPE_CHECKING:
    from .folders import pack_folder as pack_folder
    from .folders import unpack_folder as unpack_folder
    from .interrupts import run_stoppable as run_stoppable
    from .interrupts import stop_on_signal as stop_on_signal
    from .keeper import SERVER_FOLDER as SERVER_FOLDER
    from .keeper import SERVER_TOKEN as SERVER_TOKEN
    from .peers import introduced as introduced
    from .peers import limit_waits as limit_waits
    from .peers import welcomed as welcomed
    from .placed_server import PlacedServer as PlacedServer
    from .watchdog import Watchdog as Watchdog

__getattr__, __dir__ = lazy_names(__name__)
