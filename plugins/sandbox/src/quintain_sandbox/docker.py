"""The provider `docker`: containers of an engine, Docker or podman; gVisor's kernel where the
engine has it.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quintain import InfrastructureError
from quintain.errors import UsageError

from .axes import AXES, Axes
from .container import WAITER, DockerBox, Waiting, started
from .opened import Box
from .pool import ContainerPool, Shape
from .program import ENVIRONMENT, HOME, Program, ProgramLimits
from .protocol import SLOTS, ProbedSandbox
from .running import BESIDE
from .syscalls import seccomp_profile

if TYPE_CHECKING:
    from .engine import ContainerEngine

log = logging.getLogger("quintain.sandbox")
IMAGE = "quintain-sandbox"
BUILD = "build it: quintain build-image"
INSTALL = "pip install 'quintain-sandbox[docker]'"
USERS = 2_100_000_000
"""First user id of the containers: above those of users, of services and of bubblewrap's boxes."""
MAPPED_USERS = 20_000
"""The same for an engine that maps user ids, of which it usually has 65,536."""
BLOCKS, PER_BLOCK = 8, 256
"""User ids of one trainer are a block, so that two trainers share none."""
USER = "quintain.sandbox.user"
"""Label of a container's user id."""
GVISOR = "runsc"


class Docker(ProbedSandbox):
    """Each program gets a container of its own, without a network, a writable system or
    capabilities.

    Attributes:
        slots: programs at one time.
        warm: containers that wait for a program, started ahead; 0 starts each when it is asked for.
        enforce: axes that must be enforced, else the service does not start. Leave out of it what
            you can do without; the default is all.
        image: name of the image. Its ``/bin/sh`` starts the programs, and it needs ``mkdir``,
            ``dd`` and ``sleep``.
        runtime: the engine's runtime; ``auto`` is gVisor (``runsc``) where the engine lists it,
            else its default.
        cpus: CPUs of each program, as a quota.
        url: where the engine listens, such as ``unix:///run/podman/podman.sock``; empty for
            ``DOCKER_HOST``, else Docker's own socket.
    """

    def __init__(
        self,
        *,
        slots: int = SLOTS,
        warm: int = 8,
        enforce: Axes = tuple(AXES),
        image: str = IMAGE,
        runtime: str = "auto",
        cpus: float = 1.0,
        url: str = "",
    ) -> None:
        room = PER_BLOCK - BESIDE
        if slots < 1 or warm < 0 or slots + warm > room // 2:
            raise UsageError(
                f"docker.slots is {slots} and docker.warm {warm}; expected at most {room // 2} "
                f"together"
            )
        if not 0 < cpus <= 1024:
            raise UsageError(f"docker.cpus is {cpus}; expected a positive number")
        super().__init__(slots=slots, enforce=enforce)
        self.warm, self.image, self.runtime, self.cpus, self.url = warm, image, runtime, cpus, url
        self._fleet: _Fleet | None = None

    @classmethod
    def check_available(cls, args: Mapping[str, Any]) -> None:
        """Check that an engine answers; see `quintain.Service.check_available`."""
        connected(str(args.get("url", ""))).close()

    def prepare(self) -> None:
        """Connect to the engine; see `ProbedSandbox.prepare`."""
        self._fleet = _Fleet(self)

    async def settle(self) -> None:
        """Begin to start containers ahead."""
        assert self._fleet is not None
        self._fleet.pool.fill(Shape.of(ProgramLimits()))

    def release(self) -> None:
        """Close the containers and the connection to the engine; see `ProbedSandbox.release`."""
        fleet, self._fleet = self._fleet, None
        if fleet is not None:
            fleet.close()

    def open_box(self, program: Program) -> Box:
        """Start *program* in a container that waits for one of its shape; see
        `ProbedSandbox.open_box`.
        """
        fleet = self._fleet
        if fleet is None:
            raise self.not_started()
        return DockerBox(
            fleet.engine, fleet.pool.take(Shape.of(program.limits)), program, fleet.discard
        )

    def ready(self) -> int:
        """Return how many containers wait for a program."""
        return 0 if self._fleet is None else self._fleet.pool.ready()

    def fix(self, axis: str) -> str:
        """Return the advice for *axis*; see `ProbedSandbox.fix`."""
        if axis in ("memory", "forks"):
            return (
                "the engine ignores limits, as rootless engines do on control groups of version 1: "
                "run it as root"
            )
        if axis == "users":
            return (
                "the engine runs on another kernel, or programs as the trainer: leave it out of "
                "docker.enforce"
            )
        if axis == "syscalls":
            return "the engine does not apply seccomp profiles: docker info must list seccomp"
        if axis in ("disk", "output", "time"):
            return super().fix(axis)
        return f"the image or the engine differs from what the provider expects; {BUILD}"


