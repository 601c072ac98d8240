"""Corpora and running search servers for the tests of quintain-tools."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

SEARCH_SERVER = [sys.executable, "-m", "quintain_tools.search"]
ROWS = [
    {"id": "curie", "title": "Marie Curie", "text": "She discovered radium and polonium in Paris."},
    {
        "id": "rome",
        "title": "Rome",
        "text": "Rome is the capital of Italy. " + "Many roads lead there. " * 200,
    },
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


TOOL_SERVER = (sys.executable, str(Path(__file__).with_name("tool_server.py")))


@contextlib.contextmanager
def tools_over_http(*options: str, port: int = 0) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The URL of a server of `tool_server` over streamable HTTP, and its process."""
    argv = [*TOOL_SERVER, "honest", "--http", str(port), *options]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            found = next(
                m
                for line in iter(server.stderr.readline, "")
                if (m := re.search(r"http://\S+", line))
            )
            yield found[0], server
        finally:
            server.kill()
            server.wait(20)


def processes_of(marker: str, without: str = "\0\0") -> list[int]:
    """Running processes, zombies left out, whose command line has *marker* and not *without*."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line = (entry / "cmdline").read_bytes().decode("utf-8", "replace")
            if marker in line and without not in line and int(entry.name) != os.getpid():
                found.append(int(entry.name))
    return found


BARE_SERVER = (sys.executable, "-I", "-S", str(Path(__file__).with_name("bare_server.py")))
