"""The folder of a run: what is in it, who may write, and how it survives a kill or a full disk.

::

    runs/<name>/
        run.lock                     held while a process works here
        recipe.toml                  the resolved recipe
        metrics.jsonl                one object per step
        rollouts/step-000012.parquet
        checkpoints/step-000020/     see `quintain.training.checkpoint`
        summary.json

Files are written beside their place, flushed to the disk and renamed; ``metrics.jsonl`` grows by whole lines. So
what was saved stays readable wherever the process dies.
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import re
import shutil
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, Self

from ..errors import RunError, RunLockedError, StorageError, UnknownNameError, did_you_mean
from ..models.hf import check_folder
from ..types.rollout import Group

Record = dict[str, Any]
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_STEP = re.compile(r"step-(\d+)(?:\.parquet)?")
TEMPORARY = ".tmp-"


class RunFolder:
    """The folder of one run, locked against other processes while it is open for writing.

    Make one with `create` or `open`; it is a context manager.
    """

    def __init__(self, path: str | Path, *, lock: bool = True) -> None:
        self.path = Path(path)
        self._lock: IO[str] | None = _locked(self.path) if lock else None
        if lock:
            _drop_leftovers(self.path)
            self._cut_partial_line()

    @classmethod
    def create(cls, path: str | Path, recipe: str) -> RunFolder:
        """Start a run: make the folder, lock it and save the *recipe* (TOML text).

        Raises:
            RunError: there is a run already.
            RunLockedError: another process works there.
            StorageError: the folder cannot be written.
        """
        path = Path(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            if e.errno in _NO_ROOM:
                raise storage_error(path, e) from e
            raise StorageError(
                f"cannot make the run folder {path}: {e.strerror or e}; put it somewhere else with --folder"
            ) from e
        folder = cls(path)
        if folder.recipe_path.exists():
            folder.close()
            again = f"continue it with --resume {path.name}, or choose another --name"
            raise RunError(f"run {path.name!r} exists in {path.parent}; {again}")
        write_atomically(folder.recipe_path, recipe.encode())
        return folder

    @classmethod
    def open(cls, path: str | Path, *, lock: bool = True) -> RunFolder:
        """Open an existing run, to go on with it or (without *lock*) to read it while another process writes.

        Raises:
            UnknownNameError: there is no run.
            RunLockedError: another process works there.
        """
        path = Path(path)
        if not (path / "recipe.toml").is_file():
            raise _no_run(path.name, path.parent)
        return cls(path, lock=lock)

    def close(self) -> None:
        """Release the lock; further calls do nothing."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """Tell `quintain runs` what is done before the first step: one word, beside the owner in the lock."""
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

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def recipe_path(self) -> Path:
        return self.path / "recipe.toml"

    @property
    def metrics_path(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def summary_path(self) -> Path:
        return self.path / "summary.json"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def rollouts(self) -> Path:
        return self.path / "rollouts"

    def recipe(self) -> str:
        """The text of the recipe."""
        return self.recipe_path.read_text(encoding="utf-8")

    def append(self, record: Mapping[str, Any]) -> None:
        """Add the metrics of a step (key ``step``); they are on the disk when this returns.

        Numbers that are not finite become null.

        Raises:
            StorageError: no room; the file is as it was.
        """
        line = (json.dumps(plain(record), allow_nan=False) + "\n").encode()
        with storing(self.metrics_path, len(line)), open(self.metrics_path, "ab", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            try:
                _write_all(file, line)
                os.fsync(file.fileno())
            except OSError:
                file.truncate(size)
                raise

    def _cut_partial_line(self) -> None:
        """Drop what a kill left of a line, before the next one is added to it."""
        if not self.metrics_path.exists():
            return
        data = self.metrics_path.read_bytes()
        if data and not data.endswith(b"\n"):
            os.truncate(self.metrics_path, data.rfind(b"\n") + 1)

    def metrics(self) -> list[Record]:
        """The metrics so far; a last line that a kill cut off is left out.

        Raises:
            RunError: a line in the middle is damaged.
        """
        return [record for record, _ in self._metrics()]

    def _metrics(self) -> Iterator[tuple[Record, bytes]]:
        if not self.metrics_path.exists():
            return
        with open(self.metrics_path, "rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    return
                try:
                    yield json.loads(line), line
                except ValueError as e:
                    place = f"{self.metrics_path}, line {number}"
                    raise RunError(f"{place}, is damaged: {e}; remove that line to go on") from e

    def write_rollouts(self, step: int, groups: Iterable[Group[Any, Any]]) -> Path:
        """Save the rollouts of a step as one Parquet file (columns: see `quintain.training.rollout_table`).

        Raises:
            StorageError: no room; names the bytes it takes.
        """
        from .rollout_table import to_parquet

        path = self.rollouts / f"step-{step:06d}.parquet"
        write_atomically(path, to_parquet(step, [r for g in groups for r in g.rollouts]))
        return path

    def read_rollouts(self, step: int) -> list[Record]:
        """The rows saved for *step*; ``Rollout.from_json(json.loads(row["rollout"]), ...)`` gives a rollout back.

        Raises:
            RunError: none are saved.
        """
        import pyarrow.parquet

        path = self.rollouts / f"step-{step:06d}.parquet"
        if not path.exists():
            raise RunError(f"run {self.name!r} has no rollouts of step {step}; see [rollouts] keep in its recipe")
        rows: list[Record] = pyarrow.parquet.read_table(path).to_pylist()
        return rows

    def retain(self, keep: int | Literal["all", "none"], step: int) -> None:
        """Apply ``[rollouts] keep`` after *step*: drop those of older steps."""
        if keep == "all":
            return
        last = 0 if keep == "none" else int(keep)
        for old, path in steps_in(self.rollouts):
            if old <= step - last:
                path.unlink()

    def truncate_after(self, step: int) -> None:
        """Forget everything past *step*: what an interrupted process did after its last checkpoint. -1 forgets all.

        Checkpoints go first and metrics last, so that a kill in between leaves something to be truncated again.
        """
        self.summary_path.unlink(missing_ok=True)
        for at, path in steps_in(self.checkpoints):
            if at > step:
                remove_tree(path)
        for at, path in steps_in(self.rollouts):
            if at > step:
                path.unlink()
        if self.metrics_path.exists():
            kept = b"".join(line for record, line in self._metrics() if record["step"] <= step)
            write_atomically(self.metrics_path, kept)

    def write_summary(self, summary: Mapping[str, Any]) -> Path:
        """Save what the run came to."""
        text = json.dumps(plain(summary), indent=2, allow_nan=False) + "\n"
        write_atomically(self.summary_path, text.encode())
        return self.summary_path

    def summary(self) -> Record | None:
        """What the run came to; ``None`` while it has not ended."""
        if not self.summary_path.exists():
            return None
        found: Record = json.loads(self.summary_path.read_text(encoding="utf-8"))
        return found


State = Literal["growing", "running", "finished", "stopped"]


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """A row of ``quintain runs``. ``changed`` is in seconds since 1970; ``fault`` says why a folder cannot be read."""

    name: str
    path: Path
    state: State
    model: str = ""
    environments: tuple[str, ...] = ()
    step: int = 0
    steps: int = 0
    accuracy: float | None = None
    changed: float = 0.0
    fault: str = ""


def list_runs(folder: str | Path) -> list[RunInfo]:
    """The runs in *folder*, the one that changed last first. A damaged run is a row with its fault."""
    paths = [p.parent for p in Path(folder).glob("*/recipe.toml")]
    return sorted(map(_info, paths), key=lambda r: (-r.changed, r.name))


def find_run(run: str | Path, folder: str | Path = "runs") -> Path:
    """The run folder that a person means: a path, or a name in *folder*.

    Raises:
        UnknownNameError: there is none; the nearest name is shown.
    """
    for path in (Path(run), Path(folder) / run):
        if (path / "recipe.toml").is_file():
            return path
    raise _no_run(str(run), Path(folder))


def model_named(name: str, folder: str | Path = "runs") -> tuple[str, str]:
    """The model that a person means by *name*, for `load_model`, and the system message it was trained with.

    *name* is a run (its best checkpoint, or the last), a checkpoint, a folder with a model, or a Hugging Face id. The
    message is empty where the recipe does not say it.

    Raises:
        RunError: the run has no checkpoint yet.
    """
    from .checkpoint import best

    try:
        path = find_run(name, folder)
    except UnknownNameError as e:
        inside = Path(name) / "model"
        if "/" not in name and not Path(name).exists():
            raise UnknownNameError(f"{e}; a model of the Hugging Face hub is named owner/model") from None
        check_folder(name)
        return (str(inside) if (inside / "config.json").is_file() else name), ""
    run = RunFolder(path, lock=False)
    found = best(run)
    if found is None:
        raise RunError(f"run {run.name!r} has no checkpoint yet; `quintain train --resume {run.name}` goes on with it")
    rows = tomllib.loads(run.recipe()).get("environments", [])
    return str(found.model), str(rows[0].get("system", "")) if len(rows) == 1 else ""


def free_name(folder: str | Path, stem: str) -> str:
    """*stem*-1, *stem*-2, ...: the first that no run in *folder* has."""
    taken = {p.name for p in Path(folder).glob(f"{stem}-*")}
    return next(name for i in range(1, len(taken) + 2) if (name := f"{stem}-{i}") not in taken)


def _no_run(name: str, folder: Path) -> UnknownNameError:
    known = [p.parent.name for p in folder.glob("*/recipe.toml")]
    return UnknownNameError(f"no run {name!r} in {folder}{did_you_mean(name, known)} (`quintain runs` lists them)")


def _info(path: Path) -> RunInfo:
    owner = _owner(path)
    state: State = "growing" if owner.endswith("\ngrowing") else "running" if owner else "stopped"
    changed = max(p.stat().st_mtime for p in path.iterdir())
    folder = RunFolder(path, lock=False)
    try:
        recipe = tomllib.loads(folder.recipe())
        metrics = folder.metrics()
        finished = folder.summary() is not None
    except (OSError, ValueError, RunError) as e:
        return RunInfo(name=path.name, path=path, state=state, changed=changed, fault=str(e))
    return RunInfo(
        name=path.name,
        path=path,
        state="finished" if finished and not owner else state,
        model=str(recipe.get("model", {}).get("name", "")),
        environments=tuple(str(e.get("use")) for e in recipe.get("environments", [])),
        step=metrics[-1]["step"] if metrics else 0,
        steps=recipe.get("run", {}).get("steps", 0),
        accuracy=next((m["held_out.accuracy"] for m in reversed(metrics) if "held_out.accuracy" in m), None),
        changed=changed,
    )


# The lock is the operating system's: it ends with the process, however that dies. The text in the file is for people.


def _locked(path: Path) -> IO[str]:
    with storing(path):
        file = open(path / "run.lock", "a+", encoding="utf-8")  # noqa: SIM115 - it stays open as long as the run
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        owner = file.readline().strip() or "another process"
        file.close()
        raise RunLockedError(
            f"run {path.name!r} is in use by {owner}; wait, stop it (SIGTERM lets it save), or choose another --name"
        ) from None
    except BaseException:
        file.close()
        raise
    file.truncate(0)
    file.write(f"process {os.getpid()} on {os.uname().nodename} since {time.strftime('%Y-%m-%d %H:%M:%S')}\n")
    file.flush()
    return file


def _owner(path: Path) -> str:
    """Who holds the lock of *path*; empty if nobody does."""
    try:
        with open(path / "run.lock", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return file.read().strip() or "another process"
    except FileNotFoundError:
        pass
    return ""


@contextmanager
def storing(path: Path, needed: int | None = None) -> Iterator[None]:
    """Turn failures to write *path* into `StorageError`; *needed* is the size in bytes, where it is known."""
    try:
        yield
    except StorageError:
        raise
    except OSError as e:
        raise storage_error(path, e, needed) from e


def storage_error(path: Path, error: OSError, needed: int | None = None) -> StorageError:
    """Say what could not be written, how much room it takes and how to go on."""
    if error.errno not in _NO_ROOM:
        return StorageError(f"cannot write {path}: {error.strerror or error}; what was saved before is intact")
    size = f"it takes {_size(needed)}, " if needed is not None else ""
    limit = "" if error.errno == errno.ENOSPC else " (a quota or a size limit of this process is reached)"
    return StorageError(
        f"no room to write {path}: {size}{_size(free_bytes(path))} are free{limit}. "
        "Make room and continue the run with --resume; what was saved before is intact"
    )


def free_bytes(path: Path) -> int:
    """Room on the file system where *path* is, or is to be."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return shutil.disk_usage(path).free


