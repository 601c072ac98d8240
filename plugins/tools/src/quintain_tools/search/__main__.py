"""``python -m quintain_tools.search``: `quintain-search-server`."""

from __future__ import annotations

from .command import main

main(prog_name="quintain-search-server")
