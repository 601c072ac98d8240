"""The folder of a run: its files, its lock, and writes that survive a kill or a full disk.

::

    runs/<name>/
        run.lock                     locked while a process writes here
        recipe.toml                  the resolved recipe
        metrics.jsonl                one object per step
        provenance.jsonl             one object per process, see `quintain.run.provenance`, and
                                     one per change by `quintain.interfaces.Steering`
        replicas.jsonl               one object per change of a replica of an engine that has some
        rollouts/step-000012.parquet
        checkpoints/step-000020/     see `quintain.store.checkpoint`
        summary.json

Files are written under a temporary name, flushed to the disk and renamed; ``metrics.jsonl`` grows
by whole lines. So saved data stays readable if the process dies at any point.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import IO, Any, Literal, Self

from ..errors import RunError, RunLockedError, StorageError, UnknownNameError, did_you_mean
from ..types.rollout import Group
from .digests import ABOUT, SUMS, description_of, log_digest, recipe_digest
from .storage import (
    NO_ROOM,
    drop_leftovers,
    drop_partial_line,
    lock_owner,
    plain_data,
    remove_tree,
    steps_in,
    storage_error,
    storage_errors,
    take_lock,
    write_all,
    write_atomically,
)

Record = dict[str, Any]
NO_LINES = {"lines": 0}
RECIPE_DIGEST = "recipe_sha256"
"""Key of the record of a process: the `recipe_digest` of what it read."""
REMOVE = "remove it, and `quintain train --resume` writes it again"
_CURRENT: ContextVar[Path | None] = ContextVar("quintain_run", default=None)


def current_run() -> Path | None:
    """Return the absolute path of the folder of the run that this code belongs to; ``None`` outside
    a run.

    A service starts for the warm start of a model, too, before `RunStart`.
    """
    return _CURRENT.get()


@contextmanager
def as_current_run(folder: RunFolder) -> Iterator[None]:
    """Let `current_run` return the path of *folder*."""
    token = _CURRENT.set(folder.path.absolute())
    try:
        yield
    finally:
        _CURRENT.reset(token)


class RunFolder:
    """The folder of one run, locked against other processes while it is open for writing; a context
    manager.

    `create` and `open` make one. Of a locked folder *path* is absolute, since author code may
    change the working directory; *shown* is the path as it was given, for messages.
    """

    def __init__(self, path: str | Path, *, lock: bool = True) -> None:
        self.shown = Path(path)
        self.path = path = self.shown.absolute() if lock else self.shown
        self.name = path.name
        self.recipe_path, self.metrics_path = path / "recipe.toml", path / "metrics.jsonl"
        self.provenance_path, self.summary_path = path / "provenance.jsonl", path / "summary.json"
        self.checkpoints, self.rollouts = path / "checkpoints", path / "rollouts"
        self.replicas_path = path / "replicas.jsonl"
        self._logs = self.metrics_path, self.provenance_path, self.replicas_path
        self._lock: IO[str] | None = None
        self._process = os.getpid()
        if not lock:
            return
        self._lock = take_lock(path / "run.lock")
        if self._lock is None:
            owner = lock_owner(path / "run.lock").partition("\n")[0] or "another process"
            raise RunLockedError(
                f"run {self.name!r} is in use by {owner}; wait, stop it (SIGTERM lets it save) or "
                f"choose another --name"
            )
        try:
            with storage_errors(path):
                drop_leftovers(path)
                for file in self._logs:
                    drop_partial_line(file)
        except BaseException:
            self.close()
            raise

    @classmethod
    def create(cls, path: str | Path, recipe: str) -> RunFolder:
        """Start a run: make the folder, lock it and save the *recipe* (TOML text).

        Raises:
            RunError: the folder contains a run.
            RunLockedError: another process writes there.
            StorageError: the folder cannot be written.
        """
        path = Path(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            if e.errno in NO_ROOM:
                raise storage_error(path, e) from e
            raise StorageError(
                f"cannot make the run folder {path}: {e.strerror or e}; put it somewhere else with "
                f"--folder"
            ) from e
        folder = cls(path)
        if is_run(path) and not folder.recipe_path.exists():
            folder.close()
            raise no_run(path.name, path.parent)
        if folder.recipe_path.exists():
            folder.close()
            again = f"continue it with --resume {path.name}, or choose another --name"
            raise RunError(f"run {path.name!r} exists in {path.parent}; {again}")
        write_atomically(folder.recipe_path, recipe.encode())
        return folder

    @classmethod
    def open(cls, path: str | Path, *, lock: bool = True) -> RunFolder:
        """Open an existing run, to continue it or (without *lock*) to read it while another process
        writes.

        Raises:
            UnknownNameError: there is no run.
            RunLockedError: another process writes there.
        """
        path = Path(path)
        if not (path / "recipe.toml").is_file():
            raise no_run(path.name, path.parent)
        return cls(path, lock=lock)

    def close(self) -> None:
        """Release the lock and remove its owner from the file; further calls do nothing."""
        if self._lock is not None:
            self._lock.truncate(0)
            self._lock.close()
            self._lock = None

    def check(self) -> None:
        """Check before a write that the path still leads to the folder that is locked.

        Raises:
            RunError: the folder was moved, deleted or replaced; the message has its new path, if
                the system knows it.
        """
        if self._lock is None:
            return
        if os.getpid() != self._process:  # a fork that an author's code made came back from it
            os._exit(1)
        lock = os.fstat(self._lock.fileno())
        with suppress(OSError):
            if os.path.samestat(lock, os.stat(self.path / "run.lock")):
                return
        moved = "was moved" if lock.st_nlink else "was deleted or replaced"
        with suppress(OSError):  # Linux knows where it is
            place = Path(f"/proc/self/fd/{self._lock.fileno()}").readlink().parent
            moved += f" to {place}" if lock.st_nlink else ""
        raise RunError(
            f"the run folder {self.path} {moved} while the run used it; nothing was written since. "
            "Move it back and continue the run with --resume, or start it again"
        )

    @contextmanager
    def status(self, what: str) -> Iterator[None]:
        """Show the word *what* as the state of the run in `quintain runs`; it is stored in the lock
        file.
        """
        assert self._lock is not None, "opened without the lock"
        owner = self._lock.seek(0, os.SEEK_END)
        self._lock.write(f"{what}\n")
        self._lock.flush()
        try:
            yield
        finally:
            self._lock.truncate(owner)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def recipe(self) -> str:
        """Return the text of the recipe.

        Raises:
            RunError: it cannot be read; or it is another one than the last process of the run used,
                and no process has the folder.
        """
        with _readable(self.recipe_path, "replace it by the recipe of the run"):
            text = self.recipe_path.read_text(encoding="utf-8")
        processes = [] if self._is_written() else self.processes()
        if processes and processes[-1].get(RECIPE_DIGEST, digest := recipe_digest(text)) != digest:
            raise RunError(
                f"{self.recipe_path} is not as the run last used it; put it back, or continue the "
                f"run with --resume {self.name}, which names the keys that differ"
            )
        return text

    def append(self, record: Mapping[str, Any], path: Path | None = None) -> None:
        """Add a line to *path*, by default the metrics of a step (key ``step``); it is on the disk
        when this returns.

        Numbers that are not finite become null.

        Raises:
            StorageError: no room; the file is as it was.
            RunError: the folder was moved or deleted.
        """
        self.check()
        path = path or self.metrics_path
        line = (json.dumps(plain_data(record), allow_nan=False) + "\n").encode()
        with storage_errors(path, len(line)), open(path, "ab", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            try:
                write_all(file, line)
                os.fsync(file.fileno())
            except OSError:
                file.truncate(size)
                raise

    def metrics(self) -> list[Record]:
        """Return the metrics so far, without an incomplete last line.

        Raises:
            RunError: a line in the middle is damaged.
        """
        return [record for record, _ in self._lines(self.metrics_path)]

    def log_digests(self) -> dict[str, Any]:
        """Return number and SHA-256 of the lines of each log, by its name, for a checkpoint."""
        return {path.name: log_digest(path) for path in self._logs}

    def compare_logs(self, checkpoint: Path, *, moved: bool = False) -> None:
        """Compare the lines that each log had when *checkpoint* was saved with those that it has.

        Args:
            moved: whether a log may be missing: a run goes on without one that was moved away.

        Raises:
            RunError: lines are missing or different.
        """
        saved = description_of(checkpoint).get("logs", {})
        for path in self._logs:
            if not moved or path.exists():
                _compare(path, saved.get(path.name, NO_LINES), checkpoint.name)

    def lost_logs(self, checkpoint: Path) -> list[str]:
        """Return the names of the logs that had lines when *checkpoint* was saved and are gone."""
        saved = description_of(checkpoint).get("logs", {})
        return [
            p.name for p in self._logs if saved.get(p.name, NO_LINES)["lines"] and not p.exists()
        ]

    def processes(self) -> list[Record]:
        """Return the provenance of the processes so far; raises as `metrics`."""
        return [r for r, _ in self._lines(self.provenance_path) if "steering" not in r]

    def steering(self) -> list[Record]:
        """Return what plugins asked of the run and it did (``time``, ``step``, ``steering``), in
        order; raises as `metrics`.
        """
        return [r for r, _ in self._lines(self.provenance_path) if "steering" in r]

    def replicas(self) -> list[Record]:
        """Return the changes of replicas (``time``, ``replica``, ``state``, ``why``), in order;
        raises as `metrics`.
        """
        return [record for record, _ in self._lines(self.replicas_path)]

    def _lines(self, path: Path) -> Iterator[tuple[Record, bytes]]:
        """Yield the whole lines of a log. While no process writes here they are those of the last
        checkpoint, and lines that follow it.
        """
        saved = [] if self._is_written() else steps_in(self.checkpoints)
        if saved and any((saved[-1][1] / name).exists() for name in (ABOUT, SUMS)):
            logs = description_of(saved[-1][1]).get("logs", {})
            _compare(path, logs.get(path.name, NO_LINES), saved[-1][1].name)
        if not path.exists():
            return
        before: Record | None = None
        with _readable(path, "put the file back"), open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    return
                place = f"{path}, line {number},"
                record = _record(line, place, "that line", step=path == self.metrics_path)
                if before is not None and record["step"] <= before["step"]:
                    raise RunError(
                        f"{place} is of step {record['step']} and follows step {before['step']}; put "
                        "the file back"
                    )
                before = record if path == self.metrics_path else None
                yield record, line

    def _is_written(self) -> bool:
        return self._lock is not None or bool(lock_owner(self.path / "run.lock"))

    def _rollouts_of(self, step: int) -> Path:
        return self.rollouts / f"step-{step:06d}.parquet"

    def write_rollouts(
        self, step: int, groups: Iterable[Group[Any, Any]], advantages: Any = None
    ) -> Path:
        """Save the rollouts of a step as one Parquet file (columns: see
        `quintain.store.rollout_table`).

        Raises:
            StorageError: no room; the message has the size in bytes.
        """
        from .rollout_table import to_parquet

        self.check()
        path = self._rollouts_of(step)
        write_atomically(
            path, to_parquet(step, [r for g in groups for r in g.rollouts], advantages)
        )
        return path

    def read_rollouts(self, step: int) -> list[Record]:
        """Return the rows of *step*; ``Rollout.from_json(json.loads(row["rollout"]), ...)``
        restores a rollout.

        Raises:
            RunError: none are saved, or the file is damaged.
        """
        from .rollout_table import read_table

        path = self._rollouts_of(step)
        if not path.exists():
            raise RunError(
                f"run {self.name!r} has no rollouts of step {step}; see [rollouts] keep in its "
                f"recipe"
            )
        rows: list[Record] = read_table(path).to_pylist()
        return rows

    def retain(self, keep: int | Literal["all", "none"], step: int) -> None:
        """Apply ``[rollouts] keep`` after *step*: delete the files of older steps."""
        self.check()
        if keep == "all":
            return
        last = 0 if keep == "none" else int(keep)
        for old, path in steps_in(self.rollouts):
            if old <= step - last:
                path.unlink()

    def keep_rollouts(
        self,
        keep: int | Literal["all", "none"],
        step: int,
        groups: Iterable[Group[Any, Any]],
        advantages: Any,
    ) -> None:
        """Do both for a step: `write_rollouts` and `retain`, or nothing with ``"none"``."""
        if keep != "none":
            self.write_rollouts(step, groups, advantages)
            self.retain(keep, step)

    def truncate_after(self, step: int, *, still_open: bool = False) -> None:
        """Delete everything after *step*, the work of an interrupted process after its last
        checkpoint; -1 deletes all.

        Checkpoints are deleted first and metrics last, so that a kill in between leaves a state
        that can be truncated.

        Args:
            still_open: the metrics of *step* are deleted, too: they are written when it is
                evaluated.

        Raises:
            StorageError: a file cannot be deleted.
            RunError: a line of the metrics is damaged, or the folder was moved or deleted.
        """
        self.check()
        with storage_errors(self.path):
            self.summary_path.unlink(missing_ok=True)
            for saved_step, path in steps_in(self.checkpoints):
                if saved_step > step:
                    remove_tree(path)
            for saved_step, path in steps_in(self.rollouts):
                if saved_step > step:
                    path.unlink()
        written = step - still_open
        if self.metrics_path.exists():
            lines = b"".join(
                line for record, line in self._lines(self.metrics_path) if record["step"] <= written
            )
            write_atomically(self.metrics_path, lines)

    def write_summary(self, summary: Mapping[str, Any]) -> Path:
        """Save the summary of the run."""
        self.check()
        record = plain_data(summary)
        record |= {"sha256": _summary_digest(record)}
        text = json.dumps(record, indent=2, allow_nan=False) + "\n"
        write_atomically(self.summary_path, text.encode())
        return self.summary_path

    def summary(self) -> Record | None:
        """Return the summary of the run; ``None`` before its end.

        Raises:
            RunError: it is damaged.
        """
        if not self.summary_path.exists():
            return None
        with _readable(self.summary_path, REMOVE):
            record = _record(self.summary_path.read_bytes(), str(self.summary_path), "it")
        if record.pop("sha256", digest := _summary_digest(record)) != digest:
            raise RunError(f"{self.summary_path} is damaged: its SHA-256 is another one; {REMOVE}")
        return record


def _summary_digest(record: Record) -> str:
    values = {key: value for key, value in record.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


@contextmanager
def _readable(path: Path, fix: str) -> Iterator[None]:
    """Turn failures to read *path* into one error, with what to do.

    Raises:
        RunError: it cannot be read.
    """
    try:
        yield
    except (OSError, UnicodeDecodeError) as e:
        raise RunError(f"{path} cannot be read: {e}; {fix}") from e


def _compare(path: Path, saved: Mapping[str, Any], checkpoint: str) -> None:
    """Compare the lines of the log at *path* with those that were *saved* of it at *checkpoint*.

    Raises:
        RunError: some are missing or different.
    """
    with _readable(path, "put the file back"):
        current = log_digest(path, saved["lines"]) if saved["lines"] else saved
    if current == saved:
        return
    fault = f"has {current['lines']} of the {saved['lines']} lines that it had"
    if current["lines"] == saved["lines"]:
        fault = f"has other values in the {saved['lines']} lines that it had"
    if not path.exists():
        fault = f"is missing and had {saved['lines']} lines"
    raise RunError(
        f"{path} {fault} at checkpoint {checkpoint}; put the file back, or move it away and "
        "continue the run without its lines"
    )


def _record(text: bytes, place: str, remove: str, *, step: bool = False) -> Record:
    """Return the JSON object *text* at *place*, with the number of a *step* if required.

    Raises:
        RunError: it is something else; the message says what to *remove*.
    """
    try:
        record = json.loads(text)
        if not isinstance(record, dict) or (
            step and (type(record.get("step")) is not int or record["step"] < 0)
        ):
            raise ValueError(f"expected an object{' with the number of a step' if step else ''}")
        if not isinstance(record.get("alerts", []), list):
            raise ValueError("`alerts` is not a list")
    except (ValueError, RecursionError) as e:
        raise RunError(f"{place} is damaged: {e}; remove {remove} to continue") from e
    return record


def is_run(path: Path) -> bool:
    """Return whether the folder *path* has files of a run, with or without its recipe."""
    results = (path / "metrics.jsonl", path / "provenance.jsonl", path / "checkpoints")
    return any(os.path.exists(file) for file in (path / "recipe.toml", *results))


def no_run(name: str, folder: Path) -> UnknownNameError:
    if is_run(folder / name):
        fault = "has the files of a run without recipe.toml; put it back"
        return UnknownNameError(f"{folder / name} {fault}, or choose another name")
    names = [p.parent.name for p in folder.glob("*/recipe.toml")]
    return UnknownNameError(
        f"no run {name!r} in {folder}{did_you_mean(name, names)} (`quintain runs` lists them)"
    )
