"""``python -m quintain_mcp``: `quintain-search-server`."""

from __future__ import annotations

from .search_command import main

main(prog_name="quintain-search-server")
