"""What judges answered, on disk: a cache that outlives runs, the spending of each run, and
recordings for tests.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from quintain.errors import StorageError, UsageError
from quintain.store import cache_folder

FLUSH_SECONDS = 0.1
MOST_PENDING = 64
"""Answers that a process killed at once loses, at most."""
_TABLES = """
CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, text TEXT NOT NULL, prompt_tokens INT, new_tokens INT);
CREATE TABLE IF NOT EXISTS spending (ledger TEXT PRIMARY KEY, calls INT, tokens INT, money REAL);
"""


@dataclass(frozen=True, kw_only=True)
class JudgeAnswer:
    """The text of a judge's answer and its tokens."""

    text: str
    prompt_tokens: int = 0
    new_tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class Spending:
    """Requests sent, tokens in both directions, and money."""

    calls: int = 0
    tokens: int = 0
    money: float = 0.0


def default_path() -> Path:
    """Return ``$QUINTAIN_CACHE/judge.sqlite``, else ``~/.cache/quintain/judge.sqlite``."""
    return cache_folder() / "judge.sqlite"


class AnswerCache:
    """Answers by key, and spending by ledger, in a SQLite file that several processes may use at
    once.

    Args:
        path: ``None`` keeps them in memory.

    Raises:
        StorageError: the file cannot be opened; the message names the fix.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._pending: dict[str, JudgeAnswer] = {}
        self._spent: dict[str, Spending] = {}
        self._timer: asyncio.TimerHandle | None = None
        try:
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
            with ExitStack() as stack:
                self._db = sqlite3.connect(path or ":memory:", timeout=30.0, isolation_level=None)
                stack.callback(self._db.close)
                # Without a sync per answer: a crash of the machine loses the last answers, not the
                # file.
                self._db.executescript(
                    "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;" + _TABLES
                )
                stack.pop_all()
        except (sqlite3.Error, OSError) as e:
            raise StorageError(
                f"the judge's cache {path} cannot be opened ({e}); delete it, name another file "
                f"with the judge's "
                'cache, or set cache = "none"'
            ) from e

    def get(self, key: str) -> JudgeAnswer | None:
        """Return the answer to *key*; ``None`` if there is none."""
        if key in self._pending:
            return self._pending[key]
        row = self._run(
            "SELECT text, prompt_tokens, new_tokens FROM answers WHERE key = ?", key
        ).fetchone()
        return JudgeAnswer(text=row[0], prompt_tokens=row[1], new_tokens=row[2]) if row else None

    def write(
        self, ledger: str, total: Spending, key: str = "", answer: JudgeAnswer | None = None
    ) -> None:
        """Keep *answer* under *key*, unless there is one, and that *ledger* has spent *total*.

        What is written within `FLUSH_SECONDS` is one transaction; `get` finds it at once.
        """
        if key and answer is not None:
            self._pending[key] = answer
        self._spent[ledger] = total
        if len(self._pending) >= MOST_PENDING:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_SECONDS, self.flush)

    def flush(self) -> None:
        """Write what is pending."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not (self._pending or self._spent):
            return
        answers = [(k, a.text, a.prompt_tokens, a.new_tokens) for k, a in self._pending.items()]
        spending = [(ledger, s.calls, s.tokens, s.money) for ledger, s in self._spent.items()]
        self._run("BEGIN IMMEDIATE")
        for row in answers:
            self._run("INSERT OR IGNORE INTO answers VALUES (?, ?, ?, ?)", *row)
        for total in spending:
            self._run("INSERT OR REPLACE INTO spending VALUES (?, ?, ?, ?)", *total)
        self._run("COMMIT")
        self._pending.clear()
        self._spent.clear()

    def forget(self, key: str) -> None:
        """Drop the answer to *key*, such as one that cannot be read."""
        self._pending.pop(key, None)
        self._run("DELETE FROM answers WHERE key = ?", key)

    def spent(self, ledger: str) -> Spending:
        """Return what *ledger* has spent."""
        self.flush()
        row = self._run(
            "SELECT calls, tokens, money FROM spending WHERE ledger = ?", ledger
        ).fetchone()
        return Spending(calls=row[0], tokens=row[1], money=row[2]) if row else Spending()

    def close(self) -> None:
        """Write what is pending and close the file."""
        try:
            self.flush()
        finally:
            self._db.close()

    def _run(self, statement: str, *values: Any) -> sqlite3.Cursor:
        try:
            return self._db.execute(statement, values)
        except sqlite3.Error as e:
            if self._db.in_transaction:
                self._db.rollback()
            raise StorageError(
                f"the judge's cache {self.path} failed ({e}); free the disk or delete the file"
            ) from e


class Recording:
    """A file of answers, one JSON object per line, to write or to answer from.

    Args:
        path: the file.
        write: append new answers; without it the file is only read.

    Raises:
        UsageError: there is no such file to read, or a line of it is no recorded answer.
    """

    def __init__(self, path: Path, *, write: bool) -> None:
        self.path = path
        self._answers: dict[str, JudgeAnswer] = {}
        if not path.is_file() and not write:
            raise UsageError(
                f"there is no recording {path}; make one with the judge's setting record = "
                f"{str(path)!r}"
            )
        for number, line in enumerate(
            path.read_text(encoding="utf-8").splitlines() if path.is_file() else (), 1
        ):
            try:
                row: Mapping[str, Any] = json.loads(line)
                self._answers[row["key"]] = JudgeAnswer(**row["answer"])
            except (ValueError, TypeError, KeyError) as e:
                raise UsageError(
                    f"{path}, line {number}: no recorded answer ({type(e).__name__}: {e})"
                ) from e
        if write:
            path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8") if write else None

    def get(self, key: str) -> JudgeAnswer | None:
        """Return the recorded answer to *key*."""
        return self._answers.get(key)

    def put(self, key: str, answer: JudgeAnswer, about: Mapping[str, Any]) -> None:
        """Append *answer*, with the texts that were judged, for readers."""
        if self._file is not None and key not in self._answers:
            self._answers[key] = answer
            row = {"key": key, "answer": asdict(answer), "about": about}
            self._file.write(json.dumps(row, ensure_ascii=True) + "\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
