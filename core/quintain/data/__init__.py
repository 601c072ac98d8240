"""What comes from outside: files of rows that users write, with all their faults in one error, and
what engines answer.

The names below are what plugins may import from here; each module is imported when one of its names
is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import lazy_names

if TYPE_CHECKING:
    from .answers import checked_ids as checked_ids
    from .answers import checked_logps as checked_logps
    from .answers import checked_turn as checked_turn
    from .data_file import DATA_SUFFIXES as DATA_SUFFIXES
    from .data_file import ROWS as ROWS
    from .data_file import DataFaults as DataFaults
    from .data_file import json_object as json_object
    from .data_file import text_lines as text_lines
    from .json_text import read_json as read_json

__getattr__, __dir__ = lazy_names(__name__)
