"""Corpora: passages of JSON lines, of a folder of text files, or of a data set of the library
`datasets`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from quintain.data import DataFaults, json_object, text_lines
from quintain.errors import UsageError
from quintain.types import encodable

TEXT_FILES = (".txt", ".md", ".rst")
PASSAGE_WORDS = 200
"""The most words of a passage of a text file, which is cut at empty lines where possible."""
NAMES = {
    "id": ("id", "_id", "docid", "doc_id", "passage_id"),
    "title": ("title",),
    "text": ("text", "contents", "context", "passage", "body"),
}
"""Columns that are looked for where none is named, in this order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Passage:
    """What a search finds: a text with a unique id and, where the corpus has them, a title.

    *place* is where the corpus has it, for messages.
    """

    id: str
    text: str
    title: str = ""
    place: str = field(default="", compare=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Columns:
    """The names of the columns of a row; empty ones are looked for among `NAMES`."""

    id: str = ""
    title: str = ""
    text: str = ""


class Corpus(Protocol):
    """A source of passages that can be read several times."""

    def digest(self) -> str:
        """Return a hash of the content and of how it is read: equal digests have equal passages."""

    def passages(self) -> Iterator[Passage]:
        """Yield the passages, one at a time.

        Raises:
            UsageError: a row is unreadable or has no text; the message names its place.
        """


def open_corpus(source: str, columns: Columns | None = None, split: str = "train") -> Corpus:
    """Find the corpus that *source* names.

    Args:
        source: a file of JSON lines (``.jsonl``, also with ``.gz``), a folder with text files, a
            folder that `datasets` can load, or the name of a data set, as ``name`` or
            ``name:configuration``.
        columns: the columns with id, title and text.
        split: the split of a data set.

    Raises:
        UsageError: there is no such corpus.
    """
    columns, path = columns or Columns(), Path(source)
    if path.is_file():
        return JsonLines(path, columns)
    if path.is_dir():
        files = tuple(
            sorted(p for p in path.rglob("*") if p.suffix in TEXT_FILES and _is_visible(p, path))
        )
        if files and not (path / "dataset_info.json").exists() and not any(path.rglob("*.parquet")):
            return TextFolder(path, files)
        return HFDataset(source, columns, split)
    if (
        path.suffix in (".jsonl", ".gz")
        or source.startswith((".", "/", "~"))
        or source.count("/") > 1
    ):
        raise UsageError(
            f"there is no file or folder {source!r}; a corpus is JSON lines, a folder or a data "
            f"set's name"
        )
    return HFDataset(source, columns, split)


@dataclass(frozen=True)
class JsonLines:
    """One JSON object for each passage. The id is the row's, else the number of the line, from
    1.
    """

    path: Path
    columns: Columns

    def digest(self) -> str:
        return _hash_of(["lines", *astuple(self.columns)], [self.path])

    def passages(self) -> Iterator[Passage]:
        expected = "an object with the keys id, title and text"
        with DataFaults(self.path) as faults:
            for where, line in text_lines(self.path, faults):
                number = where.rpartition(":")[2]
                with faults.row(where):
                    yield _passage(json_object(line, expected), self.columns, number, where)


@dataclass(frozen=True)
class TextFolder:
    """Text files, cut into passages at empty lines. The id is ``file#number``, from 1, the title
    the file's name.
    """

    folder: Path
    files: tuple[Path, ...]

    def digest(self) -> str:
        return _hash_of(
            ["text", str(PASSAGE_WORDS), *(str(f.relative_to(self.folder)) for f in self.files)],
            self.files,
        )

    def passages(self) -> Iterator[Passage]:
        for file in self.files:
            name = file.relative_to(self.folder).as_posix()
            try:
                with file.open(encoding="utf-8") as lines:
                    for number, text in enumerate(_pieces(lines), 1):
                        yield Passage(id=f"{name}#{number}", title=file.stem, text=text)
            except (OSError, UnicodeDecodeError) as e:
                raise UsageError(
                    f"{file} cannot be read as UTF-8 text: {e}; convert it or take it away"
                ) from e


@dataclass(frozen=True)
class HFDataset:
    """A data set of the hub (or of its local cache, when offline), or a folder that
    ``save_to_disk`` wrote.
    """

    source: str
    columns: Columns
    split: str

    def digest(self) -> str:
        return _hash_of(["dataset", self._rows()._fingerprint, *astuple(self.columns)], ())

    def passages(self) -> Iterator[Passage]:
        for number, row in enumerate(self._rows()):
            place = f"{self.source}, row {number}"
            try:
                yield _passage(row, self.columns, str(number), place)
            except UsageError as e:
                raise UsageError(f"{place}: {e}") from e

    def _rows(self) -> Any:
        try:
            import datasets

            from quintain.models import offline, quiet, unreachable
        except ImportError as e:
            raise UsageError(
                f"{self.source!r} is no file and no folder of text; data sets need: pip install "
                "'quintain-tools[datasets]'"
            ) from e
        name, _, configuration = self.source.partition(":")
        try:
            if (Path(self.source) / "dataset_info.json").exists() or (
                Path(self.source) / "dataset_dict.json"
            ).exists():
                rows = datasets.load_from_disk(self.source)
                return rows[self.split] if isinstance(rows, dict) else rows
            with offline() if unreachable() else quiet():
                return datasets.load_dataset(name, configuration or None, split=self.split)
        except Exception as e:  # the library raises a dozen classes for one fault
            reason = next(iter(str(e).splitlines()), "") or type(e).__name__
            raise UsageError(
                f"{self.source!r} is no data set with a split {self.split!r}: {reason}"
            ) from e


def _is_visible(path: Path, folder: Path) -> bool:
    return path.is_file() and not any(
        part.startswith(".") for part in path.relative_to(folder).parts
    )


def _hash_of(settings: Iterable[str], files: Iterable[Path]) -> str:
    h = hashlib.blake2b(digest_size=16)
    h.update(json.dumps(list(settings)).encode())
    for file in files:
        h.update(f"\0{file.stat().st_size}\0".encode())
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                h.update(block)
    return h.hexdigest()


def _passage(row: Mapping[str, Any], columns: Columns, number: str, place: str) -> Passage:
    def value(kind: str, default: str) -> str:
        named = getattr(columns, kind)
        name = named or next((n for n in NAMES[kind] if n in row), None)
        if name is None or name not in row:
            if named or kind == "text":
                raise UsageError(
                    f"no column {named or ' or '.join(NAMES[kind])!r} for the {kind}, "
                    f"but {', '.join(map(str, row)) or 'none'}; name it with --{kind}-column"
                )
            return default
        content = row[name]
        if not isinstance(content, (str, int)) or (kind == "text" and not isinstance(content, str)):
            raise UsageError(f"{name!r} is {type(content).__name__}; expected a string")
        return encodable(str(content))

    return Passage(
        id=" ".join(value("id", number).split()),
        title=" ".join(value("title", "").split()),
        text=value("text", "").strip(),
        place=place,
    )


def _pieces(lines: Iterable[str]) -> Iterator[str]:
    paragraphs: list[str] = []
    size = 0
    for words in _paragraphs(lines):
        if paragraphs and size + len(words) > PASSAGE_WORDS:
            yield "\n\n".join(paragraphs)
            paragraphs, size = [], 0
        paragraphs.append(" ".join(words))
        size += len(words)
    if paragraphs:
        yield "\n\n".join(paragraphs)


def _paragraphs(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield the words of each paragraph, in parts of at most `PASSAGE_WORDS`."""
    words: list[str] = []
    for line in lines:
        new = line.split()
        if not new and words:
            yield words
            words = []
        words += new
        while len(words) >= PASSAGE_WORDS:
            yield words[:PASSAGE_WORDS]
            words = words[PASSAGE_WORDS:]
    if words:
        yield words
