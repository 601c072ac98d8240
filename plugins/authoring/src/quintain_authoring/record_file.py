"""Files of audits: a line of JSON for each task."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from quintain.errors import UsageError
from quintain.store import drop_partial_line


class OfTask(Protocol):
    """A dataclass with the id of a task."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    task: str


R = TypeVar("R", bound=OfTask)


class RecordFile(Generic[R]):
    """A file of records, to which an audit adds; the last record of a task counts.

    Args:
        kind: the class of the records.
        command: that writes them, for messages.
    """

    def __init__(self, path: Path, kind: type[R], command: str) -> None:
        self.path, self._kind, self._command = path, kind, command

    def read(self) -> dict[str, R]:
        """Return the last record of each task; none if there is no file.

        Raises:
            UsageError: it cannot be read, or a line is no record.
        """
        return self._records(self._text())

    def _text(self) -> str:
        if not self.path.exists():
            return ""
        try:
            return self.path.read_text(encoding="utf-8")
        except (OSError, ValueError) as e:
            raise UsageError(f"{self.path} cannot be read: {e}") from e

    def _records(self, text: str) -> dict[str, R]:
        found: dict[str, R] = {}
        # `splitlines` would end a line within a text, at U+2028 for one.
        for number, line in enumerate(text.split("\n"), 1):
            if not line.strip():
                continue
            try:
                record = self._kind(**json.loads(line))
            except (ValueError, TypeError) as e:
                raise UsageError(
                    f"{self.path}:{number} is no record of `{self._command}`: {e}"
                ) from e
            found[record.task] = record
        return found

    def go_on(self) -> dict[str, R]:
        """Read what is there, and cut off what a process that was ended left of a last line.

        Raises:
            UsageError: there is no folder for the file, or it has something else than records.
                Then it stays as it is.
        """
        if not self.path.absolute().parent.is_dir():
            raise UsageError(f"there is no folder {self.path.absolute().parent}")
        whole, newline, rest = self._text().rpartition("\n")
        records = self._records(whole + newline)
        begin = json.dumps({fields(self._kind)[0].name: ""})[:-2]
        if rest and not records and not (rest.startswith(begin) or begin.startswith(rest)):
            raise UsageError(
                f"{self.path} is no file of `{self._command}`: name another one, or remove it"
            )
        drop_partial_line(self.path)
        return records

    def append(self, record: R) -> None:
        """Add a record."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(record), ensure_ascii=False) + "\n")
