"""Files of data that a user wrote: their kinds, their lines, and all their faults at once."""

from __future__ import annotations

import gzip
import json
import math
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from pydantic import ValidationError

from ..errors import UsageError

DATA_SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")
"""The ends of names of files with rows of data."""
SHOWN = 10
"""Faults that an error names."""


class DataFaults(list[str]):
    """The faults of data: at the end of a ``with`` block one error names the first ten, in the order
    of files and lines, and says how many there are.

    Args:
        source: file, folder or data set, for the message.
        reader: the component that reads it, with which the message begins.
    """

    def __init__(self, source: Path | str, reader: str = "") -> None:
        super().__init__()
        self.source, self._head = source, f"{reader}: " if reader else ""

    def __enter__(self) -> DataFaults:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: object, trace: TracebackType | None
    ) -> None:
        if kind is None and self:
            self.sort(key=_place)
            first = f"{len(self)} faults"
            if len(self) > SHOWN:
                first += f" in {self.source}; the first {SHOWN}"
            text = self[0] if len(self) == 1 else "\n  ".join([f"{first}:", *self[:SHOWN]])
            raise UsageError(self._head + text)

    @contextmanager
    def row(self, where: str) -> Iterator[None]:
        """Add a `UsageError` or a pydantic ``ValidationError`` of the block, about the row at
        *where*, to the faults.
        """
        try:
            yield
        except (UsageError, ValidationError) as e:
            text = str(e).removeprefix(self._head)
            if isinstance(e, ValidationError):
                error = e.errors(include_url=False)[0]
                # models of several forms have class names among the keys
                keys = (str(k) for k in error["loc"] if isinstance(k, int) or k.islower())
                message = error["msg"].removeprefix("Value error, ")
                text = ": ".join(filter(None, (".".join(keys), message)))
            self.append(text if where in text else f"{where}: {text}")

    def repeated(self, first: dict[str, str], key: str, where: str) -> None:
        """Note in *first* that the row at *where* has the id *key*; a fault if another row has."""
        if (other := first.setdefault(key, where)) != where:
            self.append(f"{where}: the id {key!r} is that of {other}, too; ids must be unique")


def text_lines(file: Path, faults: DataFaults, *, blank: bool = False) -> Iterator[tuple[str, str]]:
    """Yield the lines of *file* that are UTF-8, each with its place, ``file:number``; a byte order
    mark is left out, ``.gz`` is unpacked.

    Args:
        faults: gets the other lines.
        blank: yield lines without text, too.

    Raises:
        UsageError: the file cannot be read.
    """
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                where = f"{file}:{number}"
                if number == 1 and (line[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in line[:2]):
                    faults.append(f"{file}: UTF-16; save it as UTF-8 (iconv -f UTF-16 -t UTF-8)")
                    return
                try:
                    text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as e:
                    byte = f"column {e.start + 1}: byte 0x{line[e.start]:02x} is not UTF-8"
                    fix = "save the file as UTF-8 (iconv -f LATIN1 -t UTF-8)"
                    faults.append(f"{where}, {byte}; {fix}")
                    continue
                if blank or text.strip():
                    yield where, text
    except (OSError, EOFError, zlib.error) as e:
        reason = (e.strerror if isinstance(e, OSError) else None) or e
        raise UsageError(f"cannot read {str(file)!r}: {reason}") from e


def json_object(line: str, expected: str = "an object, {...}") -> dict[str, Any]:
    """Return the JSON object of a line.

    Args:
        expected: what a line is to be, for the message.

    Raises:
        UsageError: it is not JSON, has a key twice or a number that no float holds, or is of
            another kind.
    """
    try:
        row = ROWS.decode(line.rstrip("\n"))  # else a fault at its end is in column 1 of the next
    except (ValueError, RecursionError) as e:
        column = f" at column {e.colno}" if isinstance(e, json.JSONDecodeError) else ""
        reason = "nested too deep" if isinstance(e, RecursionError) else getattr(e, "msg", e)
        raise UsageError(f"not JSON{column} ({reason}); expected {expected}") from e
    if not isinstance(row, dict):
        raise UsageError(f"a {type(row).__name__}; expected {expected}")
    return row


def _row(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        ((key, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key {key!r} occurs twice")
    return row


def _number(text: str) -> float:
    if (value := float(text)) in (math.inf, -math.inf):
        raise ValueError(f"{text[:40]} is above all numbers that a computer's float holds")
    return value


ROWS = json.JSONDecoder(object_pairs_hook=_row, parse_float=_number)
"""Reads the JSON of rows; a key that occurs twice and a number beyond all floats are a ``ValueError``."""


def _place(fault: str) -> tuple[str, int]:
    """Return file and line of a fault, for sorting; those without a line come first."""
    found = re.match(r"(.+?):(\d+)\b", fault)
    return (found[1], int(found[2])) if found else ("", 0)
