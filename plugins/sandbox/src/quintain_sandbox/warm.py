"""Warm interpreters: boxes that are started ahead, whose Python waits for its one program with
modules imported.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

from quintain import InfrastructureError

from .box import BubblewrapBox
from .program import Program, ProgramLimits

IMPORTS = (
    "bisect collections copy dataclasses datetime decimal fractions functools heapq itertools json "
    "math operator random re statistics string typing"
).split()
"""Modules that programs of a policy import most."""
ENCODING = re.compile(rb"[ \t\f]*#.*coding[:=]")
"""A comment that declares one, as in PEP 263."""
READY_SECONDS = 30.0
"""How long an interpreter may take to start on a loaded machine."""
RETIRED = 900.0
"""Age in seconds at which an interpreter is replaced."""
PAUSE = 2.0
"""Seconds before the next attempt after one that failed."""
SOURCE = Path(__file__).with_name("warm_main.py").read_text()
AHEAD = ProgramLimits(seconds=1e9, cpu_seconds=1e6, memory=1 << 30, processes=4096, open_files=4096)
"""Limits of an interpreter that waits; those of its program replace them, and are below."""


class WarmInterpreters:
    """A pool that a thread of its own keeps full; each interpreter runs one program.

    Args:
        open_box: starts a box; blocking.
        size: interpreters that wait.
        imports: modules that they have imported.
    """

    def __init__(
        self, open_box: Callable[[Program], BubblewrapBox], size: int, imports: Sequence[str]
    ) -> None:
        self._open_box, self._size = open_box, size
        code = f"{SOURCE}\nbecome(prepare({list(imports)!r}))"
        self._argv = ("python3", "-I", "-c", code)
        self._changed = threading.Condition()
        self._waiting: deque[tuple[float, int, BubblewrapBox]] = deque()  # age, disk, box
        self._disk = AHEAD.disk
        self._misses = 0
        self._failure: InfrastructureError | None = None
        self._ends = False
        self.patient = False
        """Whether `take` waits for an interpreter, so that what it runs is certainly warm."""
        self._thread = threading.Thread(target=self._fill, name="sandbox-warm", daemon=True)
        self._thread.start()

    def take(self, program: Program) -> BubblewrapBox | None:
        """Return a box in which *program* is released; ``None`` where only a new one serves it, or
        none waits.

        Raises:
            InfrastructureError: no interpreter starts, and the pool is patient.
        """
        if not serves(program):
            return None
        box = self._pop(program.limits.disk)
        if box is None:
            return None
        try:
            box.release(program)
        except OSError:  # less memory than its modules take: a new box says so
            box.close()
            return None
        return box

    def _pop(self, disk: int) -> BubblewrapBox | None:
        stale = []
        try:
            with self._changed:
                deadline = time.monotonic() + (READY_SECONDS if self.patient else 0.0)
                while True:
                    self._learn(disk)
                    while self._waiting:
                        born, size, box = self._waiting.popleft()
                        self._changed.notify_all()
                        if size == disk and time.monotonic() - born < RETIRED and box.waits():
                            return box
                        stale.append(box)
                    if self.patient and self._failure is not None:
                        raise self._failure
                    if not self._changed.wait_for(
                        lambda: self._waiting or self._failure, deadline - time.monotonic()
                    ):
                        return None
        finally:
            for box in stale:
                box.close()

    def _learn(self, disk: int) -> None:
        """Follow the callers where all want another size of temporary files, which is fixed at the
        start.
        """
        self._misses = 0 if disk == self._disk else self._misses + 1
        if self._misses > self._size or (self._misses and self.patient):
            self._disk, self._misses = disk, 0

    def wait_until_full(self) -> None:
        """Wait for the first interpreters.

        Raises:
            InfrastructureError: they do not start.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._failure or self._ends or len(self._waiting) >= self._size,
                READY_SECONDS,
            )
            if self._failure is not None:
                raise self._failure

    def _fill(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ends or len(self._waiting) < self._size)
                if self._ends:
                    return
                disk = self._disk
            try:
                box, failure = self._started(disk), None
            except InfrastructureError as e:
                box, failure = None, e
            with self._changed:
                self._failure = failure
                if box is not None and not self._ends:
                    self._waiting.append((time.monotonic(), disk, box))
                    box = None
                self._changed.notify_all()
                if failure is not None:
                    self._changed.wait_for(lambda: self._ends, PAUSE)
            if box is not None:
                box.close()

    def _started(self, disk: int) -> BubblewrapBox:
        limits = ProgramLimits(**(vars(AHEAD) | {"disk": disk}))
        box = self._open_box(Program(argv=self._argv, limits=limits, interactive=True))
        if select.select([box.stdout, box.ended], [], [], READY_SECONDS)[0]:
            os.set_blocking(box.stdout, False)
            with contextlib.suppress(BlockingIOError):
                if os.read(box.stdout, 64) == b"ready\n":
                    return box
        os.set_blocking(box.stderr, False)
        with contextlib.suppress(BlockingIOError):
            error_text = os.read(box.stderr, 1 << 16)[-500:].decode("utf-8", "replace").strip()
        box.close()
        raise InfrastructureError(
            f"a warm interpreter did not start: {error_text or 'it was killed, or said nothing'}"
        )

    def close(self) -> None:
        """End the interpreters that wait."""
        with self._changed:
            self._ends = True
            self._changed.notify_all()
        self._thread.join()
        for _, _, box in self._waiting:
            box.close()
        self._waiting.clear()


def serves(program: Program) -> bool:
    """Return whether a warm interpreter runs *program* as a new one would.

    It is ``python3 -I FILE ...`` with a source file of the request, or ``python3 -I -c CODE ...``,
    perhaps with ``-X int_max_str_digits=0``.
    """
    argv, limits = list(program.argv), program.limits
    if argv[2:4] == ["-X", "int_max_str_digits=0"]:
        del argv[2:4]
    if len(argv) < 3 or argv[:2] != ["python3", "-I"]:
        return False
    if argv[2] == "-c":
        plain = len(argv) > 3 and "\0" not in argv[3]
    else:
        source = program.files.get(argv[2], b"\0")
        # The interpreter looks into other files for archives and byte code, and refuses NUL in its
        # own words.
        plain = argv[2].endswith(".py") and b"\0" not in source and b"PK\x05\x06" not in source
        # It names an encoding that it does not know in other words, too.
        plain = plain and not any(ENCODING.match(line) for line in source.splitlines()[:2])
        plain = plain and not argv[2].startswith("-") and str(PurePosixPath(argv[2])) == argv[2]
    pages = sum(len(data) + 4096 for data in program.files.values()) + (1 << 20)
    return (
        plain
        and pages <= limits.disk
        and limits.open_files <= AHEAD.open_files
        and limits.processes < AHEAD.processes
        and limits.cpu_seconds < AHEAD.cpu_seconds
    )
