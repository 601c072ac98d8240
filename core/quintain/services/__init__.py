"""The services of a run: who fills a slot, started and stopped in order.

The names below are what plugins may import from here; each module is imported when one of its names
is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import lazy_names

if TYPE_CHECKING:
    from .manager import BY_OPTION as BY_OPTION
    from .manager import Choice as Choice
    from .manager import find_service as find_service
    from .manager import needed_by as needed_by
    from .manager import started_services as started_services

__getattr__, __dir__ = lazy_names(__name__)
