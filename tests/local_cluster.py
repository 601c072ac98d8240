"""A cluster of processes on this machine, for what is placed on one."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from quintain.interfaces import ProcessRequest


class LocalProcess:
    """A process with its output in a file. It is not started again."""

    def __init__(self, request: ProcessRequest, folder: str) -> None:
        self.request, self.host = request, "127.0.0.1"
        self._path = Path(folder, secrets.token_hex(4))
        with self._path.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, *request.words],
                env=os.environ | dict(request.environment),
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    @property
    def ended(self) -> str | None:
        status = self.process.poll()
        if status is None:
            return None
        return f"exit code {status}: {self._path.read_text()}"

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


class LocalCluster:
    """Processes of this machine, in the order of their start.

    Attributes:
        room: how many may run at once; the next ones wait for ever.
    """

    def __init__(self, room: int = 1000) -> None:
        self.host, self.room = "127.0.0.1", room
        self.placed: list[LocalProcess | Waiting] = []
        self._outputs = tempfile.TemporaryDirectory()
        self._lock = threading.Lock()

    def start(self, requests: Sequence[ProcessRequest]) -> Sequence[LocalProcess | Waiting]:
        with self._lock:
            room = len(self.running) + len(requests) <= self.room
            started = [
                LocalProcess(r, self._outputs.name) if room else Waiting(r) for r in requests
            ]
            self.placed += started
        return started

    @property
    def running(self) -> list[LocalProcess]:
        """Those that run."""
        return [p for p in self.placed if isinstance(p, LocalProcess) and p.ended is None]

    def close(self) -> None:
        for one in self.placed:
            one.end()
        self._outputs.cleanup()


class Waiting:
    """A process for which there is no room."""

    host, ended = "", None

    def __init__(self, request: ProcessRequest) -> None:
        self.request = request

    def end(self) -> None:
        """Do nothing."""
