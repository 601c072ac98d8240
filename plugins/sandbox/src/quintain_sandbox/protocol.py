"""What every provider of sandboxes offers: one-shot and interactive programs, and its guarantees per axis."""

from __future__ import annotations

import contextlib
import json
import os
from abc import abstractmethod
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from enum import StrEnum

from quintain import Sandbox
from quintain.errors import UsageError, did_you_mean

from .program import Program, ProgramLimits, ProgramResult, Status, Usage
from .running import Box, Programs, RunningProgram
from .session import SESSION, SOURCE, SUPERVISOR, Session, most_unread

__all__ = ["AXES", "Guarantee", "ProbedSandbox", "Program", "ProgramLimits", "ProgramResult", "Status", "Usage"]

SLOTS = min(os.cpu_count() or 1, 32)
"""Programs at one time by default; every provider can run as many."""

AXES: Mapping[str, str] = {
    "filesystem": "no host file other than programs and libraries can be read, and none can be changed",
    "network": "neither another machine nor a server or abstract socket of this one is reachable",
    "processes": "no process of the host can be listed, read or signalled, and all of the program's end with it",
    "users": "the program's user on the host owns nothing and differs from the trainer's and from its neighbours'",
    "memory": "the sum over all processes and temporary files is bounded",
    "forks": "the number of processes and threads is bounded",
    "disk": "the bytes written to temporary files and the size of one file are bounded",
    "output": "the bytes read from standard output and error are bounded",
    "time": "the program ends at most 0.25 s after its limit",
    "syscalls": "calls that reach past namespaces (vsock, io_uring, keyrings, ptrace, nested namespaces) are refused",
}
"""The axes of isolation, each with what *enforced* means."""
FIXES: Mapping[str, str] = {
    "disk": "the size of temporary file systems has no effect here: use another provider",
    "output": "the canary did not reach its limit in time: lower the load of the machine and start again",
    "time": "programs end late: lower the load of the machine, or slots",
}
"""What to do where an axis is not enforced and the provider knows no reason of its own."""


class Guarantee(StrEnum):
    """How far a provider keeps one axis on this machine, by measurement."""

    ENFORCED = "enforced"
    BEST_EFFORT = "best effort"
    ABSENT = "absent"


def weakest(*levels: Guarantee) -> Guarantee:
    """The level that all of *levels* reach."""
    return max(levels, key=list(Guarantee).index)


def known_axes(names: Iterable[str], where: str) -> tuple[str, ...]:
    """*names*, which must be among `AXES`.

    Raises:
        UsageError: one is not; the message begins with *where* and has the most similar axis.
    """
    names = tuple(names)
    for name in names:
        if name not in AXES:
            raise UsageError(f"{where} {name!r}, which is no guarantee{did_you_mean(name, AXES)}")
    return names


