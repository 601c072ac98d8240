"""What the server has promised, on disk before it is answered: requests, their results, and where
each adapter's weights lie.

One database in SQLite with ``synchronous = FULL`` (sqlite.org/pragma.html): a commit that returned
survives a loss of power. Files of tensors are written whole before the commit that names them.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from quintain.errors import UsageError

__all__ = ["Accepted", "Effect", "Journal"]

Effect = tuple[str, tuple[Any, ...]]
"""A statement of SQL with its parameters."""

REPLAYED = ("forward_backward", "optim_step", "load_weights")
"""Kinds of requests that change an adapter: their bodies are kept until its weights are on disk."""
WEIGHTS = re.compile(
    r"models/[0-9a-f]{32}/[0-9]+\.([0-9]+\.tmp|safetensors)"
    r"|(samplers|checkpoints)/[0-9a-f]{32}\.([0-9]+\.tmp|safetensors)"
    r"|external/[0-9a-f]{32}/adapter_(model|config)\.([0-9]+\.tmp|safetensors|json)"
)
"""Files of weights that a server writes, and those that it has not finished."""
KEPT = 20_000
"""Results of a session that are kept, for a client that asks again."""

SCHEMA = """
CREATE TABLE IF NOT EXISTS session (id TEXT PRIMARY KEY, owner TEXT, created REAL,
    finished TEXT, about TEXT);
CREATE TABLE IF NOT EXISTS model (id TEXT PRIMARY KEY, owner TEXT, session TEXT, spec TEXT,
    about TEXT, snapshot TEXT DEFAULT '', covered INTEGER DEFAULT -1, applied INTEGER DEFAULT -1,
    unloaded INTEGER DEFAULT 0, used REAL);
CREATE TABLE IF NOT EXISTS sampler (id TEXT PRIMARY KEY, owner TEXT, session TEXT, file TEXT,
    path TEXT);
CREATE TABLE IF NOT EXISTS request (number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE,
    owner TEXT, session TEXT, model TEXT, seq INTEGER, kind TEXT, form TEXT, body BLOB,
    done INTEGER DEFAULT 0, result TEXT);
CREATE INDEX IF NOT EXISTS by_model ON request (model, seq);
CREATE INDEX IF NOT EXISTS by_session ON request (session, number);
CREATE TABLE IF NOT EXISTS checkpoint (path TEXT PRIMARY KEY, owner TEXT, model TEXT, name TEXT,
    kind TEXT, created REAL, expires REAL, bytes INTEGER, public INTEGER DEFAULT 0, about TEXT,
    file TEXT);
