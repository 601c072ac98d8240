"""Reads files of rows that users write, and names all their faults in one error."""

from __future__ import annotations

from .data_file import DATA_SUFFIXES, DataFaults, json_object, text_lines
from .json_text import read_json

__all__ = ["DATA_SUFFIXES", "DataFaults", "json_object", "read_json", "text_lines"]
