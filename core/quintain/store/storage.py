"""Writing files that survive a kill or a full disk: atomic writes, locks, leftovers."""

from __future__ import annotations

import errno
import fcntl
import math
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from ..errors import StorageError

NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_STEP = re.compile(r"step-(\d+)(?:\.parquet)?")
TEMPORARY = ".tmp-"


def cache_folder() -> Path:
    """Return where files are kept that can be made again: ``$QUINTAIN_CACHE``, else
    ``~/.cache/quintain``.
    """
    chosen = os.environ.get("QUINTAIN_CACHE")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "quintain"


def take_lock(path: Path) -> IO[str] | None:
    """Lock the file at *path*, created if missing; ``None`` if another process has the lock.

    The lock belongs to the operating system: it ends when the file is closed or the process dies.
    The text of the file names the owner.

    Raises:
        StorageError: the file cannot be written.
    """
    with storage_errors(path):
        file = open(path, "a+", encoding="utf-8")  # noqa: SIM115 - it stays open while locked
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    except BaseException:
        file.close()
        raise
    with storage_errors(path):
        file.truncate(0)
        file.write(
            f"process {os.getpid()} on {os.uname().nodename} since "
            f"{time.strftime('%Y-%m-%d %H:%M:%S')}\n"
        )
        file.flush()
    return file


def lock_owner(path: Path) -> str:
    """Return the owner of the lock at *path*; empty if it is not locked.

    Raises:
        StorageError: it cannot be read.
    """
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return file.read().strip() or "another process"
    except FileNotFoundError:
        pass
    except OSError as e:
        raise StorageError(
            f"cannot read {path}, which says whether a process has the run: {e.strerror or e}"
        ) from e
    return ""


@contextmanager
def storage_errors(path: Path, needed: int | None = None) -> Iterator[None]:
    """Turn failures to write *path* into `StorageError`; *needed* is the size in bytes, if
    known.
    """
    try:
        yield
    except StorageError:
        raise
    except OSError as e:
        raise storage_error(
            Path(e.filename) if e.filename and os.path.isdir(path) else path, e, needed
        ) from e


def storage_error(path: Path, error: OSError, needed: int | None = None) -> StorageError:
    """Return the error for a failed write: the path, the size and how to continue."""
    if error.errno not in NO_ROOM:
        return StorageError(
            f"cannot write {path}: {error.strerror or error}; what was saved before is intact"
        )
    disk = os.statvfs(_existing(path))
    if error.errno == errno.ENOSPC and disk.f_files and not disk.f_favail:
        return StorageError(
            f"no room to write {path}: its file system has no inode left for another file. Delete "
            "files there and continue the run with --resume; what was saved before is intact"
        )
    size = f"it takes {size_text(needed)}, " if needed is not None else ""
    limit = (
        ""
        if error.errno == errno.ENOSPC
        else " (a quota or a size limit of this process is reached)"
    )
    return StorageError(
        f"no room to write {path}: {size}{size_text(free_bytes(path))} are free{limit}. "
        "Make room and continue the run with --resume; what was saved before is intact"
    )


def free_bytes(path: Path) -> int:
    """Return the free bytes on the file system of *path*, which need not exist."""
    return shutil.disk_usage(_existing(path)).free


def _existing(path: Path) -> Path:
    return next((p for p in (path, *path.parents) if os.path.exists(p)), Path())


def size_text(count: int) -> str:
    """Return a number of bytes with a unit, rounded up."""
    for unit in ("bytes", "kB", "MB"):
        if count < 10_000:
            return f"{count} {unit}"
        count = math.ceil(count / 1000)
    return f"{count} GB"


def temporary(path: Path) -> Path:
    """Return the name, beside *path*, of what this process has not finished writing there."""
    return path.with_name(f".{path.name}{TEMPORARY}{os.getpid()}")


def write_atomically(path: Path, data: bytes) -> None:
    """Replace the file at *path* by *data*, all or nothing, durably.

    Raises:
        StorageError: the file cannot be written; the old one is intact.
    """
    beside = temporary(path)
    with storage_errors(path, len(data)):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(beside, "wb", buffering=0) as file:
                write_all(file, data)
                os.fsync(file.fileno())
            os.replace(beside, path)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def write_all(file: Any, data: bytes) -> None:
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
    """Remove a folder; a kill in between never leaves a part of it under its name."""
    hidden = temporary(path.with_name(f"{path.name}-removed"))
    os.rename(path, hidden)
    shutil.rmtree(hidden)


def drop_leftovers(path: Path) -> None:
    """Delete the unfinished files of a process that died. The caller must have the lock."""
    for folder in (path, path / "rollouts", path / "checkpoints"):
        for left in folder.glob(f".*{TEMPORARY}*"):
            if left.is_dir():
                shutil.rmtree(left)
            else:
                left.unlink()


def drop_partial_line(path: Path) -> None:
    """Cut off what a process that was ended left of a last line, so that lines can follow."""
    data = path.read_bytes() if path.exists() else b""
    if data and not data.endswith(b"\n"):
        os.truncate(path, data.rfind(b"\n") + 1)


def steps_in(folder: Path) -> list[tuple[int, Path]]:
    """Return the step and path of each entry of *folder* named after a step, in order."""
    matches = [(_STEP.fullmatch(p.name), p) for p in folder.glob("step-*")]
    return sorted((int(m[1]), p) for m, p in matches if m)


def plain_data(value: Any, *, exact: bool = False) -> Any:
    """Return *value* as JSON: numpy and torch scalars become numbers; without *exact*, non-finite
    numbers become ``None``.
    """
    if isinstance(value, Mapping):
        return {str(k): plain_data(v, exact=exact) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_data(v, exact=exact) for v in value]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, Path):
        return str(value)
    number: Callable[[], Any] | None = getattr(value, "item", None)
    if number is not None:
        return plain_data(number(), exact=exact)
    if isinstance(value, float):
        return value if exact or math.isfinite(value) else None
    raise TypeError(f"{value!r} cannot be stored as JSON")
