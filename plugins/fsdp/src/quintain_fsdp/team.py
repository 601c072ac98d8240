"""The rank processes of a learner, as the driver sees them: commands, and what became of them."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import tempfile
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from quintain.errors import RunError, UsageError

from .rank import run_rank
from .setup import Setup

LAST_WORDS = 5.0
"""Seconds that ranks get to answer when one has failed."""


class Team:
    """Ranks of one learner at a time. They end with the driver, and when the team is collected or
    closed.

    Args:
        size: number of processes.
        silence: seconds without a sign of life after which a rank is given up.
    """

    def __init__(self, size: int, *, silence: float = 20.0) -> None:
        context = multiprocessing.get_context("spawn")
        self._folder = tempfile.mkdtemp(prefix="quintain-ranks-")
        self._silence = silence
        self._learners = 0
        self._ranks = 0
        self._beats: Any = context.Array("d", size, lock=False)
        self._connections: list[Connection] = []
        self._processes: list[BaseProcess] = []
        self._end = weakref.finalize(self, _end, self._processes, self._connections, self._folder)
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=run_rank,
                args=(rank, theirs, self._beats),
                name=f"quintain-rank-{rank}",
                daemon=True,
            )
            process.start()
            theirs.close()
            self._connections.append(ours)
            self._processes.append(process)

    def start(self, setup: Setup) -> None:
        """Make the learner of *setup* in the first ranks, in place of the one before.

        Raises:
            UsageError: there are fewer processes than ranks.
            RunError: a rank does not start.
        """
        if setup.ranks > len(self._processes):
            raise UsageError(
                f"learner fsdp: {setup.ranks} ranks in a team of {len(self._processes)} processes"
            )
        self._learners += 1
        self._ranks = setup.ranks
        rendezvous = Path(self._folder, f"rendezvous-{self._learners}")
        self.call("start", replace(setup, rendezvous=str(rendezvous)))

    @property
    def pids(self) -> list[int]:
        """Process ids, by rank."""
        return [process.pid or 0 for process in self._processes]

    def close(self) -> None:
        """End the ranks."""
        self._end()

    def call(self, command: str, *arguments: Any) -> Any:
        """Send a command to all ranks, wait for all of them, and return what the first answers.

        Raises:
            RunError: a rank has ended or gives no sign of life; all are ended then.
            Exception: the command raised it, on all ranks alike.
        """
        if not self._end.alive:
            raise RunError(
                "the ranks of the learner have ended; continue the run from its last checkpoint "
                "with --resume"
            )
        try:
            for connection in self._connections[: self._ranks]:
                # one that has ended is found below
                with suppress(BrokenPipeError, ConnectionResetError):
                    connection.send((command, arguments))
            replies = self._replies(command)
        except BaseException:
            self.close()  # some ranks may still be in the command
            raise
        failures = [reply for word, reply in replies if word == "failed"]
        if failures:
            if len(failures) < len(replies):
                self.close()
            raise _rebuilt(*failures[0])
        return replies[0][1]

    def _replies(self, command: str) -> list[Any]:
        replies: dict[int, Any] = {}
        deadline = float("inf")
        while len(replies) < self._ranks:
            missing = [rank for rank in range(self._ranks) if rank not in replies]
            connections = [self._connections[rank] for rank in missing]
            sentinels = [self._processes[rank].sentinel for rank in missing]
            wait([*connections, *sentinels], timeout=1.0)
            for rank in missing:
                with suppress(EOFError, ConnectionResetError):
                    if self._connections[rank].poll():
                        replies[rank] = self._connections[rank].recv()
            failed = [rank for rank, (word, _) in replies.items() if word == "failed"]
            ended = [rank for rank in missing if self._processes[rank].exitcode is not None]
            if lost := [rank for rank in ended if rank not in replies]:
                raise RunError(self._obituary(lost, command))
            if failed and deadline == float("inf"):
                deadline = time.monotonic() + LAST_WORDS
            if len(replies) < self._ranks and time.monotonic() > deadline:
                raise _rebuilt(*replies[failed[0]][1])
            now = time.monotonic()
            silent = {
                rank: now - self._beats[rank]
                for rank in missing
                if rank not in replies and self._beats[rank]
            }
            if silent and max(silent.values()) > self._silence:
                rank = max(silent, key=silent.__getitem__)
                raise RunError(
                    f"rank {rank} of the learner (process {self._processes[rank].pid}) has given "
                    f"no sign of life for {silent[rank]:.0f} s while the ranks did {command!r}; it "
                    "is stopped, or the machine has no time for it. All ranks were ended; continue "
                    "the run from its last checkpoint with --resume"
                )
        return [replies[rank] for rank in range(self._ranks)]

    def _obituary(self, lost: Sequence[int], command: str) -> str:
        causes = []
        for rank in lost:
            code = self._processes[rank].exitcode or 0
            cause = f"ended with exit code {code}"
            if code < 0:
                cause = f"was ended by {signal.Signals(-code).name}"
            if code == -signal.SIGKILL:
                cause += ", as the kernel does when memory runs out"
            causes.append(f"rank {rank} (process {self._processes[rank].pid}) {cause}")
        return (
            f"the learner lost {' and '.join(causes)} while the ranks did {command!r}. The others "
            "were ended; continue the run from its last checkpoint with --resume"
        )


def _end(processes: list[BaseProcess], connections: list[Connection], folder: str) -> None:
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
    shutil.rmtree(folder, ignore_errors=True)


def _rebuilt(kind: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> Exception:
    """Return an error of a rank; its class may take other arguments than it keeps."""
    error: Any = kind.__new__(kind, *args)
    error.args = args
    vars(error).update(state)
    return error  # type: ignore[no-any-return]
