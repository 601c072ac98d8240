"""The rank processes of a learner, as the driver sees them: commands, and what became of them."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from quintain.errors import RunError, UsageError
from quintain.rollouts import Span

from .rank import run_rank
from .setup import Setup
from .signs import RankWatch, Sign
from .spares import Spare

PRELOADED = ("quintain_learners.fsdp.rank", "torch._dynamo", "transformers.modeling_utils")
"""Modules that take long to import."""
COMPUTES = ("prepare", "step", "supervised_step")
"""Commands in which ranks wait for nothing but each other."""
OFTEN = {
    signal.SIGKILL: ", as the kernel does when memory runs out",
    signal.SIGBUS: ", as happens when shared memory (/dev/shm) is full",
}
"""What a signal often means."""


class RanksLost(RunError):
    """A rank has ended or makes no progress. All of the team are ended then, and can start again."""


class Team:
    """Ranks of one learner at a time. They end with the driver, and when the team is collected or
    closed.

    Args:
        size: number of processes.
        silence: seconds without a sign of life, or without work, after which a rank is given up.
        gpu: whether they compute on GPUs.
    """

    last_words = 5.0
    """Seconds that ranks get to answer when one has failed."""

    def __init__(self, size: int, *, silence: float = 20.0, gpu: bool = False) -> None:
        # A server forks the ranks and has what they import, so that they start in no time. An import
        # may ask for GPUs, after which a forked process cannot use them.
        self._context: Any = multiprocessing.get_context("spawn" if gpu else "forkserver")
        self._context.set_forkserver_preload(list(PRELOADED))
        self._folder = tempfile.mkdtemp(prefix="quintain-ranks-")
        self._silence = silence
        self._learners = 0
        self._ranks = 0
        self._device = "cpu"
        self._spares = [Spare() for _ in range(size)]
        self._signs: Any = self._context.Array(Sign, size, lock=False)
        self._connections: list[Connection] = []
        self._processes: list[BaseProcess] = []
        weakref.finalize(self, _release, self._folder, self._spares)
        self.open()

    def open(self) -> None:
        """Start the processes, also again after `close`."""
        self.close()
        self._connections, self._processes = [], []
        for rank, spare in enumerate(self._spares):
            ours, theirs = self._context.Pipe()
            self._signs[rank].time = 0.0
            process = self._context.Process(
                target=run_rank,
                args=(rank, theirs, self._signs, spare),
                name=f"quintain-rank-{rank}",
                daemon=True,
            )
            process.start()
            theirs.close()
            self._connections.append(ours)
            self._processes.append(process)
        self._end: weakref.finalize[..., Any] = weakref.finalize(
            self, _end, self._processes, self._connections
        )

    def start(self, setup: Setup) -> None:
        """Make the learner of *setup* in the first ranks, in place of the one before.

        Raises:
            UsageError: there are fewer processes than ranks.
            RunError: a rank does not start.
        """
        if setup.ranks > self._size():
            raise UsageError(
                f"learner fsdp: {setup.ranks} ranks in a team of {self._size()} processes"
            )
        self._learners += 1
        self._ranks, self._device = setup.ranks, setup.device
        self.call("start", replace(setup, rendezvous=self._rendezvous()))

    def _rendezvous(self) -> str:
        """Return where the ranks of the next learner find each other."""
        return str(Path(self._folder, f"rendezvous-{self._learners}"))

    @property
    def pids(self) -> list[int]:
        """Process ids, by rank."""
        return [process.pid or 0 for process in self._processes]

    def close(self) -> None:
        """End the ranks."""
        if self._processes:
            self._end()

    def call(self, command: str, *arguments: Any) -> Any:
        """Send a command to all ranks, wait for all of them, and return what the first answers.

        Raises:
            RanksLost: a rank has ended or makes no progress; all are ended then.
            Exception: the command raised it, on all ranks alike.
        """
        if not self._end.alive:
            raise RunError(
                "the ranks of the learner have ended; continue the run from its last checkpoint "
                "with --resume"
            )
        try:
            with Span("ranks", command=command) as span:
                self._send(command, arguments)
                replies = self._replies(command, span)
        except BaseException:  # some ranks may still be in the command
            self._kill()
            raise
        failures = [reply for word, reply in replies if word == "failed"]
        if failures:
            if len(failures) < len(replies):
                self.close()
            raise _rebuilt(*failures[0])
        return replies[0][1]

    def _size(self) -> int:
        return len(self._processes)

    def _send(self, command: str, arguments: tuple[Any, ...]) -> None:
        for connection in self._connections[: self._ranks]:
            # one that has ended is found by `_replies`
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.send((command, arguments))

    def _replies(self, command: str, span: Span) -> list[Any]:
        replies: dict[int, Any] = {}
        began = time.monotonic()
        seconds: dict[int, float] = {}
        span.attributes["seconds"] = seconds
        deadline = float("inf")
        watch = RankWatch(self._silence, idle=self._device == "cpu" and command in COMPUTES)
        while len(replies) < self._ranks:
            missing = [rank for rank in range(self._ranks) if rank not in replies]
            self._wait(missing)
            for rank in missing:
                if (reply := self._receive(rank)) is not None:
                    replies[rank], seconds[rank] = reply, time.monotonic() - began
            failed = [rank for rank, (word, _) in replies.items() if word == "failed"]
            causes = {rank: self._cause(rank) for rank in missing if rank not in replies}
            if lost := {rank: cause for rank, cause in causes.items() if cause}:
                raise RanksLost(self._obituary(lost, command))
            if failed and deadline == float("inf"):
                deadline = time.monotonic() + self.last_words
            if len(replies) < self._ranks and time.monotonic() > deadline:
                raise _rebuilt(*replies[failed[0]][1])
            signs = {rank: self._signs[rank] for rank in missing if rank not in replies}
            if stuck := watch.stuck(signs):
                raise RanksLost(self._obituary(stuck, command))
        return [replies[rank] for rank in range(self._ranks)]

    def _wait(self, missing: Sequence[int]) -> None:
        """Wait for an answer or the end of one of the ranks *missing*, for a second at most."""
        connections = [self._connections[rank] for rank in missing]
        wait([*connections, *(self._processes[rank].sentinel for rank in missing)], timeout=1.0)

    def _receive(self, rank: int) -> Any:
        """Return the answer of *rank*, or ``None`` before it comes."""
        with suppress(EOFError, ConnectionResetError):
            if self._connections[rank].poll():
                return self._connections[rank].recv()
        return None

    def _cause(self, rank: int) -> str:
        """Return what has ended *rank*; empty while it lives."""
        code = self._processes[rank].exitcode
        if code is None or code >= 0:
            return "" if code is None else f"ended with exit code {code}"
        number = signal.Signals(-code)
        return f"was ended by {number.name}{OFTEN.get(number, '')}"

    def _named(self, rank: int) -> str:
        return f"rank {rank} (process {self._processes[rank].pid})"

    def _obituary(self, causes: Mapping[int, str], command: str) -> str:
        said = [f"{self._named(rank)}, which {cause}" for rank, cause in causes.items()]
        return f"the learner lost {' and '.join(said)}, while the ranks did {command!r}"

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()
        self.close()


def _end(processes: list[BaseProcess], connections: list[Connection]) -> None:
    for connection in connections:
        connection.close()
    deadline = time.monotonic() + 2.0
    for process in processes:
        # One that waits for commands ends by itself; one in a collective would not.
        process.join(max(0.0, deadline - time.monotonic()))
        if process.exitcode is None:
            with suppress(ProcessLookupError):
                os.kill(process.pid or 0, signal.SIGKILL)
            process.join()


def _release(folder: str, spares: list[Spare]) -> None:
    for spare in spares:
        spare.close()
    shutil.rmtree(folder, ignore_errors=True)


def _rebuilt(kind: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> Exception:
    """Return an error of a rank; its class may take other arguments than it keeps."""
    error: Any = kind.__new__(kind, *args)
    error.args = args
    vars(error).update(state)
    return error  # type: ignore[no-any-return]
