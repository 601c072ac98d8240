"""A program that a provider started: what it hands over to `running`, and what it says at the
end.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Literal

from .program import Usage

EndedBy = Literal["timeout", "output", "closed", "stopped"]


@dataclass(frozen=True, kw_only=True)
class Finish:
    """What a provider knows of a program that ended.

    Attributes:
        exit: exit status, 128 + n after signal n; ``None`` if the program was killed from outside.
        out_of_memory: the kernel killed a process of it for memory.
        ended_by: the limit at which the provider itself ended it.
    """

    exit: int | None
    out_of_memory: bool
    usage: Usage
    ended_by: Literal["timeout"] | None = None


class Box(ABC):
    """A program that a provider started. Its methods block, and are called from one thread.

    Attributes:
        stdin: descriptor (a pipe or a socket) of its standard input; -1 once it is closed.
        stdout, stderr: descriptors to read from.
        ended: descriptor that is readable as soon as the program has ended.
        began: `time.monotonic` when the program was released; its time limit counts from there.
        preamble: what goes to standard input before the program's own, for what reads it in place
            of the program.
    """

    stdin: int
    stdout: int
    stderr: int
    ended: int
    began: float
    preamble: bytes = b""

    def end_input(self) -> None:
        """Close its standard input, unless that is done."""
        if self.stdin >= 0:
            os.close(self.stdin)
        self.stdin = -1

    def memory_kills(self) -> int:
        """Return how often the kernel has killed a process of it for memory so far, from any
        thread; 0 if nothing counts.
        """
        return 0

    @abstractmethod
    def kill(self) -> None:
        """End all of its processes by SIGKILL; nothing happens if they have ended."""

    @abstractmethod
    def finish(self, ended_by: EndedBy | None, stderr: bytes) -> Finish:
        """Wait for its processes. Called once, after `ended` is readable or after `kill`.

        Args:
            ended_by: why it was killed; ``None`` if it ended by itself.
            stderr: what it wrote to standard error, for the message of the error.

        Raises:
            InfrastructureError: the program did not end by its own doing, so there is no fair
                result.
        """

    @abstractmethod
    def close(self) -> None:
        """End what still runs and release everything else. Called once, whatever happened.

        Raises:
            InfrastructureError: processes are left.
        """


def open_streams(
    box: Box, stack: ExitStack, inherit: Callable[[int], object], user: int | None = None
) -> None:
    """Give *box* pipes for standard input, output and error, which *stack* closes.

    Args:
        inherit: takes over the program's ends, in this order.
        user: who owns the pipes, if it is not the present user: only their owner opens them anew
            through ``/dev/stdin`` or ``/proc/self/fd``.
    """
    stdin, box.stdin = os.pipe2(os.O_CLOEXEC)
    stack.callback(box.end_input)
    inherit(stdin)
    box.stdout, stdout = os.pipe2(os.O_CLOEXEC)
    stack.callback(os.close, box.stdout)
    inherit(stdout)
    box.stderr, stderr = os.pipe2(os.O_CLOEXEC)
    stack.callback(os.close, box.stderr)
    inherit(stderr)
    if user is not None:
        for stream in (stdin, stdout, stderr):
            os.fchown(stream, user, user)


def mover_of(
    box: Box, stack: ExitStack, name: str, move: Callable[[int, int], None]
) -> threading.Thread:
    """Give *box* pipes for standard output and error and the descriptor `ended`, which *stack*
    closes; return a thread, to be started, that fills them.

    Args:
        name: of the thread, which *stack* waits for.
        move: writes to the other ends of both pipes; with its return the program has ended.
    """
    box.stdout, stdout = os.pipe2(os.O_CLOEXEC)
    box.stderr, stderr = os.pipe2(os.O_CLOEXEC)
    box.ended = os.eventfd(0, os.EFD_CLOEXEC)
    ended = os.dup(box.ended)

    def run() -> None:
        try:
            move(stdout, stderr)
        finally:
            os.close(stdout)
            os.close(stderr)
            os.eventfd_write(ended, 1)
            os.close(ended)

    mover = threading.Thread(target=run, name=name, daemon=True)
    stack.callback(mover.join)
    for descriptor in (box.ended, box.stdout, box.stderr):
        stack.callback(os.close, descriptor)  # ends the thread where it waits to write
    return mover