def _size(count: int) -> str:
    for unit in ("bytes", "kB", "MB"):
        if count < 10_000:
            return f"{count} {unit}"
        count = math.ceil(count / 1000)
    return f"{count} GB"


def write_atomically(path: Path, data: bytes) -> None:
    """Replace the file at *path* by *data*, all or nothing, durably.

    Raises:
        StorageError: it cannot be written; the old file is intact.
    """
    beside = path.with_name(f".{path.name}{TEMPORARY}{os.getpid()}")
    with storing(path, len(data)):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(beside, "wb", buffering=0) as file:
                _write_all(file, data)
                os.fsync(file.fileno())
            os.replace(beside, path)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def _write_all(file: Any, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def sync_folder(path: Path) -> None:
    """Make renames and new names in *path* durable."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_tree(path: Path) -> None:
    """Remove a folder so that a kill in between never leaves half of it under its own name."""
    hidden = path.with_name(f".{path.name}{TEMPORARY}{os.getpid()}-gone")
    os.rename(path, hidden)
    shutil.rmtree(hidden)


def _drop_leftovers(path: Path) -> None:
    """What a process that died was writing. Only the holder of the lock may do this."""
    for folder in (path, path / "rollouts", path / "checkpoints"):
        for left in folder.glob(f".*{TEMPORARY}*"):
            if left.is_dir():
                shutil.rmtree(left)
            else:
                left.unlink()


def steps_in(folder: Path) -> list[tuple[int, Path]]:
    """What *folder* holds under the name of a step, in order."""
    found = [(_STEP.fullmatch(p.name), p) for p in folder.glob("step-*")]
    return sorted((int(m[1]), p) for m, p in found if m)


def plain(value: Any) -> Any:
    """*value* as strict JSON carries it: what is not finite becomes ``None``, a numpy or torch scalar a number."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, Path):
        return str(value)
    number: Callable[[], Any] | None = getattr(value, "item", None)
    if number is not None:
        return plain(number())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    raise TypeError(f"{value!r} cannot be stored as JSON")
