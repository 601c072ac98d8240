"""Images of tasks: built from a folder with a Dockerfile, once for equal contents."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import stat
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from quintain.errors import EnvironmentFault, UsageError

from .dockerfile import bases, buildkit_only, mapped, rebased
from .engine import ContainerEngine

NAME = "quintain-task"
"""Of all images that are built here; the tag is made of the contents."""
FORMAT = b"1"
"""Changed when equal contents are to give another image."""
MOST_FILES = 50_000
MOST_BYTES = 4 << 30
"""Of a build context: more is taken for a mistake, such as the root of a file system."""


class BuildError(EnvironmentFault):
    """An image cannot be built: a command of its Dockerfile failed, or it needs what there is not.

    It fails again each time, so it is remembered for the life of the service.
    """


@dataclass(frozen=True)
class Context:
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


class TaskImages:
    """Builds images and knows which the engine has.

    Args:
        table: local images by the names and patterns of those that Dockerfiles name.
        network: of the commands of a build: ``none``, or a network of the engine.
        pull: whether the engine may fetch an image that it does not have.
        executor: where builds run; its threads bound how many run at one time.
    """

    def __init__(
        self,
        engine: ContainerEngine,
        table: Mapping[str, str],
        network: str,
        pull: bool,
        executor: Executor,
    ) -> None:
        self._engine, self._table, self._network = engine, dict(table), network
        self._pull, self._executor = pull, executor
        self._running: dict[str, asyncio.Future[str]] = {}
        self._failed: dict[str, BuildError] = {}
        self.built = 0
        """Images that were built and not found."""

    async def of(self, context: Context) -> str:
        """Return the name of the image of *context*; it is built if the engine does not have it.

        Equal contexts are built once, also at one time. A cancelled caller leaves the build to
        others that wait for it.

        Raises:
            BuildError: it cannot be built.
            InfrastructureError: the engine failed.
        """
        loop = asyncio.get_running_loop()
        name, packed = await loop.run_in_executor(self._executor, self._packed, context)
        archive: IO[bytes] | None = packed
        try:
            if name in self._failed:
                raise self._failed[name]
            if name not in self._running:
                self._running[name] = asyncio.ensure_future(
                    loop.run_in_executor(self._executor, self._made, name, packed, context.seconds)
                )
                archive = None
                self._running[name].add_done_callback(lambda _: self._running.pop(name, None))
            return await asyncio.shield(self._running[name])
        finally:
            if archive is not None:
                archive.close()

    async def named(self, image: str) -> str:
        """Return the local name of an image that a task names in place of a Dockerfile.

        Raises:
            BuildError: the engine has neither it nor one for it in the table.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, self._base, image)

    def _base(self, image: str) -> str:
        local = mapped(image, self._table)
        if self._engine.image(local) is None:
            if not self._pull:
                where = f" ({local!r} by the table)" if local != image else ""
                raise BuildError(
                    f"the container engine has no image {image!r}{where}: load it, map it in "
                    "`images` of the service containers, or set pull = true"
                )
            self._engine.pull(local)
        return local

    def _packed(self, context: Context) -> tuple[str, IO[bytes]]:
        """Return the name of the image, which is made of the contents, and the archive to build
        from.
        """
        if why := buildkit_only(context.dockerfile):
            raise BuildError(f"the Dockerfile needs BuildKit, which is not supported: {why}")
        text = rebased(context.dockerfile, self._base)
        total = hashlib.sha256(FORMAT + self._network.encode() + b"\0" + text.encode())
        for image in bases(text):
            total.update(str(self._engine.image(image)).encode())
        archive = tempfile.SpooledTemporaryFile(max_size=16 << 20)  # noqa: SIM115 - closed by the caller
        try:
            with tarfile.open(fileobj=archive, mode="w") as tar:
                for path, place in (*context_files(context.folder), *context.more):
                    if path in ("Dockerfile", ".dockerignore"):
                        continue  # what is ignored is left out here
                    total.update(_add(tar, path, place))
                entry = tarfile.TarInfo("Dockerfile")
                entry.size = len(text.encode())
                tar.addfile(entry, io.BytesIO(text.encode()))
            archive.seek(0)
        except BaseException:
            archive.close()
            raise
        return f"{NAME}:{total.hexdigest()[:32]}", archive

    def _made(self, name: str, archive: IO[bytes], seconds: float) -> str:
        try:
            if self._engine.image(name) is None:
                fault = self._engine.build(archive, name, self._network, seconds)
                if fault:
                    self._failed[name] = BuildError(fault)
                    raise self._failed[name]
                self.built += 1
        finally:
            archive.close()
        return name


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


def _add(tar: tarfile.TarFile, path: str, place: Path) -> bytes:
    """Add a file to the archive, and return what decides about the image: no times and owners."""
    entry = tar.gettarinfo(str(place), arcname=path)
    entry.uid = entry.gid = 0
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
