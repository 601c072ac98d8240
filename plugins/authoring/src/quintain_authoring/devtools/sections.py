"""Sections of ``quintain doctor`` that other distributions bring: what a component finds on this
machine.

A section is an entry point of the group ``quintain_authoring.sections``, named as it is shown: a
function without arguments that returns plain data, so that a distribution with one does not depend
on this one::

    def section() -> dict:
        return {"columns": ["device", "memory"], "rows": [["0", "80 GB"]], "notes": ["device 1: no driver; install it"]}

``rows`` are lists of text, one text per column. ``notes`` are lines below the table and may be left
out, as may the table. Each function runs in an interpreter of its own, so that a crash or a hang is
one row of the report.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from quintain.registry import normalise

from .plugin_checks import Finding

GROUP = "quintain_authoring.sections"
KIND = "section"
CHILD = """
import json, sys
from importlib.metadata import EntryPoint
from pathlib import Path
text = json.dumps(EntryPoint("section", sys.argv[2], "").load()())
new = Path(sys.argv[1] + ".new")
new.write_text(text, encoding="utf-8")
new.rename(sys.argv[1])
"""
"""Calls the function of a section and leaves its result in a file, for a plugin may print to
standard output.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """What a function of the group returned."""

    name: str
    seconds: float
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    notes: Sequence[str] = ()


def sections(
    distributions: Collection[str], *, timeout: float
) -> tuple[list[Section], list[Finding]]:
    """Run the functions of *distributions*, all if empty; their sections, and a finding for each
    that failed.
    """
    made: list[Section] = []
    failed: list[Finding] = []
    for owner, entry_point in sorted(declared(), key=lambda pair: (pair[1].name, pair[0])):
        if distributions and owner not in distributions:
            continue
        began = time.perf_counter()
        try:
            data = _apart(entry_point.value, timeout)
            made.append(_section(entry_point.name, data, time.perf_counter() - began))
        except ValueError as e:
            seconds = round(time.perf_counter() - began, 3)
            name = f"{owner}/{entry_point.name}"
            failed.append(
                Finding(kind=KIND, id=name, seconds=seconds, status="error", message=str(e))
            )
    return made, failed


def declared() -> list[tuple[str, metadata.EntryPoint]]:
    """Return distribution and entry point of each section."""
    return [
        (normalise(d.name), e)
        for d in metadata.distributions()
        for e in d.entry_points
        if e.group == GROUP
    ]


def _apart(target: str, timeout: float) -> Any:
    """Return what the function *target* returns in another interpreter.

    Raises:
        ValueError: it raised, ended or hung.
    """
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "section.json")
        command = [sys.executable, "-c", CHILD, str(result), target]
        try:
            done = subprocess.run(
                command, timeout=timeout, capture_output=True, text=True, check=False
            )
        except subprocess.TimeoutExpired:
            raise ValueError(f"no answer within {timeout:g} s (--timeout)") from None
        if not result.exists():
            error_text = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
            raise ValueError(f"its function {target} ended without a section: {error_text[-300:]}")
        return json.loads(result.read_text(encoding="utf-8"))


def _section(name: str, data: Any, seconds: float) -> Section:
    """Check *data* and make a section of it.

    Raises:
        ValueError: it has another form.
    """
    known = {"columns", "rows", "notes"}
    if not isinstance(data, Mapping) or not data.keys() <= known:
        raise ValueError(
            f"the section is {str(data)[:80]!r}; expected a mapping with some of {sorted(known)}"
        )
    columns, rows, notes = (data.get(key, []) for key in ("columns", "rows", "notes"))
    lines = [columns, notes, *rows] if isinstance(rows, list) else [None]
    texts = all(
        isinstance(line, list) and all(isinstance(text, str) for text in line) for line in lines
    )
    if not texts or any(len(row) != len(columns) for row in rows):
        raise ValueError(
            f"the section has {columns!r} as columns; expected texts, and rows with one text per "
            f"column"
        )
    return Section(name=name, seconds=round(seconds, 3), columns=columns, rows=rows, notes=notes)