class ProbedSandbox(Sandbox):
    """A provider: it opens boxes, and has guarantees that it measured when it started.

    A provider sets `programs` in ``__aenter__``, before the probe, and calls `close_programs` in ``__aexit__``.
    """

    slots: int
    """Programs at one time."""
    needs: tuple[str, ...]
    """Axes that must be enforced, else the service does not start."""
    guarantees: Mapping[str, Guarantee]
    """By axis, for all of `AXES`; filled at start."""
    sessions: bool = True
    """Whether a program in a box can see and end all others of the box, as the supervisor of a session does."""
    programs: Programs | None = None
    """What runs; ``None`` while the service is not started."""

    def __init__(self, *, slots: int, needs: Iterable[str]) -> None:
        self.slots, self.needs = slots, known_axes(needs, f"{self.name}.needs has")
        self.guarantees = {}

    @abstractmethod
    def open_box(self, program: Program) -> Box:
        """Start *program* in a new box whose working directory has its files. Blocking; called in several threads.

        Raises:
            InfrastructureError: the sandbox failed.
        """

    async def run(
        self,
        files: Mapping[str, bytes],
        argv: Sequence[str],
        stdin: bytes = b"",
        limits: ProgramLimits | None = None,
        network: bool = False,
    ) -> ProgramResult:
        """Run *argv* in a new box whose working directory has *files*; the box ends with the program.

        Waits for a slot. A cancelled run is killed before `asyncio.CancelledError` is raised.

        Raises:
            UsageError: the request itself is invalid, or the provider cannot give what it asks for.
            InfrastructureError: the sandbox failed. The program did not get a fair run, so there is no result.
        """
        if network:
            raise UsageError(f"{self.name} gives no network; leave out network=True")
        program = Program(argv=argv, files=files, stdin=stdin, limits=limits or ProgramLimits())
        return await self._started().run(program)

    def start(
        self,
        files: Mapping[str, bytes],
        argv: Sequence[str],
        limits: ProgramLimits | None = None,
        *,
        beside: RunningProgram | None = None,
    ) -> AbstractAsyncContextManager[RunningProgram]:
        """Start *argv* as `run` does, and talk to it: ``async with sandbox.start(files, argv) as program:``.

        The limits hold for its whole life. Whatever still runs at the end of the block is killed, also by a
        cancellation.

        Args:
            beside: a running program whose slot this one shares, instead of waiting for a slot of its own. A caller
                that needs two programs at one time starts the second beside the first: callers that each hold one slot
                and wait for a second one deadlock.

        Raises:
            UsageError: as `run`.
            InfrastructureError: as `run`; also at the end of the block.
        """
        program = Program(argv=argv, files=files, limits=limits or ProgramLimits(), interactive=True)
        return self._started().start(program, beside)

    @contextlib.asynccontextmanager
    async def session(
        self, files: Mapping[str, bytes] | None = None, limits: ProgramLimits = SESSION
    ) -> AsyncIterator[Session]:
        """Start a session: commands one after the other in one box whose working directory begins with *files*.

        Its supervisor needs a ``python3`` in the box. A session holds a slot.

        Raises:
            UsageError: as `run`.
            InfrastructureError: as `run`; also at the end of the block.
        """
        if not self.sessions:
            raise UsageError(f"{self.name} has no sessions; use docker or bubblewrap")
        # The supervisor bounds each command; the report of one command must fit, whatever the sum over all commands is.
        program = Program(
            argv=SUPERVISOR,
            stdin=SOURCE,
            files=files or {},
            limits=limits,
            interactive=True,
            unread=most_unread(limits),
        )
        async with self._started().start(program, None) as running:
            session = Session(running, limits)
            await session.ready()
            yield session
            await session.close()

    def _started(self) -> Programs:
        if self.programs is None:
            raise self.not_started()
        return self.programs

    def not_started(self) -> UsageError:
        """The error of a service that is used before its start or after its end."""
        return UsageError(f"{self.name} is not started; use 'async with {type(self).__name__}() as sandbox:'")

    @property
    def name(self) -> str:
        """The provider's name in messages."""
        return type(self).__name__.lower()

    async def close_programs(self) -> None:
        """Stop what runs and wait for its end."""
        programs, self.programs = self.programs, None
        if programs is not None:
            await programs.close()

    def fix(self, axis: str) -> str:
        """How the user gets the *axis* enforced on this machine: a command, or a setting.

        A provider answers for the axes that depend on it, and leaves the others to this method.
        """
        return FIXES.get(axis, f"{self.name} does not enforce it on this machine: use another provider")

    def require(self, axes: Iterable[str]) -> None:
        """Raise an error unless each of *axes* is enforced.

        Raises:
            UsageError: one is not; the message has the fix of each.
        """
        axes = known_axes(axes, "require has")
        levels = {axis: self.guarantees.get(axis, Guarantee.ABSENT) for axis in axes}
        unmet = {axis: level for axis, level in levels.items() if level is not Guarantee.ENFORCED}
        if not unmet:
            return
        lines = [f"{self.name} does not enforce what is needed on this machine:"]
        lines += [f"  {axis}: {level}; {self.fix(axis)}" for axis, level in unmet.items()]
        if axes == self.needs:  # what code requires, the recipe cannot lower
            kept = [axis for axis in axes if axis not in unmet]
            lines.append(f"or accept less, in args of the service: needs = {json.dumps(kept)}")
        raise UsageError("\n".join(lines))
