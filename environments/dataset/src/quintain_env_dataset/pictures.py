"""The pictures of a row, which become references in its prompt (`quintain_vision`)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from quintain import Message
from quintain.errors import UsageError
from quintain.models import PICTURE

from .readers import Record

PLACE = "<image>"
"""Where a picture stands in a prompt, as in data for TRL and LLaVA."""
_ONE = re.compile(f"{PICTURE}[^{PICTURE}]*{PICTURE}")


def with_pictures(record: Record, column: str) -> Record:
    """Return *record* with references in *column*, whose files, bytes or ``data:`` URLs are stored.

    Raises:
        UsageError: there is none, or one is refused; or ``quintain-vision`` is missing.
    """
    try:
        from quintain_vision import PictureError, picture
    except ModuleNotFoundError as e:
        raise UsageError(
            "dataset: image needs quintain-vision: pip install 'quintain-env-dataset[pictures]'"
        ) from e
    where = f"dataset: {record.where}, column {column!r}"
    given = record.values.get(column)
    several = given if isinstance(given, (list, tuple)) else [given]
    if not several or any(one is None or one == "" for one in several):
        raise UsageError(f"{where} has no picture; leave the row out, or name another column")
    try:
        text = "".join(picture(_source(one, record.folder)) for one in several)
    except PictureError as e:
        raise UsageError(f"{where}: {e}") from e
    return record._replace(values={**record.values, column: text})


def _source(value: Any, folder: Path | None) -> Any:
    """Return what `quintain_vision.picture` takes for a value of a table: a path is within its
    *folder*, without which there are none.
    """
    from quintain_vision import of_row

    if isinstance(value, Mapping):  # the form of `datasets` in Parquet
        value = value.get("bytes") or value.get("path")
    if not isinstance(value, str):
        return value
    if value.startswith("RIFF"):  # a WebP of Parquet whose bytes are UTF-8 by chance
        return value.encode()
    return of_row(value, folder)


def placed(messages: Sequence[Message], pictures: str, where: str) -> list[Message]:
    """Return *messages* with *pictures*, references one behind the other: at each ``<image>`` of the
    user, else before the first message of the user.

    Raises:
        UsageError: more or fewer ``<image>`` than pictures.
    """
    found = _ONE.findall(pictures)
    marks = sum(m.content.count(PLACE) for m in messages if m.role == "user")
    if marks not in (0, len(found)):
        raise UsageError(f"{where} has {marks} times {PLACE} for {len(found)} pictures")
    left = iter(found)
    return [*_placed(messages, left, first=not marks)]


def _placed(messages: Sequence[Message], left: Iterator[str], *, first: bool) -> Iterator[Message]:
    for message in messages:
        content = message.content
        if message.role == "user" and first:
            content, first = f"{''.join(left)}\n{content}", False
        elif message.role == "user":
            head, *others = content.split(PLACE)
            content = head + "".join(next(left) + other for other in others)
        yield Message(message.role, content)
