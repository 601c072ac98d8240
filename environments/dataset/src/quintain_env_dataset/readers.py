"""Records of a file or a data set: a mapping from column to value each, with its place for messages."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from quintain.errors import UsageError

SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")

SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("dev", "valid", "validation", "val", "eval", "evaluation"), "dev"),
    **dict.fromkeys(("test", "testing"), "test"),
}
"""Names of splits in data sets, and what they are called here."""


class Record(NamedTuple):
    """One row. *where* names file and line, *split* is given by the name of its file or its data set."""

    where: str
    values: Mapping[str, Any]
    split: str = ""


def records(path: str, subset: str) -> list[Record]:
    """The rows of the file, folder or data set *path*.

    Raises:
        UsageError: there is no such thing, or a part of it cannot be read; the message names file and line.
    """
    place = Path(path).expanduser()
    if place.is_file():
        return list(_of_file(place))
    if place.is_dir():
        files = {p: SPLITS[p.stem.lower()] for p in sorted(place.iterdir()) if _is_split(p)}
        if not files:
            raise UsageError(f"dataset: {path} has no file such as train.jsonl, dev.csv or test.parquet")
        return [record._replace(split=split) for file, split in files.items() for record in _of_file(file)]
    if path.count("/") != 1 or place.suffix in SUFFIXES or path.startswith((".", "~")):
        raise UsageError(f"dataset: there is no file or folder {path!r}")
    return list(_of_hub(path, subset))


def _is_split(file: Path) -> bool:
    return file.suffix.lower() in SUFFIXES and file.stem.lower() in SPLITS


def _of_file(file: Path) -> Iterator[Record]:
    suffix = file.suffix.lower()
    if suffix not in SUFFIXES:
        raise UsageError(f"dataset: {file} ends in {suffix or 'no suffix'}; expected {', '.join(SUFFIXES)}")
    if suffix == ".parquet":
        yield from _of_parquet(file)
        return
    try:
        text = file.read_text(encoding="utf-8-sig")  # spreadsheets write a byte order mark
    except (OSError, UnicodeDecodeError) as e:
        raise UsageError(f"dataset: cannot read {file}: {e}; expected UTF-8 text") from e
    if suffix in (".csv", ".tsv"):
        yield from _of_csv(file, text, "," if suffix == ".csv" else "\t")
    elif suffix == ".json":
        yield from _of_json(file, text)
    else:
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                yield _of_object(f"{file}:{number}", line)


def _of_object(where: str, line: str) -> Record:
    try:
        values = json.loads(line)
    except json.JSONDecodeError as e:
        raise UsageError(f"dataset: {where}, column {e.colno}: not JSON ({e.msg})") from e
    if not isinstance(values, dict):
        raise UsageError(f"dataset: {where} is a {type(values).__name__}; expected an object, {{...}}")
    return Record(where, values)


def _of_json(file: Path, text: str) -> Iterator[Record]:
    try:
        rows = json.loads(text)
    except json.JSONDecodeError as e:
        raise UsageError(f"dataset: {file}:{e.lineno}, column {e.colno}: not JSON ({e.msg})") from e
    if not isinstance(rows, list):
        raise UsageError(f"dataset: {file} is a {type(rows).__name__}; expected a list of objects, or JSON lines")
    for number, values in enumerate(rows, 1):
        if not isinstance(values, dict):
            raise UsageError(f"dataset: {file}, item {number} is a {type(values).__name__}; expected an object")
        yield Record(f"{file}, item {number}", values)


def _of_csv(file: Path, text: str, delimiter: str) -> Iterator[Record]:
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    header: list[str] = []
    try:
        for fields in lines:
            where = f"{file}:{lines.line_num}"
            if not any(fields):
                continue
            if not header:
                header = [name.strip() for name in fields]
                if len(set(header)) < len(header) or not all(header):
                    raise UsageError(f"dataset: {where}: the columns are {', '.join(header)}; expected different names")
            elif len(fields) != len(header):
                raise UsageError(
                    f"dataset: {where} has {len(fields)} fields; expected {len(header)} ({', '.join(header)}); a field "
                    'with a comma or a line break needs "quotes"'
                )
            else:
                yield Record(where, dict(zip(header, fields, strict=True)))
    except csv.Error as e:
        raise UsageError(f"dataset: {file}:{lines.line_num}: not CSV ({e})") from e


def _of_parquet(file: Path) -> Iterator[Record]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as e:
        raise UsageError(
            f"dataset: {file} needs pyarrow: pip install 'quintain-env-dataset[parquet]', or save it as JSON lines"
        ) from e
    try:
        rows = parquet.read_table(file).to_pylist()
    except (OSError, ArrowException) as e:
        raise UsageError(f"dataset: cannot read {file}: {str(e).partition(chr(10))[0]}") from e
    for number, values in enumerate(rows, 1):
        yield Record(f"{file}, row {number}", values)


def _of_hub(name: str, subset: str) -> Iterator[Record]:
    try:
        from datasets import load_dataset
    except ImportError as e:
        raise UsageError(
            f"dataset: there is no file or folder {name!r}, and a data set of the hub needs `datasets`: "
            "pip install 'quintain-env-dataset[hub]'"
        ) from e
    from quintain.models import offline, quiet, unreachable

    reason = unreachable()
    try:
        with offline() if reason else quiet():
            parts = load_dataset(name, subset or None)
    except (OSError, ValueError) as e:  # a ConnectionError among them; in the cache there is no such subset
        why = reason or str(e).strip().partition("\n")[0]
        raise UsageError(
            f"dataset: {name!r} is no file or folder, and the hub does not give a data set of that name ({why}). "
            "Fix: check the path, name a subset with --arg subset=NAME, or download the data set where there is network"
        ) from e
    for part, rows in parts.items():
        if part in SPLITS:
            for number, values in enumerate(rows):
                yield Record(f"{name} {part}[{number}]", values, SPLITS[part])
