"""The process that plays episodes, as the machine sees it on which it runs."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import mmap
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from .frames import MARK

LOG_BYTES = 1 << 20
"""Of what a process has printed, kept for the message about its death."""
DUMPED = 0.2
"""Seconds that a process gets to print the line that runs."""


@dataclass(frozen=True, kw_only=True)
class End:
    """How a process ended.

    Attributes:
        code: its status, or less than 0 for a signal; ``None`` if nobody saw it.
        episode: number of the episode whose code ran then; 0 if none did, or nobody saw it.
        words: what it wrote last.
        why: in place of a code.
    """

    code: int | None = None
    episode: int = 0
    words: str = ""
    why: str = ""

    @property
    def how(self) -> str:
        """For people, such as ``"ended with status 3"``."""
        if self.code is None:
            return self.why
        if self.code < 0:
            often = ", as the kernel does when memory runs out" * (self.code == -signal.SIGKILL)
            return f"was ended by {signal.Signals(-self.code).name}{often}"
        return f"ended with status {self.code}"

    @property
    def killed(self) -> bool:
        """Whether it was killed as from outside, or nobody saw its end."""
        return self.code in (None, -signal.SIGKILL, -signal.SIGTERM)


def goes_before_the_run(pid: int) -> None:
    """Let the kernel end the process *pid* before this one where memory runs out."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/oom_score_adj").write_text("500")


class Child(Protocol):
    """A process that plays episodes, here or on another machine.

    Attributes:
        pid: its number on its machine.
        held: bytes of memory that it holds; 0 if unknown.
        where: its machine, as ``" on node1"``; empty for this one.
    """

    @property
    def pid(self) -> int: ...

    @property
    def held(self) -> int: ...

    @property
    def where(self) -> str: ...

    async def start(self) -> tuple[socket.socket, socket.socket]:
        """Start it; return connections to its frames and to what it asks of tokenizers.

        Raises:
            InfrastructureError: it cannot be started.
        """

    def kill(self) -> None:
        """End it and all that it started, by SIGKILL, unless it has ended."""

    async def ended(self, seconds: float | None = None) -> End | None:
        """Return how it ended, after waiting at most *seconds*; ``None`` if it has not."""

    async def line(self) -> str:
        """Return the file and line that its main thread runs; empty if it does not say."""

    def tidy(self) -> None:
        """Drop what it has printed, if that is much."""


class ChildProcess:
    """A process of this machine, see `Child`.

    Args:
        python: the interpreter, with the arguments before ``-c``.
        path: where it finds modules; ``None`` leaves its own.
    """

    where = ""

    def __init__(self, python: Sequence[str], path: Sequence[str] | None) -> None:
        self._python, self._path = python, path
        self._process: subprocess.Popen[bytes] | None = None
        self._end: End | None = None

    async def start(self) -> tuple[socket.socket, socket.socket]:
        ours, theirs = socket.socketpair()
        texts, their_texts = socket.socketpair()
        with theirs, their_texts:
            self.spawn(theirs, their_texts)
        return ours, texts

    def spawn(self, frames: socket.socket, texts: socket.socket) -> None:
        """Start it with its ends of two connections."""
        self._output = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - lives as long as it
        # so that what it prints after a truncation begins at 0
        flags = fcntl.fcntl(self._output, fcntl.F_GETFL)
        fcntl.fcntl(self._output, fcntl.F_SETFL, flags | os.O_APPEND)
        self._marks = tempfile.TemporaryFile()  # noqa: SIM115
        self._marks.truncate(MARK.size)
        self._memory = mmap.mmap(self._marks.fileno(), MARK.size)
        descriptors = (frames.fileno(), self._marks.fileno(), texts.fileno())
        path = "" if self._path is None else f"sys.path[:] = {[*self._path]!r}; "
        program = f"import sys; {path}from quintain_scale.workers.episode_worker import main; main{descriptors}"
        self._process = subprocess.Popen(
            [*self._python, "-c", program],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
            pass_fds=descriptors,
            env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )
        goes_before_the_run(self._process.pid)

    @property
    def pid(self) -> int:
        return self._started.pid

    @property
    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("the process was not started")
        return self._process

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._kill_group()

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    async def ended(self, seconds: float | None = None) -> End | None:
        if self._end is not None:
            return self._end
        process = self._started
        if seconds is None:
            await asyncio.to_thread(process.wait)
        else:
            deadline = time.monotonic() + seconds
            while process.poll() is None:
                if time.monotonic() > deadline:
                    return None
                await asyncio.sleep(0.005)
        self._kill_group()  # what it started and left
        (episode,) = MARK.unpack_from(self._memory, 0)
        self._end = End(code=process.returncode, episode=episode, words=self._last_words())
        self._output.close()
        self._memory.close()
        self._marks.close()
        return self._end

    def _last_words(self) -> str:
        size = os.fstat(self._output.fileno()).st_size
        text = os.pread(self._output.fileno(), 1000, max(0, size - 1000)).decode("utf-8", "replace")
        return f"; it wrote last: {text.strip()}" if text.strip() else ""

    @property
    def held(self) -> int:
        try:
            pages = Path(f"/proc/{self.pid}/statm").read_text().split()[1]
        except (OSError, IndexError):
            return 0
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    async def line(self) -> str:
        with contextlib.suppress(OSError):
            os.ftruncate(self._output.fileno(), 0)
            os.kill(self.pid, signal.SIGUSR1)  # it prints where it is
        await asyncio.sleep(DUMPED)
        if self._end is not None:
            return ""
        lines = os.pread(self._output.fileno(), 4000, 0).decode("utf-8", "replace").splitlines()
        os.ftruncate(self._output.fileno(), 0)
        return next((line.strip() for line in lines if line.startswith("  File")), "")

    def tidy(self) -> None:
        if self._end is None and os.fstat(self._output.fileno()).st_size > LOG_BYTES:
            os.ftruncate(self._output.fileno(), 0)
