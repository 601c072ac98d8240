"""The providers of sandboxes, started for tests."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from quintain.errors import InfrastructureError
from quintain_sandbox import (
    Bubblewrap,
    Docker,
    Landlock,
    ProbedSandbox,
    Program,
    ProgramResult,
    Rlimits,
)
from quintain_sandbox.cgroups import PREFIX, own_controllers
from quintain_sandbox.docker import USER, build_image
from quintain_sandbox.folder import place_of_folders
from quintain_sandbox.local import LocalSandbox
from quintain_sandbox.running import RunningProgram

PROVIDERS = (
    "bubblewrap",
    "landlock",
    pytest.param("rlimits", marks=pytest.mark.slow),
    pytest.param("docker", marks=pytest.mark.ci),
)
"""Parameters of fixtures of suites that hold for all providers."""
MAKE: dict[str, Callable[..., ProbedSandbox]] = {
    "bubblewrap": Bubblewrap,
    "docker": Docker,
    "landlock": Landlock,
    "rlimits": functools.partial(Rlimits, allow_unsafe=True),
}


def started(provider: str = "bubblewrap", *, slots: int, **settings: Any) -> Iterator[Any]:
    """A service that runs until the generator ends; skips the test where it cannot start."""
    if provider == "docker" and "url" not in settings:
        image()
    service = MAKE[provider](slots=slots, enforce=(), **settings)
    try:
        asyncio.run(service.__aenter__())
    except InfrastructureError as e:
        if provider == "docker":
            raise  # the engine answers and the image is there
        pytest.skip(f"{provider} does not work here: {e}")
    yield service
    asyncio.run(service.__aexit__())


@functools.cache
def image() -> str:
    """The image of `docker`, built of this Python; skips the test where no engine answers, unless
    one is promised.
    """
    pytest.importorskip("docker")
    try:
        return str(build_image("quintain-sandbox", progress=lambda line: None)["image"])
    except InfrastructureError as e:
        if "DOCKER_HOST" in os.environ:
            raise
        pytest.skip(str(e))


@contextlib.contextmanager
def on_podman() -> Iterator[str]:
    """The address of a podman of the test's own, with the image of `docker`; skips the test where
    there is none.
    """
    runtime = shutil.which("runc")
    if os.getuid() != 0 or shutil.which("podman") is None or runtime is None:
        pytest.skip("needs root, podman and runc (Debian: apt-get install podman runc)")
    pytest.importorskip("docker")
    # A container that ends may still write its state beside the service that was stopped.
    with tempfile.TemporaryDirectory(
        prefix="quintain-podman-", ignore_cleanup_errors=True
    ) as folder:
        url = f"unix://{folder}/socket"
        podman = [
            "podman",
            "--root",
            f"{folder}/root",
            "--runroot",
            f"{folder}/run",
            "--cgroup-manager",
            "cgroupfs",
        ]
        serve = [*podman, "--runtime", runtime, "system", "service", "--time=0", url]
        with subprocess.Popen(serve, cwd=folder, stderr=subprocess.DEVNULL) as service:
            try:
                await_nothing(lambda: refusals(f"{folder}/socket"), 30.0)
                build_image("quintain-sandbox", url=url, progress=lambda line: None)
                yield url
            finally:
                service.terminate()
                service.wait()
                subprocess.run(
                    [*podman, "system", "reset", "--force"], check=False, capture_output=True
                )


def refusals(path: str) -> list[str]:
    """Why nothing can connect to a socket; it is there a moment before its server listens."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError as error:
            return [str(error)]
    return []


def processes_of(user: int | None) -> list[str]:
    """Processes of a user of boxes, zombies too."""
    found = []
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            if f"\nUid:\t{user}\t" in (text := status.read_text()):
                found.append(f"process {status.parent.name} {text.split()[1]}")
    return found


def processes_with(word: bytes) -> list[str]:
    """Processes with *word* among those of their command line."""
    folders = Path("/proc").glob("[0-9]*")
    return [
        folder.name for folder in folders if word in command_line(int(folder.name)).split(b"\0")
    ]


def containers_of(service: Docker, user: int) -> list[str]:
    """Containers of sandboxes with a user id."""
    assert service._fleet is not None
    return [
        name
        for name, labels in service._fleet.engine.containers().items()
        if labels.get(USER) == str(user)  # containers of tasks have none
    ]


def run_as(sandbox: ProbedSandbox, user: int | None, program: Program) -> ProgramResult:
    """Run *program* as *user*, so that the next one finds what it left; `docker` has users of its
    own.
    """
    running = RunningProgram(program)
    if isinstance(sandbox, LocalSandbox):
        running._run(lambda program: sandbox.box(program, user, lambda: None))
    else:
        running._run(sandbox.open_box)
    return running._result.result()


def left_behind(user: int | None) -> list[str]:
    """Processes of *user* and of this process' launchers, zombies too, and control groups and
    folders of runs.
    """
    processes = {}
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            lines = dict(
                line.split(":\t", 1) for line in status.read_text().splitlines() if ":\t" in line
            )
            processes[int(status.parent.name)] = lines
    launchers = {
        pid
        for pid, lines in processes.items()
        if int(lines["PPid"]) == os.getpid() and b"launcher_main.py" in command_line(pid)
    }
    found = []
    for pid, lines in processes.items():
        its = user not in (None, os.getuid()) and int(lines["Uid"].split()[0]) == user
        if int(lines["PPid"]) in launchers or its:
            found.append(f"process {pid} {lines['Name']}")
    places = own_controllers()
    for place in {
        places.memory,
        places.pids,
        place_of_folders(counted=True),
        place_of_folders(counted=False),
    } - {None}:
        assert place is not None
        found += [str(folder) for folder in place.glob(f"{PREFIX}-{os.getpid()}-*")]
    return found


def await_nothing(left: Callable[[], list[str]], seconds: float) -> None:
    """Fail if *left* still lists something after *seconds*."""
    deadline = time.monotonic() + seconds
    while found := left():
        assert time.monotonic() < deadline, found
        time.sleep(0.02)


def command_line(pid: int) -> bytes:
    """What a process was started with; empty for one that is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""
