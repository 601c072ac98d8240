"""A program of the launcher in a control group of its own: what the boxes of the providers without
a daemon share.
"""

from __future__ import annotations

import contextlib
import os
import select
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from quintain import InfrastructureError

from .cgroups import ControlGroup
from .launcher import LaunchedProcess
from .opened import Box, open_streams
from .program import Program

CHUNK = 1 << 16
END_SECONDS = 2.0
"""How long the process that was launched may take to end after the program."""


class LaunchedBox(Box):
    """The processes, pipes and control group of one program.

    Args:
        provider: its name, for messages.
        give_back: called when nothing of the program's user is left.

    Raises:
        InfrastructureError: the program was not started.
    """

    _group: ControlGroup
    _user: int | None
    """The program's user on the host; ``None``: that of the trainer."""
    _process: LaunchedProcess
    _status: int
    """What the process that was launched reports comes from here, as lines of JSON."""

    def __init__(self, provider: str, program: Program, give_back: Callable[[], None]) -> None:
        self._provider, self._program = provider, program
        self._report = b""
        with ExitStack() as stack:
            stack.callback(give_back)
            try:
                self._open(stack)
            except OSError as e:
                raise InfrastructureError(f"{provider} cannot start a program: {e}") from e
            self._stack = stack.pop_all()

    @abstractmethod
    def _open(self, stack: ExitStack) -> None:
        """Start the program; *stack* ends it and releases everything."""

    @contextmanager
    def _pipes(self, stack: ExitStack) -> Iterator[list[int]]:
        """Open the streams and the pipe of reports; yields the program's ends, to which more may be
        added.
        """
        theirs: list[int] = []
        try:
            open_streams(self, stack, theirs.append, self._user)
            self._status, status = os.pipe2(os.O_CLOEXEC)
            stack.callback(os.close, self._status)
            theirs.append(status)
            yield theirs
        finally:
            for descriptor in theirs:
                os.close(descriptor)

    def memory_kills(self) -> int:
        """Return how often the control group has seen a process killed for memory; see
        `Box.memory_kills`.
        """
        return self._group.memory_kills()

    def close(self) -> None:
        """Close what the box holds and remove its control group; see `Box.close`."""
        self._stack.close()
        if not self._group.remove():
            raise InfrastructureError("processes of a sandbox did not end within 1 s of SIGKILL")

    def _read_reports(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._status, CHUNK):
                self._report += data

    def _await_end(self) -> None:
        """Wait for the process that was launched, which ends the rest of the program's
        processes.
        """
        if not select.select([self.ended], [], [], END_SECONDS)[0]:
            self._process.kill()

    def _failure(self, stderr: bytes) -> InfrastructureError:
        text = stderr[-500:].decode("utf-8", "replace").strip() or "it was killed, or said nothing"
        return InfrastructureError(
            f"{self._provider} did not run {self._program.argv[0]!r} to its end: {text}"
        )

    def _end(self) -> None:
        """Ensure that nothing of the program is left, whatever happened."""
        if self._process.alive():
            self.kill()
            self._await_end()
        self._process.close()