class _Fleet:
    """The containers of a started service. Constructing it connects to the engine; `close` removes
    all of them.

    Raises:
        InfrastructureError: there is no engine or no image; the message has the command that helps.
        UsageError: the engine does not list the runtime that the service asks for.
    """

    def __init__(self, service: Docker) -> None:
        self.engine = connected(service.url)
        self._service = service
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        try:
            self._prepare(service)
        except BaseException:
            self.engine.close()
            raise

    def _prepare(self, service: Docker) -> None:
        from .engine import is_stale, own_labels

        info = self.engine.info()
        self._missing = f"has no image {service.image!r}; {BUILD}"
        image = self.engine.image(service.image)
        if image is None:
            raise InfrastructureError(f"the container engine at {self.engine.url} {self._missing}")
        self._image = image
        self._labels = own_labels()
        others = self.engine.containers()
        for container, labels in others.items():
            if is_stale(labels):
                self.engine.remove(container)
        self._is_podman = self.engine.is_podman
        self._runtime = _runtime(service.runtime, info, self._is_podman)
        self._profile = json.dumps(seccomp_profile(str(info.get("Architecture", ""))))
        if self._is_podman:  # takes the profile from a file
            self._folder = tempfile.TemporaryDirectory(prefix="quintain-sandbox-")
            file = Path(self._folder.name, "seccomp.json")
            file.write_text(self._profile)
            self._profile = str(file)
        self._users = _users(info, others)
        self._lock = threading.Lock()
        self._removals = ThreadPoolExecutor(2, thread_name_prefix="docker removal")
        self.pool = ContainerPool(service.warm, self.make, self.discard)

    def make(self, shape: Shape) -> Waiting:
        """Create and start a container that waits."""
        with self._lock:
            if not self._users:
                raise InfrastructureError("the engine does not remove containers; see its log")
            user = self._users.popleft()  # the one that was not used for longest
        container = ""
        try:
            container = self.engine.create(
                self._image, self._missing, **self._settings(shape, user)
            )
            return started(self.engine, container, user)
        except BaseException:
            self._removals.submit(self._remove, container, user)
            raise

    def _settings(self, shape: Shape, user: int) -> dict[str, Any]:
        """Return the arguments of docker's SDK; every limit that the engine can keep."""
        temporary = f"rw,nosuid,nodev,exec,mode=1777,size={shape.disk}"
        if not self._is_podman:  # which leaves inodes to the limit on memory
            temporary += f",nr_inodes={max(1024, shape.disk // 4096)}"
        host = self.engine.host_settings(
            network_mode="none",
            ipc_mode="private",
            read_only=True,
            tmpfs={"/tmp": temporary},
            shm_size=shape.disk,
            mem_limit=shape.memory,
            memswap_limit=shape.memory,
            pids_limit=shape.processes + 1,  # the shell
            nano_cpus=int(self._service.cpus * 1e9),
            cap_drop=["ALL"],
            security_opt=["no-new-privileges", f"seccomp={self._profile}"],
            ulimits=[
                {"Name": name, "Soft": value, "Hard": value}
                for name, value in _ulimits(shape).items()
            ],
            log_config={"Type": "none"},
            oom_score_adj=500,
            runtime=self._runtime,
        )
        return {
            "command": WAITER,
            "user": f"{user}:{user}",
            "hostname": "sandbox",
            "stdin_open": True,
            "environment": dict(ENVIRONMENT),
            "labels": self._labels | {USER: str(user)},
            "host_config": host,
            "network_disabled": True,
        }

    def discard(self, waiting: Waiting) -> None:
        """Close the connection of a container, and have it removed in the background."""
        waiting.close()
        self._removals.submit(self._remove, waiting.id, waiting.user)

    def _remove(self, container: str, user: int) -> None:
        try:
            if container:
                self.engine.remove(container)
        except InfrastructureError as e:
            log.warning("a container is left, which the next start removes: %s", e)
            return  # its user id stays taken
        with self._lock:
            self._users.append(user)

    def close(self) -> None:
        """Remove all containers of this process."""
        self.pool.close()
        self._removals.shutdown()
        try:
            for container, labels in self.engine.containers().items():
                if labels.items() >= self._labels.items():
                    self.engine.remove(container)
        except InfrastructureError as e:
            log.warning("containers may be left, which the next start removes: %s", e)
        if self._folder is not None:
            self._folder.cleanup()
        self.engine.close()


