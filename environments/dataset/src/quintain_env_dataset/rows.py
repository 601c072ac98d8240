"""Rows on disk: a run holds those in memory that it looks at."""

from __future__ import annotations

import hashlib
import json
import mmap
import shutil
import tempfile
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import IO, Any, Generic, TypeVar, overload

from quintain.store import cache_folder

T = TypeVar("T")
FORMAT = 1
"""Of the files; those of another one are not read."""
PARTS = 64
"""In which keys are sorted."""
_ROWS, _ABOUT = "rows.jsonl", "about.json"


@dataclass
class RowFile:
    """Rows as they are read: JSON on disk, and three numbers of each in memory.

    Attributes:
        starts: where each row begins in the file.
        ids: of the tasks, as numbers.
        prompts: a digest of each prompt.
        parts: the number of the split of each row, in the order of *names*.
    """

    file: IO[bytes]
    starts: array[int] = field(default_factory=lambda: array("Q"))
    ids: array[int] = field(default_factory=lambda: array("Q"))
    prompts: array[int] = field(default_factory=lambda: array("Q"))
    parts: bytearray = field(default_factory=bytearray)
    _size: int = 0

    def __len__(self) -> int:
        return len(self.starts)

    def append(self, where: str, text: str, task: str, prompt: int, part: int) -> None:
        """Write a row, whose values are *text*; *where* is its place in the data, for messages."""
        self.starts.append(self._size)
        self._size += self.file.write(f"[{json.dumps(where)}, {text}]\n".encode())
        self.ids.append(int(task, 16))
        self.prompts.append(prompt)
        self.parts.append(part)

    def read(self, number: int) -> tuple[str, dict[str, Any]]:
        """Return place and values of a row."""
        self.file.seek(self.starts[number])
        where, values = json.loads(self.file.readline())
        self.file.seek(self._size)
        return where, values


def repeated(keys: Sequence[int]) -> Iterator[list[int]]:
    """Yield the numbers of equal *keys*, in their order, where there are several.

    A part of the keys after the other: millions of numbers are large as objects of Python.
    """
    parts = [array("Q") for _ in range(PARTS)]
    for i, key in enumerate(keys):
        parts[key % PARTS].append(i)
    for part in parts:
        order = sorted(part, key=keys.__getitem__)
        for _, group in groupby(order, key=keys.__getitem__):
            numbers = list(group)
            if len(numbers) > 1:
                yield numbers


class RowsOnDisk(Sequence[T], Generic[T]):
    """The tasks of one split, each made of its row when it is asked for.

    Args:
        data: the file of a `RowFile`.
        places: start and id of each row.
        made: makes a task of the values of a row and its id.
    """

    def __init__(
        self, data: mmap.mmap, places: memoryview, made: Callable[[dict[str, Any], str], T]
    ) -> None:
        self._data, self._places, self._made = data, places, made

    def __len__(self) -> int:
        return len(self._places) // 2

    @overload
    def __getitem__(self, at: int) -> T: ...
    @overload
    def __getitem__(self, at: slice) -> list[T]: ...
    def __getitem__(self, at: int | slice) -> T | list[T]:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        if not -len(self) <= at < len(self):
            raise IndexError(f"row {at} of {len(self)}")
        start, number = self._places[2 * (at % len(self)) :][:2]
        _, values = json.loads(self._data[start : self._data.find(b"\n", start)])
        return self._made(values, f"{number:016x}")

    def __repr__(self) -> str:
        return f"<{len(self)} rows>"


class Changed(Sequence[T], Generic[T]):
    """Other *tasks*, each changed by *change* when it is asked for."""

    def __init__(self, tasks: Sequence[T], change: Callable[[T], T]) -> None:
        self._tasks, self._change = tasks, change

    def __len__(self) -> int:
        return len(self._tasks)

    @overload
    def __getitem__(self, at: int) -> T: ...
    @overload
    def __getitem__(self, at: slice) -> list[T]: ...
    def __getitem__(self, at: int | slice) -> T | list[T]:
        if isinstance(at, slice):
            return [self._change(task) for task in self._tasks[at]]
        return self._change(self._tasks[at])


@dataclass(frozen=True, kw_only=True)
class StoredRows:
    """The rows of a data set in a folder, by split.

    Attributes:
        about: what was stored beside them.
    """

    about: Mapping[str, Any]
    places: Mapping[str, memoryview]
    data: mmap.mmap

    def rows(self, split: str, made: Callable[[dict[str, Any], str], T]) -> RowsOnDisk[T]:
        """Return the tasks of a split."""
        return RowsOnDisk(self.data, self.places[split], made)


def folder_for(*parts: object) -> Path:
    """Return the folder of what *parts* identify, in ``$QUINTAIN_CACHE``, else
    ``~/.cache/quintain``.
    """
    key = hashlib.sha256(json.dumps([FORMAT, *map(str, parts)]).encode()).hexdigest()
    return cache_folder() / "rows" / key[:32]


@contextmanager
def new_rows(folder: Path | None) -> Iterator[RowFile]:
    """Open a file for rows beside *folder*, or in a folder for temporary files; what `store` has
    not moved is deleted.
    """
    beside = None
    if folder is not None:
        with suppress(OSError):  # a home that cannot be written to
            folder.parent.mkdir(parents=True, exist_ok=True)
            beside = folder.parent
    where = Path(tempfile.mkdtemp(prefix=".new-", dir=beside))
    try:
        with (where / _ROWS).open("w+b") as file:
            yield RowFile(file)
    finally:
        shutil.rmtree(where, ignore_errors=True)


def store(
    rows: RowFile,
    splits: Mapping[str, Sequence[int]],
    about: Mapping[str, Any],
    folder: Path | None,
) -> StoredRows:
    """Write the numbers of the rows of each split, and keep all in *folder* for the next run.

    Without a folder the files are gone when the last user of the rows ends.
    """
    rows.file.flush()
    where = Path(rows.file.name).parent
    for name, numbers in splits.items():
        places = array("Q", (x for i in numbers for x in (rows.starts[i], rows.ids[i])))
        (where / f"{name}.places").write_bytes(places.tobytes())
    (where / _ABOUT).write_text(json.dumps({"splits": [*splits], "about": about}))
    stored = _opened(where)
    if folder is not None and where.parent == folder.parent:
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # another process was first
            where.rename(folder)
    return stored


def stored_in(folder: Path) -> StoredRows | None:
    """Return what `store` left in *folder*; ``None`` if there is nothing that can be read."""
    try:
        return _opened(folder)
    except (OSError, ValueError, KeyError):
        return None


def _opened(folder: Path) -> StoredRows:
    content = json.loads((folder / _ABOUT).read_text())
    places = {name: _mapped(folder / f"{name}.places") for name in content["splits"]}
    return StoredRows(
        about=content["about"],
        places={name: memoryview(data).cast("Q") for name, data in places.items()},
        data=_mapped(folder / _ROWS),
    )


def _mapped(file: Path) -> Any:
    """Return the content of *file*, mapped into memory; an empty one cannot be."""
    with file.open("rb") as opened:
        if not file.stat().st_size:
            return b""
        return mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