CREATE TABLE IF NOT EXISTS base (digest TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS found (file TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS reply (key TEXT PRIMARY KEY, body TEXT);
"""


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """A request that was accepted.

    Attributes:
        seq: its place among those of its model; samples have none.
        form: the content type of *body*.
    """

    id: str
    owner: str
    session: str
    model: str
    seq: int
    kind: str
    form: str
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Journal:
    """The database in *folder*, which no other process may use.

    Attributes:
        deaths: of requests without a result, how many servers died while they computed them.
        found: files of weights that were there before the journal, which has just been made; they
            stay at this and at every later start.

    Raises:
        UsageError: another server uses the folder.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._held = (folder / "lock").open("w")
        try:
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            self._held.close()
            raise UsageError(
                f"another server uses {folder}: stop it, or name another folder with --state"
            ) from e
        self._lock = threading.Lock()
        self._db = sqlite3.connect(folder / "journal.sqlite", check_same_thread=False)
        self._db.row_factory = sqlite3.Row
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        (tables,) = self._db.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
        self._db.executescript(f"BEGIN; {SCHEMA}")
        # A folder that was copied without its journal has the only copy of somebody's weights.
        self.found = [] if tables else [*self._weights()]
        self._db.executemany("INSERT INTO found VALUES (?)", [(file,) for file in self.found])
        self._db.commit()
        self.deaths = self._deaths()

    def belong_to(self, base: str) -> None:
        """Let all that is here be of the model whose weights have the digest *base*.

        Raises:
            UsageError: it is of another one, on which its adapters would compute other numbers.
        """
        known = self.one("SELECT digest FROM base")
        if known is not None and known["digest"] != base:
            raise UsageError(
                f"{self.folder} has adapters of another model: start the server with that one, or "
                "name another folder with --state"
            )
        self.commit([("INSERT OR IGNORE INTO base VALUES (?)", (base,))])

    def sweep(self) -> list[str]:
        """Remove the files of weights that nothing here names, and return them: a server was killed
        before the commit that names them, or after the one that forgets them. To be called before
        anything is written.
        """
        # A sampler with a path reads the file of a checkpoint, and keeps none.
        named = {
            row["file"]
            for row in self.all(
                "SELECT snapshot AS file FROM model WHERE unloaded = 0"
                " UNION SELECT file FROM sampler WHERE path IS NULL"
                " UNION SELECT file FROM checkpoint"
                " UNION SELECT file FROM found"
            )
        }
        swept = []
        for file in self._weights():
            # an export is named by its folder
            if not {file, file.rpartition("/")[0]} & named:
                (self.folder / file).unlink()
                swept.append(file)
        for folder in {(self.folder / file).parent for file in swept if file.count("/") == 2}:
            if not any(folder.iterdir()):
                folder.rmdir()
        return swept

    def _weights(self) -> Iterator[str]:
        """Yield the files of weights in the folder, whoever wrote them."""
        places = ("models/*/*", "samplers/*", "checkpoints/*", "external/*/*")
        for path in sorted(chain.from_iterable(map(self.folder.glob, places))):
            file = path.relative_to(self.folder).as_posix()
            if WEIGHTS.fullmatch(file):
                yield file

    def begin(self, ids: Iterable[str]) -> None:
        """Note which requests are computed from now on, for the start after a kill.

        The file outlives the process and need not outlive a loss of power, which is no request's
        fault. So it is not synchronised.
        """
        temporary = self.folder / "running.tmp"
        temporary.write_text(json.dumps({"running": [*ids], "deaths": self.deaths}))
        os.replace(temporary, self.folder / "running")

    def _deaths(self) -> dict[str, int]:
        file = self.folder / "running"
        try:
            known = json.loads(file.read_text())
        except (FileNotFoundError, ValueError):  # none yet, or a loss of power
            return {}
        deaths: dict[str, int] = known["deaths"]
        for name in known["running"]:
            deaths[name] = deaths.get(name, 0) + 1
        waiting = {row["id"] for row in self.all("SELECT id FROM request WHERE done = 0")}
        self.deaths = {name: count for name, count in deaths.items() if name in waiting}
        self.begin([])  # so that a start alone counts no death again
        return self.deaths

    def close(self) -> None:
        with self._lock:
            self._db.close()
        self._held.close()

    def one(self, sql: str, *values: Any) -> Any:
        """Return the first row that *sql* finds, or ``None``."""
        with self._lock:
            return self._db.execute(sql, values).fetchone()

    def all(self, sql: str, *values: Any) -> list[Any]:
        """Return all rows that *sql* finds."""
        with self._lock:
            return self._db.execute(sql, values).fetchall()

    def commit(self, effects: Iterable[Effect]) -> None:
        """Write all *effects* or none; on return they are on disk."""
        with self._lock, self._db:
            for sql, values in effects:
                self._db.execute(sql, values)

    def accept(self, request: Accepted, effects: Sequence[Effect] = ()) -> bool:
        """Write *request* and *effects* down; returns whether it is new."""
        columns = (
            request.id, request.owner, request.session, request.model, request.seq,
            request.kind, request.form, request.body,
        )  # fmt: skip
        with self._lock, self._db:
            added = self._db.execute(
                "INSERT OR IGNORE INTO request (id, owner, session, model, seq, kind, form, body)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                columns,
            )
            if not added.rowcount:
                return False
            for sql, values in effects:
                self._db.execute(sql, values)
        return True

    def finish(self, request: Accepted, result: Any, effects: Sequence[Effect]) -> None:
        """Write the *result* of a request, together with what it changed."""
        done: list[Effect] = [
            (
                "UPDATE request SET done = 1, result = ? WHERE id = ?",
                (json.dumps(result), request.id),
            )
        ]
        if request.model:
            values = (request.seq, time.time(), request.model)
            done.append(("UPDATE model SET applied = ?, used = ? WHERE id = ?", values))
        if request.kind not in REPLAYED or "error" in result:
            done.append(("UPDATE request SET body = NULL WHERE id = ?", (request.id,)))
        self.commit([*done, *effects])
        self.deaths.pop(request.id, None)

    def forget(self, session: str) -> None:
        """Drop results of *session* that are too old to be asked for again."""
        # counted are its own requests: those of others do not shorten the time of a result
        old = "SELECT number FROM request WHERE session = ? ORDER BY number DESC LIMIT 1 OFFSET ?"
        row = self.one(old, session, KEPT)
        if row is not None:
            gone = "session = ? AND number <= ? AND done = 1 AND body IS NULL"
            self.commit([(f"DELETE FROM request WHERE {gone}", (session, row["number"]))])

    def waiting(self) -> list[Accepted]:
        """Return the requests without a result, in the order of their arrival."""
        return [
            self._request(r)
            for r in self.all("SELECT * FROM request WHERE done = 0 ORDER BY number")
        ]

    def since(self, model: str, seq: int) -> list[Accepted]:
        """Return the finished requests of *model* after *seq* that changed it, in order."""
        rows = self.all(
            "SELECT * FROM request WHERE model = ? AND seq > ? AND done = 1 AND body IS NOT NULL"
            f" AND kind IN {REPLAYED}"
            " AND result NOT LIKE '{\"error\"%' ORDER BY seq",
            model,
            seq,
        )
        return [self._request(row) for row in rows]

    @staticmethod
    def _request(row: Any) -> Accepted:
        names = ("id", "owner", "session", "model", "seq", "kind", "form", "body")
        return Accepted(**{name: row[name] for name in names})
