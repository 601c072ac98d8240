"""Files of JSON lines: those that people write, read into a model of pydantic, and those of a run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from quintain.data import DataFaults, json_object, text_lines
from quintain.errors import UsageError

Row = TypeVar("Row", bound=BaseModel)
Item = TypeVar("Item")


def read_rows(
    path: Path | str, kind: type[Row], missing: str, made: Callable[[str, Row], Item]
) -> list[Item]:
    """Read the rows of the file *path*, without blank lines.

    Args:
        kind: of a row.
        made: makes an item of a line and the row that it holds.

    Raises:
        UsageError: no file, in the words of *missing*; or lines that are no rows, or of which *made*
            makes nothing: the first ten faults with line and key.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise UsageError(missing)
    items = []
    with DataFaults(file) as faults:
        for where, line in text_lines(file, faults):
            with faults.row(where):
                items.append(made(line, kind.model_validate(json_object(line))))
    return items


def drop_later(path: Path, step: int) -> None:
    """Drop the lines of a run's file that come after *step*: a resume repeats those steps."""
    if path.is_file():
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        path.write_text(
            "".join(line for line in lines if json.loads(line)["step"] <= step), encoding="utf-8"
        )
