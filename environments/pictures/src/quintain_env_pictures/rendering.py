"""Draws SVG that a policy wrote, in a process of its own, without files and network."""

from __future__ import annotations

import atexit
import importlib.util
import io
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from functools import lru_cache
from pathlib import Path

from PIL import Image

from quintain.errors import InfrastructureError, PolicyFault, UsageError

from . import svg_worker
from .svg_worker import CHARACTERS, DRAWN, LENGTH

LARGEST_REPLY = 1 << 24
BY_THE_DRAWING = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS)
"""How the renderer ends where it lacks memory or stack."""
KNOWN = b'{"svg": "<svg><rect width=\\"9\\" height=\\"9\\"/></svg>", "size": 16}'
"""A request that every renderer meets."""
SIZES = range(1, 1025)
MOST_PATIENCE = 20
"""Times the patience that one drawing may take, on a machine that hardly computes it."""


class DrawingFault(PolicyFault):
    """What the policy wrote is no SVG, or none that is drawn here; the message says why."""


class _Died(Exception):
    """The process ended without a reply, with a status of `subprocess`."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class DrawingProcess:
    """A process that draws one drawing at a time; started when there is one to draw.

    Attributes:
        cpu_seconds: of a drawing; the kernel ends the process then.
        memory: of the process, MiB.
        patience: seconds by the clock in which a process that waits for no CPU does something. One
            that computes is waited for, up to `MOST_PATIENCE` times as long: on a machine with much
            to do, it ends by *cpu_seconds* as on any other.
    """

    def __init__(
        self, *, cpu_seconds: float = 2.0, memory: int = 512, patience: float = 30.0
    ) -> None:
        self.cpu_seconds, self.memory, self.patience = cpu_seconds, memory, patience
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        # A process and its pipes belong to one parent, and a lock that is held stays so in a child.
        os.register_at_fork(
            before=self._pause,
            after_in_parent=self._lock.release,
            after_in_child=self._lock.release,
        )

    @property
    def pid(self) -> int | None:
        """Of the process; ``None`` where none runs."""
        return self._process.pid if self._process else None

    def draw(self, svg: str, size: int) -> bytes:
        """Return the PNG of *svg*; raises as `render`."""
        request = json.dumps({"svg": svg, "size": size}).encode()
        with self._lock:
            try:
                reply = self._ask(request)
            except _Died as died:
                self._check_time(died.status)
                reply = self._again(request)
        if reply[:1] == DRAWN:
            return reply[1:]
        raise DrawingFault(reply[1:].decode("utf-8", "replace"))

    def _again(self, request: bytes) -> bytes:
        """Draw in a new process: the old one may have been killed by another, or be short of what
        earlier drawings took. A known drawing comes first, for a renderer that does not work is
        nobody's fault.
        """
        known = False
        try:
            self._ask(KNOWN)
            known = True
            return self._ask(request)
        except _Died as died:
            self._check_time(died.status)
            if known and -died.status in BY_THE_DRAWING:
                raise DrawingFault(
                    f"it takes more memory than {self.memory} MiB to draw, or is nested too deep"
                ) from died
            raise InfrastructureError(
                f"the process that draws SVG ended with status {died.status}; check that "
                f"`{sys.executable} -c 'import resvg_py'` works and that the machine has memory"
            ) from died

    def _check_time(self, status: int) -> None:
        if status == -signal.SIGPROF:
            raise DrawingFault(f"it takes more than {self.cpu_seconds:g} s to draw")

    def _ask(self, request: bytes) -> bytes:
        self._started()
        deadline = time.monotonic() + MOST_PATIENCE * self.patience
        try:
            self._write(LENGTH.pack(len(request)) + request, deadline)
            length = LENGTH.unpack(self._read(LENGTH.size, deadline))[0]
            return self._read(min(length, LARGEST_REPLY), deadline)
        except BrokenPipeError as error:
            raise _Died(self._ended()) from error
        except BaseException:
            self._stop()
            raise

    def _write(self, data: bytes, deadline: float) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        pipe = self._process.stdin.fileno()
        while data:
            self._wait(pipe, select.POLLOUT, deadline)
            data = data[os.write(pipe, data) :]

    def _read(self, count: int, deadline: float) -> bytes:
        assert self._process is not None
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        data = b""
        while len(data) < count:
            self._wait(pipe, select.POLLIN, deadline)
            chunk = os.read(pipe, count - len(data))
            if not chunk:
                raise _Died(self._ended())
            data += chunk
        return data

    def _wait(self, pipe: int, event: int, deadline: float) -> None:
        waiting = select.poll()  # `select.select` refuses descriptors above 1023
        waiting.register(pipe, event)
        used = self._cpu_ticks()
        while not waiting.poll(1000 * self.patience):
            before, used = used, self._cpu_ticks()
            if used == before or time.monotonic() > deadline:
                raise InfrastructureError(
                    f"the process that draws SVG is silent for {self.patience:g} s; the machine may "
                    "have too much to do"
                )

    def _cpu_ticks(self) -> int:
        """Return the CPU time of the process, in ticks of ``proc_pid_stat(5)``; 0 where the system
        has no ``/proc``.
        """
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text()
        except FileNotFoundError:
            return 0
        user, system = stat.rpartition(")")[2].split()[11:13]
        return int(user) + int(system)

    def _started(self) -> None:
        if self._process is not None:
            return
        spec = importlib.util.find_spec("resvg_py")
        if spec is None or spec.origin is None:
            raise UsageError(
                "drawing SVG needs a renderer: pip install 'quintain-env-pictures[svg]'"
            )
        folder = str(Path(spec.origin).parent.parent)
        program = [sys.executable, "-I", "-S", svg_worker.__file__, folder]
        try:
            self._process = subprocess.Popen(
                [*program, str(self.cpu_seconds), str(self.memory)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={},
                cwd="/",
                bufsize=0,
                start_new_session=True,  # Ctrl-C is for the run
            )
        except OSError as error:
            raise InfrastructureError(
                f"the process that draws SVG does not start: {error}"
            ) from error
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)  # `patience` bounds writing, too

    def _ended(self) -> int:
        """Return the status of the process, which has closed its pipes."""
        assert self._process is not None
        status = self._process.wait(self.patience)
        self._stop()
        return status

    def _pause(self) -> None:
        self._lock.acquire()
        self._stop()

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()

    def close(self) -> None:
        """End the process; the next drawing starts another."""
        with self._lock:
            self._stop()


PROCESS = DrawingProcess()
atexit.register(PROCESS.close)


def svg_of(reply: str) -> str:
    """Return the last ``<svg ...> ... </svg>`` in *reply*.

    Raises:
        DrawingFault: there is none.
    """
    end = reply.rfind("</svg>")
    begin = reply.rfind("<svg", 0, max(end, 0))
    if begin < 0:
        raise DrawingFault("the reply has no <svg> ... </svg>")
    return reply[begin : end + len("</svg>")]


@lru_cache(maxsize=512)
def render(svg: str, size: int) -> Image.Image:
    """Return the drawing *svg* on white, as *size* by *size* pixels in RGB; do not change it.

    Elements are those of `svg_worker`; text, pictures, styles, references to other files and
    declarations are refused. The page of the drawing is scaled to *size*.

    Raises:
        DrawingFault: it is refused, or takes more time or memory than a drawing may.
        InfrastructureError: the process that draws cannot be started, or was killed by another.
        UsageError: *size* is out of range, or the renderer is not installed.
    """
    if size not in SIZES:
        raise UsageError(f"a rendering of {size} pixels; expected 1 to {SIZES[-1]}")
    if len(svg) > CHARACTERS:
        raise DrawingFault(f"it has {len(svg):,} characters; the limit is {CHARACTERS:,}")
    data = PROCESS.draw(svg, size)
    with Image.open(io.BytesIO(data), formats=["PNG"]) as image:
        if image.size != (size, size):
            raise InfrastructureError(f"the renderer returned {image.size} pixels, not {size}")
        return image.convert("RGB")
