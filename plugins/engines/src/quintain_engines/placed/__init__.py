"""Servers that a cluster starts for a run: where they listen, their files, and their end with the
run.
"""

from __future__ import annotations

from .folders import pack_folder, unpack_folder
from .keeper import SERVER_FOLDER, SERVER_TOKEN
from .server import PlacedServer

__all__ = ["SERVER_FOLDER", "SERVER_TOKEN", "PlacedServer", "pack_folder", "unpack_folder"]
