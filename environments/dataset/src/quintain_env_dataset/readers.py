"""Records of a file or a data set: a mapping from column to value each, with its place for
messages.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from quintain.data import DATA_SUFFIXES, ROWS, DataFaults, json_object, text_lines
from quintain.errors import UsageError

_log = logging.getLogger("quintain.env.dataset")

SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("dev", "valid", "validation", "val", "eval", "evaluation"), "dev"),
    **dict.fromkeys(("test", "testing"), "test"),
}
"""Names of splits in data sets, and what they are called here."""

BATCH = 4096
"""Rows of Parquet that are read at once."""


class Record(NamedTuple):
    """One row. *where* names file and line, *split* is given by the name of its file or its data
    set, and *folder* has the file.
    """

    where: str
    values: Mapping[str, Any]
    split: str = ""
    folder: Path | None = None


def records(path: str, subset: str, faults: DataFaults) -> Iterator[Record]:
    """Yield the rows of the file, folder or data set *path* that can be read; a line per other row
    goes to *faults*.

    Raises:
        UsageError: there is no such thing, or nothing of it can be read.
    """
    place = Path(path).expanduser()
    if place.is_file():
        for record in _of_file(place, faults):
            yield record._replace(folder=place.parent)
        return
    if place.is_dir():
        for file, split in _files(place).items():
            for record in _of_file(file, faults):
                yield record._replace(split=split, folder=file.parent)
        return
    if path.count("/") != 1 or place.suffix in DATA_SUFFIXES or path.startswith((".", "~")):
        raise UsageError(f"dataset: there is no file or folder {path!r}")
    yield from _of_hub(path, subset)


def passed_over(path: str) -> str:
    """Return a remark on the files of the folder *path* that look like data and are not read; empty
    without any.
    """
    place = _with_files(Path(path).expanduser())
    if not place.is_dir():
        return ""
    read = _files(place)
    others = [
        p.name
        for p in sorted(place.iterdir())
        if p.is_file() and p not in read and (_kind(p) in DATA_SUFFIXES or _first_word(p) in SPLITS)
    ]
    return f"; passed over, since no split has that name: {', '.join(others)}" if others else ""


def _files(place: Path) -> dict[Path, str]:
    """Return the files of a folder that are read, each with its split.

    Raises:
        UsageError: there is none, a shard of a split is missing, one split is stored twice, or a
            split has no file but one of a similar name, from which it would be cut off in silence.
    """
    place = _with_files(place)
    files: dict[Path, str] = {}
    stored: dict[str, tuple[str, Path]] = {}
    shards: dict[str, tuple[int, int]] = {}
    similar: dict[str, Path] = {}
    for file in sorted(p for p in place.iterdir() if p.is_file()):
        name = _NAME.fullmatch(_stem(file))
        word = name["split"].lower() if name else ""
        if word not in SPLITS or _kind(file) not in DATA_SUFFIXES:
            similar.setdefault(SPLITS.get(_first_word(file), ""), file)
            continue
        files[file] = SPLITS[word]
        suffix, other = stored.setdefault(word, (_kind(file), file))
        if suffix != _kind(file) or (name and not name["of"] and other != file):
            raise UsageError(
                f"dataset: {other.name} and {file.name} in {place} are both {word}; remove one, or "
                "give the other rows another name"
            )
        if name and name["of"]:
            found, of = shards.get(word, (0, int(name["of"])))
            shards[word] = (found + 1, of)
    for word, (found, of) in shards.items():
        if found != of:
            raise UsageError(f"dataset: {place} has {found} of the {of} files of {word}")
    for split, file in similar.items():
        if split and split not in files.values() and files:
            raise UsageError(
                f"dataset: {file.name} in {place} is not read, and {split} would be cut from the "
                f"other files; name it {split}.jsonl (or {', '.join(DATA_SUFFIXES[1:])}), or move it"
            )
    if not files:
        raise UsageError(
            f"dataset: {place} has no file such as train.jsonl, dev.csv or test.parquet"
        )
    return files


def _with_files(place: Path) -> Path:
    """Return the folder ``data`` of *place* where data sets of the hub have their files, else
    *place*.
    """
    inner = place / "data"
    if inner.is_dir() and not any(_first_word(p) in SPLITS for p in place.iterdir() if p.is_file()):
        return inner
    return place


_NAME = re.compile(r"(?P<split>[A-Za-z]+)(?:-\d+-of-(?P<of>\d+)(?:-[0-9a-f]+)?)?")
"""Name of the file of a split, or of one of its shards as the hub names them."""


def _kind(file: Path) -> str:
    """Return the end of the name that says how rows are stored; ``.gz`` does not."""
    return Path(file.name.lower().removesuffix(".gz")).suffix


def _stem(file: Path) -> str:
    name = file.name[:-3] if file.name.lower().endswith(".gz") else file.name
    return Path(name).stem


def _first_word(file: Path) -> str:
    return re.split(r"[^A-Za-z]", file.name, maxsplit=1)[0].lower()


def _of_file(file: Path, faults: DataFaults) -> Iterator[Record]:
    suffix = _kind(file)
    if suffix not in DATA_SUFFIXES:
        raise UsageError(
            f"dataset: {file} ends in {suffix or 'no suffix'}; expected {', '.join(DATA_SUFFIXES)}, "
            "each of the texts also with .gz"
        )
    if suffix == ".parquet":
        yield from _of_parquet(file)
        return
    if suffix in (".jsonl", ".ndjson"):
        for where, line in text_lines(file, faults):
            with faults.row(where):
                yield Record(where, json_object(line))
        return
    known = len(faults)
    # Spreadsheets write a byte order mark.
    text = "".join(line for _, line in text_lines(file, faults, blank=True))
    if len(faults) > known:
        return
    if suffix == ".json":
        yield from _of_json(file, text, faults)
    else:
        yield from _of_csv(file, text, "," if suffix == ".csv" else "\t", faults)


_LENIENT = json.JSONDecoder(parse_int=str, parse_float=str)


def _of_json(file: Path, text: str, faults: DataFaults) -> Iterator[Record]:
    try:
        rows = json.loads(text, parse_int=str, parse_float=str)  # for the number of rows
    except json.JSONDecodeError as e:
        faults.append(f"{file}:{e.lineno}, column {e.colno}: not JSON ({e.msg})")
        return
    except RecursionError:
        faults.append(f"{file}: not JSON (nested too deep)")
        return
    if not isinstance(rows, list):
        raise UsageError(
            f"dataset: {file} is a {type(rows).__name__}; expected a list of objects, or JSON lines"
        )
    offset, line = text.index("[") + 1, 1
    counted = 0  # characters whose line ends are in *line*
    for _ in rows:
        offset = next(i for i in range(offset, len(text)) if text[i] not in ", \t\r\n")
        line, counted = line + text.count("\n", counted, offset), offset
        try:
            values, offset = ROWS.raw_decode(text, offset)
        except ValueError as e:
            faults.append(f"{file}:{line}: not JSON ({e})")
            offset = _LENIENT.raw_decode(text, offset)[1]
            continue
        if isinstance(values, dict):
            yield Record(f"{file}:{line}", values)
        else:
            faults.append(
                f"{file}:{line} is a {type(values).__name__}; expected an object, {{...}}"
            )


def _of_csv(file: Path, text: str, delimiter: str, faults: DataFaults) -> Iterator[Record]:
    first = text.lstrip().partition("\n")[0]
    other = next(
        (c for c in (";", "\t", ",") if c != delimiter and c in first and delimiter not in first),
        "",
    )
    header: list[str] = []
    if other:
        _log.warning(
            "dataset %s: its fields are separated by %r, not by %r; read as such",
            file,
            other,
            delimiter,
        )
    for where, fields in _fields(file, text, other or delimiter, faults):
        if header:
            yield Record(where, dict(zip(header, fields, strict=True)))
        header = header or fields


def _fields(
    file: Path, text: str, delimiter: str, faults: DataFaults
) -> Iterator[tuple[str, list[str]]]:
    """Yield place and fields of each row, the header first; the rows with another number of fields
    go to *faults*.
    """
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    header: list[str] = []
    begin = 1
    try:
        for fields in lines:
            where, begin = f"{file}:{begin}", lines.line_num + 1
            if not any(fields):
                continue
            if not header:
                header = fields = [name.strip() for name in fields]
                if len(set(header)) < len(header) or not all(header):
                    faults.append(
                        f"{where}: the columns are {', '.join(header)}; expected different names"
                    )
                    return
            elif len(fields) != len(header):
                faults.append(
                    f"{where} has {len(fields)} fields; expected {len(header)} "
                    f"({', '.join(header)}); a field "
                    'with a comma or a line break needs "quotes"'
                )
                continue
            yield where, fields
    except csv.Error as e:
        faults.append(f"{file}:{lines.line_num}: not CSV ({e})")


def _of_parquet(file: Path) -> Iterator[Record]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as e:
        raise UsageError(
            f"dataset: {file} needs pyarrow: pip install 'quintain-env-dataset[parquet]', or save "
            f"it as JSON lines"
        ) from e
    number = 0
    try:
        for batch in parquet.ParquetFile(file).iter_batches(BATCH):
            for values in batch.to_pylist():
                number += 1
                yield Record(f"{file}, row {number}", _decoded(values))
    except (OSError, ArrowException) as e:
        raise UsageError(f"dataset: cannot read {file}: {str(e).partition(chr(10))[0]}") from e


def _decoded(value: Any) -> Any:
    """Return a value of Parquet with text where it is binary, as older files have it; other bytes
    stay.
    """
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    if isinstance(value, dict):
        return {key: _decoded(item) for key, item in value.items()}
    return [_decoded(item) for item in value] if isinstance(value, list) else value


def _of_hub(name: str, subset: str) -> Iterator[Record]:
    try:
        from datasets import load_dataset
    except ImportError as e:
        raise UsageError(
            f"dataset: there is no file or folder {name!r}, and a data set of the hub needs "
            "`datasets`: pip install 'quintain-env-dataset[hub]'"
        ) from e
    from quintain.models import offline, quiet, unreachable

    reason = unreachable()
    try:
        with offline() if reason else quiet():
            parts = load_dataset(name, subset or None)
    except (OSError, ValueError) as e:
        # a ConnectionError among them; in the cache there is no such subset
        why = reason or str(e).strip().partition("\n")[0]
        raise UsageError(
            f"dataset: {name!r} is no file or folder, and the hub does not give a data set of that "
            f"name ({why}). Fix: check the path, name a subset with --arg subset=NAME, or download "
            "the data set where there is network"
        ) from e
    for part, rows in parts.items():
        if part in SPLITS:
            _keep_bytes(rows.info.features)  # `rows.features` is a copy
            for number, values in enumerate(rows):
                yield Record(f"{name} {part}[{number}]", values, SPLITS[part])


def _keep_bytes(feature: Any) -> None:
    """Switch the decoding of images in *feature* off: `datasets` would open any path in a row."""
    if hasattr(feature, "decode"):
        feature.decode = False
    elif isinstance(feature, Mapping):
        for inner in feature.values():
            _keep_bytes(inner)
    elif isinstance(feature, list):
        _keep_bytes(feature[0])
    elif hasattr(feature, "feature"):
        _keep_bytes(feature.feature)