def build_image(
    name: str,
    packages: Sequence[str] = (),
    url: str = "",
    *,
    again: bool = False,
    progress: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Build the image of this provider on this machine, unless the engine has one with the same
    contents.

    Args:
        name: of the image; its tags are ``latest`` and one made of the contents.
        packages: installed distributions to add.

    Returns:
        ``image`` with the tag of its contents, ``id``, ``bytes``, ``files``, and whether it was
        ``built`` now.

    Raises:
        InfrastructureError: there is no engine, or it is full, or a tool is missing on this
            machine.
        UsageError: a distribution is not installed.
    """
    from .image import python_image

    engine = connected(url)
    try:
        users = range(USERS, USERS + BLOCKS * PER_BLOCK)
        image = python_image(users, HOME, packages, progress)
        tag = f"py{sys.version_info.major}.{sys.version_info.minor}-{image.digest()[:12]}"
        known = None if again else engine.image(f"{name}:{tag}")
        built = known is None
        if known is None:
            progress("import")
            changes = [
                f"ENV PATH={ENVIRONMENT['PATH']}",
                f"LABEL quintain.sandbox.content={tag}",
                'CMD ["/usr/bin/python3"]',
            ]
            with tempfile.TemporaryFile() as archive:
                image.write_archive(archive)
                archive.seek(0)
                known = engine.import_image(archive, name, tag, changes)
        engine.tag(f"{name}:{tag}", name, "latest")
    finally:
        engine.close()
    size = sum(
        len(c) if isinstance(c, bytes) else c.stat().st_size for c, _ in image.files.values()
    )
    return {
        "image": f"{name}:{tag}",
        "id": known,
        "bytes": size,
        "files": len(image.files),
        "built": built,
    }


def _ulimits(shape: Shape) -> dict[str, int]:
    """Return the limits of each process, and of the user for processes: the second line, above that
    of the control group.
    """
    return {
        "nofile": shape.open_files,
        "fsize": shape.disk,
        "core": 0,
        "nproc": shape.processes + 16,
    }


def connected(url: str) -> ContainerEngine:
    """Return a client of the engine at *url*; see `ContainerEngine`.

    Raises:
        InfrastructureError: there is no engine, or the package of its client is not installed.
    """
    try:
        from .engine import ContainerEngine
    except ModuleNotFoundError as e:
        raise InfrastructureError(
            f"the provider docker needs the package {e.name!r}; {INSTALL}"
        ) from e
    return ContainerEngine(url)


def _runtime(wanted: str, info: Mapping[str, Any], is_podman: bool) -> str | None:
    """Return the runtime to ask for; ``None`` for the engine's default."""
    known = info.get("Runtimes") or {}
    if wanted == "auto":
        # podman lists all that it knows, with the place where each would be
        listed = GVISOR in known and not (
            is_podman and not Path(str(known[GVISOR].get("path"))).exists()
        )
        return GVISOR if listed else None
    if wanted not in known:
        raise UsageError(
            f"docker.runtime is {wanted!r}; the engine lists {', '.join(sorted(known))}"
        )
    return wanted


def _users(info: Mapping[str, Any], others: Mapping[str, Mapping[str, str]]) -> deque[int]:
    """Return the user ids of this trainer's containers: a block of which no container of others has
    one.
    """
    mapped = any(
        "rootless" in option or "userns" in option for option in info.get("SecurityOptions") or ()
    )
    base = MAPPED_USERS if mapped else USERS
    taken = {(int(labels.get(USER, base)) - base) // PER_BLOCK for labels in others.values()}
    order = [(os.getpid() + n) % BLOCKS for n in range(BLOCKS)]
    block = next((block for block in order if block not in taken), order[0])
    return deque(base + block * PER_BLOCK + place for place in range(PER_BLOCK))
