"""Files of audits: a line of JSON for each task."""

from __future__ import annotations

import json
from dataclasses import asdict
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
        if not self.path.exists():
            return {}
        found: dict[str, R] = {}
        try:
            text = self.path.read_text(encoding="utf-8")
        except (OSError, ValueError) as e:
            raise UsageError(f"{self.path} cannot be read: {e}") from e
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
        """Read what is there, after cutting off what a process that was ended left of a line.

        Raises:
            UsageError: there is no folder for the file, or a line is no record.
        """
        if not self.path.absolute().parent.is_dir():
            raise UsageError(f"there is no folder {self.path.absolute().parent}")
        drop_partial_line(self.path)
        return self.read()

    def append(self, record: R) -> None:
        """Add a record."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(record), ensure_ascii=False) + "\n")
