"""The service `containers`: a container per episode, of an image per task."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Self

from quintain import InfrastructureError, Service
from quintain.errors import UsageError

from .build_context import BuildContext
from .docker import connected
from .dockerfile import bases, mapped
from .program import WAITER_NAME
from .task_container import TaskContainer, TaskLimits

if TYPE_CHECKING:
    from .engine import ContainerEngine  # needs the extra
    from .task_images import TaskImages

WAITS = ("sh", "-c", "while :; do sleep 3600 & wait $!; done", WAITER_NAME)
"""The command of a container; an entry point of the image is started before it."""
DROPPED = ("AUDIT_WRITE", "MKNOD", "NET_RAW")
"""Capabilities of the engine's default that no task needs."""
log = logging.getLogger("quintain.sandbox")


class Containers(Service):
    """Containers of tasks: each is made of the task's own image, lives for an episode, and takes
    commands and files.

    Their programs are root in the container, as tasks expect, and its files can be written. So they
    are weaker walls than those of the providers of `sandbox`: the engine's own rules hold for
    system calls, and what they write to disk is not bounded.

    Attributes:
        slots: containers at one time; further ones wait.
        builds: images that are built at one time.
        images: local images by names and patterns of those that tasks name, such as
            ``{"python:3.*" = "my-python"}``.
        pull: whether the engine may fetch images from registries.
        build_network: of the commands of Dockerfiles: ``none``, ``host`` or a network of the
            engine, such as ``bridge``.
        network: the network of the engine for containers that may have one.
        processes: processes and threads in a container at one time.
        url: where the engine listens; empty for ``DOCKER_HOST``, else Docker's own socket.
    """

    def __init__(
        self,
        *,
        slots: int = 4,
        builds: int = 2,
        images: Mapping[str, str] | None = None,
        pull: bool = False,
        build_network: str = "none",
        network: str = "bridge",
        processes: int = 1024,
        url: str = "",
    ) -> None:
        if slots < 1 or builds < 1 or processes < 8:
            raise UsageError(
                f"containers: slots {slots}, builds {builds}, processes {processes}; expected at "
                "least 1, 1 and 8"
            )
        self.slots, self.builds, self.images = slots, builds, dict(images or {})
        self.pull, self.build_network, self.network = pull, build_network, network
        self.processes, self.url = processes, url
        self._engine: ContainerEngine | None = None

    @classmethod
    def check_available(cls, args: Mapping[str, Any]) -> None:
        """Check that an engine answers; see `quintain.Service.check_available`."""
        connected(str(args.get("url", ""))).close()

    async def __aenter__(self) -> Self:
        from .engine import is_stale, own_labels
        from .task_images import TaskImages

        self._engine = await asyncio.to_thread(connected, self.url)
        self._labels = own_labels()
        self._cpus = int((await asyncio.to_thread(self._engine.info)).get("NCPU") or 1)
        # A command holds a thread; opening one or removing a container takes another.
        self._executor = ThreadPoolExecutor(3 * self.slots + 2, thread_name_prefix="containers")
        self._builders = ThreadPoolExecutor(self.builds, thread_name_prefix="image builds")
        self._images = TaskImages(
            self._engine, self.images, self.build_network, self.pull, self._builders
        )
        self._free = asyncio.Semaphore(self.slots)
        self._ahead: set[asyncio.Task[None]] = set()
        others = await self._do(self._engine.containers)
        for container, labels in others.items():
            if is_stale(labels):
                await self._do(self._engine.remove, container)
        return self

    async def __aexit__(self, *exc: object) -> None:
        engine, self._engine = self._engine, None
        if engine is None:
            return
        for task in self._ahead:
            task.cancel()
        await asyncio.gather(*self._ahead, return_exceptions=True)
        try:
            for container, labels in (await self._do(engine.containers)).items():
                if labels.items() >= self._labels.items():
                    await self._do(engine.remove, container)
        except InfrastructureError as e:
            log.warning("containers may be left, which the next start removes: %s", e)
        await asyncio.to_thread(self._builders.shutdown)
        await asyncio.to_thread(self._executor.shutdown)
        engine.close()

    async def _do(self, function: Any, *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._executor, function, *args)

    def _started(self) -> tuple[ContainerEngine, TaskImages]:
        if self._engine is None:
            raise UsageError(
                "containers is not started; use 'async with Containers() as containers:'"
            )
        return self._engine, self._images

    async def image(self, source: BuildContext | str) -> str:
        """Return the image of a build context, or the local one for a name; built at most once for
        equal contents.

        Raises:
            BuildError: it cannot be built, or there is none.
            InfrastructureError: the engine failed.
        """
        _, images = self._started()
        return await (images.named(source) if isinstance(source, str) else images.of(source))

    def base_images(self, source: BuildContext | str) -> list[str]:
        """Return the images that the one of *source* is made of, as `images` maps them."""
        names = [source] if isinstance(source, str) else bases(source.dockerfile)
        return [mapped(name, self.images) for name in names]

    def build_ahead(self, sources: Iterable[BuildContext | str]) -> None:
        """Build images in the background, while episodes run. A failure shows where the image is
        needed.
        """
        self._started()

        async def built(source: BuildContext | str) -> None:
            with contextlib.suppress(Exception):
                await self.image(source)

        for source in sources:
            task = asyncio.ensure_future(built(source))
            self._ahead.add(task)
            task.add_done_callback(self._ahead.discard)

    @property
    def address(self) -> str:
        """Where the engine listens, as in ``DOCKER_HOST``."""
        return self._started()[0].url

    @property
    def built(self) -> int:
        """How many images this service built, in place of finding them."""
        return self._started()[1].built

    async def discard(self, image: str) -> None:
        """Remove an image that no episode needs any more, to free the disk."""
        engine, _ = self._started()
        await self._do(engine.remove_image, image)

    @contextlib.asynccontextmanager
    async def container(
        self,
        image: str,
        *,
        limits: TaskLimits | None = None,
        network: bool = False,
        workdir: str = "",
        variables: Mapping[str, str] | None = None,
        beside: bool = False,
    ) -> AsyncIterator[TaskContainer]:
        """Start a container; whatever runs in it ends with the block. Waits for a slot.

        Args:
            image: as `image` returned it.
            network: whether it gets the network of the service; else it has none but its own
                loopback device.
            workdir: of its commands; empty for that of the image.
            variables: of all its programs.
            beside: share the slot that the caller holds, instead of waiting for one: callers that
                each hold one and wait for a second would wait for ever.

        Raises:
            InfrastructureError: the engine failed, or the container ended at once.
        """
        engine, _ = self._started()
        limits = limits or TaskLimits(processes=self.processes)
        async with contextlib.nullcontext() if beside else self._free:
            config = await self._do(engine.config, image)
            name = ""
            try:
                name = await self._do(
                    lambda: engine.create(
                        image,
                        f"has no image {image!r}",
                        **self._settings(engine, limits, network, variables or {}),
                    )
                )
                await self._do(engine.start, name)
                state = await self._do(engine.inspect, name)
                if not state["Running"]:
                    raise InfrastructureError(
                        f"the container of image {image!r} ended at once, with status "
                        f"{state['ExitCode']}: its entry point does not start its command"
                    )
                container = TaskContainer(
                    engine, self._executor, name, image, workdir or config.get("WorkingDir") or "/"
                )
                await container.settle()
                yield container
            finally:
                if name:
                    await asyncio.shield(self._do(engine.remove, name))

    def _settings(
        self,
        engine: ContainerEngine,
        limits: TaskLimits,
        network: bool,
        variables: Mapping[str, str],
    ) -> dict[str, Any]:
        host = engine.host_settings(
            network_mode=self.network if network else "none",
            mem_limit=limits.memory,
            memswap_limit=limits.memory,
            pids_limit=limits.processes,
            # an engine refuses a quota above what it has
            nano_cpus=int(min(limits.cpus, self._cpus) * 1e9),
            cap_drop=list(DROPPED),
            log_config={"Type": "none"},
            oom_score_adj=500,
            init=True,
        )
        return {
            "command": list(WAITS),
            "hostname": "task",
            "environment": dict(variables),
            "labels": self._labels,
            "host_config": host,
        }
