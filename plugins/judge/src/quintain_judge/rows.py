"""Files of JSON lines: those that people write, read into a model of pydantic, and those of a run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from quintain.errors import UsageError

Row = TypeVar("Row", bound=BaseModel)


def read_rows(path: Path | str, kind: type[Row], missing: str) -> Iterator[tuple[str, str, Row]]:
    """Each row of the file *path*: its place for messages, its line, and the *kind* that it holds.
    Skips blank lines.

    Raises:
        UsageError: no file, in the words of *missing*; or a line that is no row, with its number
            and key.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise UsageError(missing)
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            yield where, line, kind.model_validate(json.loads(line))
        except ValidationError as e:
            first = e.errors(include_url=False)[0]
            place = ".".join(map(str, first["loc"]))
            raise UsageError(f"{where}: {place + ': ' if place else ''}{first['msg']}") from e
        except ValueError as e:
            raise UsageError(f"{where}: no JSON ({e})") from e


def drop_later(path: Path, step: int) -> None:
    """Drop the lines of a run's file that come after *step*: a resume repeats those steps."""
    if path.is_file():
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        path.write_text(
            "".join(line for line in lines if json.loads(line)["step"] <= step), encoding="utf-8"
        )
