"""The program ``quintain-search-server``, which says what to install where the extra `search` is
not there.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Serve a corpus over MCP, or search it from the shell."""
    try:
        from .search.command import main as program
    except ModuleNotFoundError as e:
        sys.exit(
            f"error: quintain-search-server needs {e.name}: pip install 'quintain-tools[search]'"
        )
    program()
