"""Images of tasks: built from a folder with a Dockerfile, once for equal contents."""

from __future__ import annotations

import asyncio
import hashlib
import io
import tarfile
import tempfile
from collections.abc import Mapping
from concurrent.futures import Executor
from typing import IO

from .build_context import BuildContext, BuildError, add_file, context_files
from .dockerfile import bases, buildkit_only, mapped, rebased
from .engine import ContainerEngine

NAME = "quintain-task"
"""Of all images that are built here; the tag is made of the contents."""
FORMAT = b"1"
"""Changed when equal contents are to give another image."""


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

    async def of(self, context: BuildContext) -> str:
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

    def _packed(self, context: BuildContext) -> tuple[str, IO[bytes]]:
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
                    total.update(add_file(tar, path, place))
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
