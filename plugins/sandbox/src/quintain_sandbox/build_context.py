"""What an image of a task is built from: a folder, and what of it matters."""

from __future__ import annotations

import hashlib
import os
import stat
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from quintain.errors import EnvironmentFault, UsageError

MOST_FILES = 50_000
MOST_BYTES = 4 << 30
"""Of a build context: more is taken for a mistake, such as the root of a file system."""


class BuildError(EnvironmentFault):
    """An image cannot be built: a command of its Dockerfile failed, or it needs what there is not.

    It fails again each time, so it is remembered for the life of the service.
    """


@dataclass(frozen=True)
class BuildContext:
    """What an image is built from.

    Attributes:
        folder: with the files that the Dockerfile copies.
        dockerfile: its text.
        more: further files, by path in the context, such as those that a conversion adds.
        seconds: that a build may take.
    """

    folder: Path
    dockerfile: str
    more: tuple[tuple[str, Path], ...] = ()
    seconds: float = 600.0


def context_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files, links and empty folders below *folder* in order, without those that its
    ``.dockerignore`` leaves out.

    Raises:
        BuildError: there are too many, or too large ones.
    """
    ignored = _ignores(folder)
    number = size = 0
    for parent, names, files in os.walk(folder):
        names.sort()
        for name in sorted((*files, *(n for n in names if _is_leaf(Path(parent, n))))):
            place = Path(parent, name)
            path = place.relative_to(folder).as_posix()
            if ignored(path):
                continue
            number, size = number + 1, size + place.lstat().st_size
            if number > MOST_FILES or size > MOST_BYTES:
                raise BuildError(
                    f"{folder} has more than {MOST_FILES} files or {MOST_BYTES >> 30} GiB: it is "
                    "no build context"
                )
            yield path, place


def _is_leaf(folder: Path) -> bool:
    return folder.is_symlink() or not any(folder.iterdir())


def _ignores(folder: Path) -> Callable[[str], bool]:
    """Return whether a path is ignored, by the rules of ``.dockerignore``."""
    from docker.utils.build import PatternMatcher  # type: ignore[import-untyped]

    try:
        lines = (folder / ".dockerignore").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return lambda path: False
    except UnicodeDecodeError as e:
        raise UsageError(f"{folder / '.dockerignore'} is no text") from e
    patterns = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    matches: Callable[[str], bool] = PatternMatcher(patterns).matches
    return matches


def add_file(tar: tarfile.TarFile, path: str, place: Path, mode: int | None = None) -> bytes:
    """Add a file to the archive, and return what decides about the image: no times and owners.

    Args:
        mode: of the file in the archive; ``None`` for that of *place*.
    """
    entry = tar.gettarinfo(str(place), arcname=path)
    entry.uid = entry.gid = 0
    entry.mode = entry.mode if mode is None else mode
    entry.uname = entry.gname = ""
    if entry.isreg():
        entry.type, entry.linkname = tarfile.REGTYPE, ""  # also one of two hard links
        entry.size = place.stat().st_size
        digest = hashlib.sha256()
        with place.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
            file.seek(0)
            tar.addfile(entry, file)
        content = digest.hexdigest()
    elif entry.issym() or entry.isdir():
        tar.addfile(entry)
        content = entry.linkname
    else:
        raise BuildError(f"{place} is neither a file nor a link nor a folder")
    return f"{path}\0{entry.type!r}\0{stat.S_IMODE(entry.mode)}\0{content}\n".encode()
