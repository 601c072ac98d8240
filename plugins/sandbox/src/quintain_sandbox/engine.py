"""The container engine: the few calls that boxes need, and its failures as errors that name the
fix.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import docker  # type: ignore[import-untyped]
import requests.exceptions
from urllib3.exceptions import HTTPError

from quintain import InfrastructureError

LABEL = "quintain.sandbox"
"""Label of every container that a sandbox makes; its value differs from service to service."""
MACHINE, PROCESS = f"{LABEL}.machine", f"{LABEL}.process"
"""Labels of its trainer: the machine's name, and the boot, the process id and the start time of the
process there.
"""
CALL_SECONDS = 60.0
"""How long the engine may take to answer on a loaded machine."""
BUILD_LINES = 12
"""Last lines of a build that its error shows."""
BUILD_TEXT = 2000
"""Most characters of it."""
PAUSES = (0.1, 0.3, 1.0, 3.0)
"""Seconds between attempts to remove a container that the engine is busy with."""
START = (
    "start one (Debian: apt-get install docker.io, then dockerd), or name its socket in DOCKER_HOST"
)
FULL = "free space on the engine's disk: docker system prune"


class ContainerEngine:
    """A client of an engine's API, Docker's or podman's. Methods block; threads share it.

    Args:
        url: such as ``unix:///run/podman/podman.sock``; empty for ``DOCKER_HOST``, else Docker's
            own socket.

    Raises:
        InfrastructureError: no engine answers there. All methods raise it, too.
    """

    def __init__(self, url: str = "") -> None:
        self.url = url or os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
        settings = docker.utils.kwargs_from_env() | ({"base_url": url} if url else {})
        with self._reported("does not answer"):
            self._api = docker.APIClient(
                version="auto", timeout=CALL_SECONDS, max_pool_size=32, **settings
            )
        # `requests` reads all environment variables at every call, from threads of the pool, and
        # fails if another thread removes one then. Proxies are for images, which the engine pulls.
        self._api.trust_env = False

    def close(self) -> None:
        """Close its connections."""
        self._api.close()

    @property
    def is_podman(self) -> bool:
        """Whether it is podman, whose API differs from Docker's in places."""
        with self._reported("does not answer"):
            parts = self._api.version().get("Components") or ()
        return any("podman" in str(part.get("Name", "")).lower() for part in parts)

    def info(self) -> Mapping[str, Any]:
        """Return what the engine says about itself: ``Runtimes``, ``SecurityOptions``,
        ``Driver``.
        """
        with self._reported("does not answer"):
            info: Mapping[str, Any] = self._api.info()
        return info

    def image(self, name: str) -> str | None:
        """Return the id of an image; ``None`` if the engine does not have it."""
        with (
            self._reported("cannot inspect an image"),
            contextlib.suppress(docker.errors.ImageNotFound),
        ):
            return str(self._api.inspect_image(name)["Id"])
        return None

    def import_image(self, archive: IO[bytes], name: str, tag: str, changes: list[str]) -> str:
        """Make an image of a tar archive; its id."""
        with self._reported("cannot import an image"):
            answer = self._api.import_image_from_data(
                archive, repository=name, tag=tag, changes=changes
            )
            report = json.loads(answer.strip().splitlines()[-1])
            if "status" not in report:  # such as {"error": "... no space left on device"}
                raise docker.errors.APIError(
                    str(report), explanation=str(report.get("error", answer))
                )
            self._api.tag(report["status"], name, tag)  # podman calls it latest
            return str(report["status"])

    def build(self, archive: IO[bytes], name: str, network: str, seconds: float) -> str:
        """Build an image of a tar archive with a Dockerfile; why it failed, empty if it did not.

        Args:
            name: of the image, with a tag.
            network: of the commands: ``none``, ``host``, or a network of the engine.
            seconds: after which the build is given up.
        """
        deadline, lines = time.monotonic() + seconds, deque[str](maxlen=BUILD_LINES)
        late = f"the build took more than {seconds:g} s"
        with self._reported("cannot build an image"):
            try:
                answer = self._api.build(
                    fileobj=archive,
                    custom_context=True,
                    tag=name,
                    rm=True,
                    forcerm=True,
                    network_mode=network,
                    decode=True,
                    timeout=seconds,
                )
                for item in answer:
                    lines += str(item.get("stream", "")).splitlines()
                    if "error" in item:
                        said = " | ".join(filter(str.strip, lines))
                        return f"{item['error']}; it said: {said}"[:BUILD_TEXT]
                    if time.monotonic() > deadline:
                        answer.close()  # ends the build
                        return late
            except (requests.exceptions.RequestException, HTTPError):
                # a command that prints nothing meets the limit on waiting for the next line
                if time.monotonic() < deadline:
                    raise
                return late
        return ""

    def pull(self, image: str) -> None:
        """Fetch an image from its registry."""
        with self._reported(f"cannot pull the image {image!r}"):
            self._api.pull(image)

    def config(self, image: str) -> Mapping[str, Any]:
        """Return what an image says of its programs: ``WorkingDir``, ``User``, ``Env``."""
        with self._reported("cannot inspect an image"):
            config: Mapping[str, Any] = self._api.inspect_image(image)["Config"] or {}
        return config

    def remove_image(self, image: str) -> None:
        """Remove an image; nothing happens if it is gone or in use."""
        with (
            self._reported("cannot remove an image"),
            contextlib.suppress(docker.errors.ImageNotFound),
        ):
            self._api.remove_image(image, force=True, noprune=False)

    def tag(self, image: str, name: str, tag: str) -> None:
        """Give an image one more tag, or move that tag to it."""
        with self._reported("cannot tag an image"):
            self._api.tag(image, name, tag)

    def host_settings(self, **settings: Any) -> Mapping[str, Any]:
        """Return the limits and the isolation of a container, in the words of the API; see
        ``create_host_config`` of docker's SDK.
        """
        config: Mapping[str, Any] = self._api.create_host_config(**settings)
        return config

    def create(self, image: str, missing: str, **settings: Any) -> str:
        """Create a container; its id. *missing* is what to say of the engine if it does not have
        the image.
        """
        with self._reported(missing):
            return str(self._api.create_container(image, **settings)["Id"])

    def attach(self, container: str) -> socket.socket:
        """Return a connection to the standard streams; output comes in frames (see
        `container.Frames`).
        """
        streams = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
        with self._reported("cannot attach to a container"):
            stream = self._api.attach_socket(container, params=streams)
        connection = socket.socket(fileno=os.dup(stream.fileno()))
        stream._response.close()  # the client's hold on it; the connection stays open by the copy
        return connection

    def start(self, container: str) -> None:
        """Start its first process."""
        with self._reported("cannot start a container"):
            self._api.start(container)

    def open_command(
        self, container: str, argv: Sequence[str], **settings: Any
    ) -> tuple[str, socket.socket, bytes]:
        """Start a command in a running container; its id, a connection to its streams, whose output
        comes in frames, and what of it has come already.

        Args:
            settings: ``user``, ``workdir``, ``environment``; see ``exec_create`` of docker's SDK.
        """
        with self._reported("cannot start a command"):
            command = str(
                self._api.exec_create(container, list(argv), stdin=True, **settings)["Id"]
            )
            stream = self._api.exec_start(command, socket=True)
        # A command that ends at once has its output in one packet with the engine's header, which
        # the client has read into its buffer.
        stream._sock.setblocking(False)
        early: bytes = stream._response.raw._fp.fp.peek() or b""
        connection = socket.socket(fileno=os.dup(stream.fileno()))
        stream._response.close()
        return command, connection, early

    def exit_status(self, command: str) -> int | None:
        """Return how a command ended; ``None`` while it runs."""
        with self._reported("cannot inspect a command"):
            code = self._api.exec_inspect(command)["ExitCode"]
        return None if code is None else int(code)

    def write_archive(self, container: str, folder: str, archive: IO[bytes] | bytes) -> None:
        """Unpack a tar archive into a folder of a container, which must exist."""
        with self._reported("cannot write files"):
            self._api.put_archive(container, folder, archive)

    def read_archive(self, container: str, path: str, limit: int) -> bytes | None:
        """Return a file or folder of a container as a tar archive; ``None`` if there is none, or
        more than *limit* bytes.
        """
        with self._reported("cannot read files"):
            try:
                pieces, _ = self._api.get_archive(container, path)
            except docker.errors.NotFound:
                return None
            data = bytearray()
            for piece in pieces:
                data += piece
                if len(data) > limit:
                    pieces.close()
                    return None
        return bytes(data)

    def inspect(self, container: str) -> Mapping[str, Any]:
        """Return the state of *container*: ``Running``, ``Pid``, ``OOMKilled``, ``ExitCode``."""
        with self._reported("cannot inspect a container"):
            state: Mapping[str, Any] = self._api.inspect_container(container)["State"]
        return state

    def kill(self, container: str) -> None:
        """End all processes of a container by SIGKILL; nothing happens if it has ended."""
        with self._reported("cannot kill a container"):
            try:
                self._api.kill(container)
            except docker.errors.APIError as e:
                if e.status_code not in (404, 409):  # it is gone, or not running
                    raise

    def remove(self, container: str) -> None:
        """Remove a container and kill its processes; nothing happens if it is gone."""
        with self._reported("cannot remove a container"):
            for pause in (*PAUSES, None):
                try:
                    self._api.remove_container(container, force=True, v=True)
                except docker.errors.APIError as e:
                    if e.status_code == 404:
                        return
                    if e.status_code != 409 or pause is None:
                        raise
                    time.sleep(pause)  # it is ending, or being removed
                else:
                    return

    def containers(self) -> dict[str, Mapping[str, str]]:
        """Return the labels of all containers of sandboxes, also of other trainers, by id."""
        with self._reported("cannot list containers"):
            rows = self._api.containers(all=True, filters={"label": LABEL})
        return {str(item["Id"]): item["Labels"] for item in rows}

    @contextlib.contextmanager
    def _reported(self, failure: str) -> Iterator[None]:
        try:
            # the client leaves a socket open where nothing listens
            if self.url.startswith("unix://"):
                with socket.socket(socket.AF_UNIX) as probe:
                    probe.connect(self.url.removeprefix("unix://"))
            yield
        except docker.errors.APIError as e:
            error_text = str(e.explanation or e)
            if "no space left" in error_text or "disk quota" in error_text:
                raise InfrastructureError(
                    f"the container engine's disk is full; {FULL} ({error_text})"
                ) from e
            if e.status_code == 404 and "image" in error_text.lower():
                raise InfrastructureError(f"the container engine at {self.url} {failure}") from e
            raise InfrastructureError(
                f"the container engine at {self.url} refused a call: {error_text[:300]}"
            ) from e
        except (
            docker.errors.DockerException,
            requests.exceptions.RequestException,
            HTTPError,
            OSError,
        ) as e:
            raise InfrastructureError(f"no container engine answers at {self.url}; {START}") from e


def own_labels() -> dict[str, str]:
    """Return the labels for the containers of one more service of this process."""
    process = f"{_boot()} {os.getpid()} {_started(os.getpid())}"
    return {LABEL: secrets.token_hex(8), MACHINE: socket.gethostname(), PROCESS: process}


def is_stale(labels: Mapping[str, str]) -> bool:
    """Return whether the trainer that made a container lived on this machine and has died."""
    boot, pid, started, *_ = [*labels.get(PROCESS, "").split(), "", "", ""]
    if labels.get(MACHINE) != socket.gethostname() or not pid.isdigit():
        return False
    return boot != _boot() or started != _started(int(pid))


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _started(pid: int) -> str:
    """Return when a process started, in ticks since the boot; empty if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""
