"""The folder of a program without a mount namespace: its working directory and temporary files, on
the host.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import secrets
import tempfile
from collections.abc import Mapping
from pathlib import Path

PREFIX = "quintain-sandbox"
STALE = re.compile(PREFIX + r"-(\d+)-\d+")
SHARED_MEMORY = Path("/dev/shm")
DEPTH = 200
"""Folders that are open at one time while a tree is removed; what is deeper moves up first."""
_serial = itertools.count()


def place_of_folders(*, counted: bool) -> Path:
    """Return where folders are made: in memory if a control group *counted* what is written there,
    else on the disk.
    """
    if counted and os.access(SHARED_MEMORY, os.W_OK) and _in_memory(SHARED_MEMORY):
        return SHARED_MEMORY
    return Path(tempfile.gettempdir())


def _in_memory(place: Path) -> bool:
    return any(
        line.split()[1:3] == [str(place), "tmpfs"]
        for line in Path("/proc/mounts").read_text().splitlines()
    )


def make_folder(place: Path, files: Mapping[str, bytes], user: int | None) -> Path:
    """Return a new folder for temporary files in *place*, and ``box`` with *files* in it, all owned
    by *user*.

    Raises:
        OSError: no room, or no rights.
    """
    folder = place / f"{PREFIX}-{os.getpid()}-{next(_serial)}"
    folder.mkdir(mode=0o700)
    try:
        box = folder / "box"
        box.mkdir()
        made = [folder, box]
        for name, data in files.items():
            path = box / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            made += [path, *(parent for parent in path.parents if box in parent.parents)]
        if user is not None:
            for path in dict.fromkeys(made):
                os.chown(path, user, user)
    except OSError:
        remove_folder(folder)
        raise
    return folder


def remove_folder(folder: Path) -> None:
    """Remove *folder*, whatever a program that ended made in it: links are not followed, no depth
    is too deep.

    Raises:
        OSError: something cannot be removed.
    """
    top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fchmod(top, 0o700)
        while _empty(top, top):
            pass
    finally:
        os.close(top)
    folder.rmdir()


def _empty(folder: int, top: int, depth: int = 0) -> bool:
    """Remove the entries of *folder*, some of them after a move to *top*; whether there were
    any.
    """
    removed_any = False
    with os.scandir(folder) as entries:
        names = [
            (entry.name, entry.is_dir(follow_symlinks=False))
            for entry in itertools.islice(entries, 100_000)
        ]
    for name, is_folder in names:
        removed_any = True
        if not is_folder:
            os.unlink(name, dir_fd=folder)
            continue
        if os.geteuid() != 0:
            os.chmod(name, 0o700, dir_fd=folder)
        if depth == DEPTH:
            os.rename(name, secrets.token_hex(16), src_dir_fd=folder, dst_dir_fd=top)
            continue
        inner = os.open(
            name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder
        )
        try:
            while _empty(inner, top, depth + 1):
                pass
        finally:
            os.close(inner)
        os.rmdir(name, dir_fd=folder)
    return removed_any


def remove_stale_folders(place: Path) -> None:
    """Remove the folders of trainers that died, as far as they are ours."""
    for folder in place.glob(PREFIX + "-*"):
        match = STALE.fullmatch(folder.name)
        if match and not Path(f"/proc/{match[1]}").exists():
            with contextlib.suppress(OSError):  # somebody else's, or no folder
                remove_folder(folder)
