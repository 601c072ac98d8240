"""Tasks as archives in a column of a Parquet file, and where unpacked and converted ones are
kept.
"""

from __future__ import annotations

import hashlib
import io
import lzma
import os
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from quintain.errors import UsageError

from .folder import CONFIG, OLD_CONFIG, TaskFolder, folders
from .terminal_bench import convert

PATH, ARCHIVE = "path", "task_binary"
"""Columns of a Parquet file: the task's name, and its folder as a tar archive, compressed or not, or
as a zip archive.
"""
FORMAT = "2"
"""Changed when a converted folder looks another way."""
MOST_FILES = 50_000
MOST_BYTES = 4 << 30


def task_folders(data: Path, cache: Path, column: str = ARCHIVE) -> Iterator[TaskFolder]:
    """Yield the tasks of a folder, of a tree of folders, of an archive, or of a Parquet file with
    archives.

    Tasks of archives and old ones (``task.yaml``) are unpacked and converted below *cache*, once
    for equal contents. One that cannot be has a `TaskFolder.fault`.

    Raises:
        UsageError: there is no such file, or nothing of that kind in it.
    """
    if data.is_dir():
        for folder in folders(data):
            yield _converted(folder, cache)
    elif not data.is_file():
        raise UsageError(f"there is no file or folder {data}")
    elif data.suffix == ".parquet":
        for name, content in _rows(data, column):
            yield _unpacked(content, name, cache, f"{data}, task {name}")
    else:
        yield _unpacked(data.read_bytes(), data.name.partition(".")[0], cache, str(data))


def _rows(file: Path, column: str) -> Iterator[tuple[str, bytes]]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as e:
        raise UsageError(f"{file} needs pyarrow: pip install 'quintain-env-agent[harbor]'") from e
    try:
        table = parquet.ParquetFile(file)
        names = table.schema_arrow.names
        if column not in names:
            raise UsageError(
                f"{file} has the columns {', '.join(names)}; set `column` to the one with archives"
            )
        number = 0
        for batch in table.iter_batches(16, columns=[c for c in (PATH, column) if c in names]):
            for row in batch.to_pylist():
                number += 1
                if not isinstance(row[column], bytes):
                    raise UsageError(f"{file}, row {number}: {column} is no archive")
                yield str(row.get(PATH) or f"row-{number}"), row[column]
    except (OSError, ArrowException) as e:
        raise UsageError(f"cannot read {file}: {str(e).partition(chr(10))[0]}") from e


def _unpacked(content: bytes, name: str, cache: Path, where: str) -> TaskFolder:
    key = hashlib.sha256(FORMAT.encode() + content).hexdigest()[:32]

    def fill(place: Path) -> None:
        unpack(content, place, where)

    try:
        place = _made(cache / key, fill)
    except UsageError as e:
        return TaskFolder(cache / key, name, str(e))
    found = [place, *sorted(p for p in place.iterdir() if p.is_dir())]
    root = next((p for p in found if (p / CONFIG).is_file() or (p / OLD_CONFIG).is_file()), None)
    if root is None:
        fault = f"{where}: the archive has neither {CONFIG} nor {OLD_CONFIG}"
        return TaskFolder(place, name, fault)
    return _converted(TaskFolder(root, name), cache)


def _converted(folder: TaskFolder, cache: Path) -> TaskFolder:
    if (folder.path / CONFIG).is_file():
        return folder
    total = hashlib.sha256(FORMAT.encode())
    for place in sorted(p for p in folder.path.rglob("*") if p.is_file()):
        total.update(f"{place.relative_to(folder.path)}\0".encode())
        total.update(hashlib.sha256(place.read_bytes()).digest())

    def fill(place: Path) -> None:
        place.rmdir()
        convert(folder.path, place)

    try:
        return TaskFolder(_made(cache / total.hexdigest()[:32], fill), folder.name)
    except UsageError as e:
        return TaskFolder(folder.path, folder.name, str(e))


def _made(place: Path, fill: Callable[[Path], None]) -> Path:
    """Return *place*, filled by the first that asks; also where several processes do at once."""
    if not place.is_dir():
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent, prefix=".new-") as folder:
            new = Path(folder, "task")
            new.mkdir()
            fill(new)
            try:
                os.rename(new, place)
            except OSError:
                if not place.is_dir():  # else another process was first
                    raise
                shutil.rmtree(new)
    return place


def unpack(content: bytes, place: Path, where: str) -> None:
    """Write the files of an archive to the folder *place*.

    Raises:
        UsageError: it is no archive, or has a path, a link or a device that a task has no use for.
    """
    try:
        if zipfile.is_zipfile(io.BytesIO(content)) and not _is_tar(content):
            _unpack_zip(content, place, where)
        else:
            _unpack_tar(content, place, where)
    except _UNREADABLE as e:
        raise UsageError(f"{where}: cannot unpack the archive: {e}") from e


_UNREADABLE = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    OSError,
    RuntimeError,  # an encrypted entry, or a compression that Python has not
    ValueError,
)


def _is_tar(content: bytes) -> bool:
    try:
        with tarfile.open(fileobj=io.BytesIO(content)):
            return True
    except (tarfile.TarError, zlib.error, lzma.LZMAError, EOFError):
        return False


def _unpack_tar(content: bytes, place: Path, where: str) -> None:
    number = size = 0
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        for entry in tar:
            number, size = number + 1, size + entry.size
            _bound(number, size, where)
            if not _inside(entry.name):
                raise UsageError(f"{where}: the archive has the path {entry.name!r}")
            target = place / entry.name
            if entry.isdir():
                target.mkdir(parents=True, exist_ok=True)
            elif entry.isreg():
                file = tar.extractfile(entry)
                assert file is not None
                _write(place, target, file.read(), bool(entry.mode & 0o100), where)
            else:
                raise UsageError(f"{where}: {entry.name!r} is neither a file nor a folder")


def _unpack_zip(content: bytes, place: Path, where: str) -> None:
    number = size = 0
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for entry in archive.infolist():
            number, size = number + 1, size + entry.file_size
            _bound(number, size, where)
            if not _inside(entry.filename):
                raise UsageError(f"{where}: the archive has the path {entry.filename!r}")
            if entry.is_dir():
                (place / entry.filename).mkdir(parents=True, exist_ok=True)
            else:
                # The upper 16 bits are the mode of Unix. Archives of Windows have 0 there, so that
                # nothing is executable.
                executable = bool(entry.external_attr >> 16 & 0o100)
                _write(place, place / entry.filename, archive.read(entry), executable, where)


def _inside(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return not name.startswith("/") and ".." not in parts and "\0" not in name and len(name) < 4096


def _bound(number: int, size: int, where: str) -> None:
    if number > MOST_FILES or size > MOST_BYTES:
        raise UsageError(f"{where}: the archive has over {MOST_FILES} files or {MOST_BYTES} bytes")


def _write(root: Path, target: Path, content: bytes, executable: bool, where: str) -> None:
    if target == root:
        raise UsageError(f"{where}: the archive has a file without a name")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    target.chmod(0o755 if executable else 0o644)
