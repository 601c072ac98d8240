"""Corpora and running search servers for the tests of quintain-mcp."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

SEARCH_SERVER = [sys.executable, "-m", "quintain_mcp"]
ROWS = [
    {"id": "curie", "title": "Marie Curie", "text": "She discovered radium and polonium in Paris."},
    {"id": "rome", "title": "Rome", "text": "Rome is the capital of Italy. " + "Many roads lead there. " * 200},
    {"id": "who", "title": "The Who", "text": "An English rock band, formed in London."},
]


def write_rows(path: Path, rows: Sequence[object] = ROWS) -> Path:
    """A file of JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@contextlib.contextmanager
def served(corpus: Path, cache: Path) -> Iterator[str]:
    """The URL of a search server over streamable HTTP, in a process of its own."""
    argv = [*SEARCH_SERVER, str(corpus), "--cache", str(cache), "--http", "0"]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            lines = iter(server.stderr.readline, "")
            found = next(m for line in lines if (m := re.search(r"passages at (http://\S+)", line)))
            yield found[1]
        finally:
            server.terminate()
            server.wait(20)
