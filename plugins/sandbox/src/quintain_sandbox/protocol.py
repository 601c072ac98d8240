"""What every provider of sandboxes offers: one-shot and interactive programs, and its guarantees
per axis.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from abc import abstractmethod
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import ClassVar, Self

from quintain import InfrastructureError, Sandbox
from quintain.errors import UsageError

from .axes import AXES, FIXES, Guarantee, known_axes
from .opened import Box
from .probe import measure
from .program import Program, ProgramLimits, ProgramResult, as_bytes, as_files, as_limits
from .running import Programs, RunningProgram
from .session import SESSION, SOURCE, SUPERVISOR, SandboxSession, most_unread

SLOTS = min(os.cpu_count() or 1, 32)
"""Programs at one time by default; every provider can run as many."""


class ProbedSandbox(Sandbox):
    """A provider: it opens boxes, and has guarantees that it measures when it starts.

    A subclass has `open_box`. It may have `prepare`, `settle` and `release`, for what it keeps
    while it is started, and `fix`, for its error messages.

    Attributes:
        slots: programs at one time.
        enforce: axes that must be enforced on this machine, else the service does not start. Leave
            out of it what you can do without; the default is all.
    """

    slots: int
    enforce: tuple[str, ...]
    guarantees: Mapping[str, Guarantee]
    """By axis, for all of `AXES`; filled at start."""
    sessions: bool = True
    """Whether a program in a box can see and end all others of the box, as the supervisor of a
    session does.
    """
    conversations: bool = True
    """Whether a program can be written to while it runs."""
    loopback: bool = True
    """Whether programs of one box reach one another, and nobody else, at 127.0.0.1."""
    start_fix: ClassVar[str] = ""
    """What to do where the machine has what the provider needs, and not even an empty program
    runs.
    """
    _programs: Programs | None = None

    def __init__(self, *, slots: int = SLOTS, enforce: Iterable[str] = tuple(AXES)) -> None:
        self.slots, self.enforce = slots, known_axes(enforce, f"{self.name}.enforce has")
        self.guarantees = {}

    async def __aenter__(self) -> Self:
        try:
            await asyncio.to_thread(self.prepare)
            self._programs = Programs(self.slots, self.open_box)
            await self._run_nothing()
            try:
                self.guarantees = await self.probe()
            except OSError as e:
                raise InfrastructureError(
                    f"the canaries of the sandbox cannot be prepared: {e}"
                ) from e
            await self.settle()
            self.require(self.enforce)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def _run_nothing(self) -> None:
        try:
            await self.run({}, ["/bin/sh", "-c", ":"], limits=ProgramLimits(seconds=30))
        except InfrastructureError as e:
            raise InfrastructureError(f"{e}\n{self.start_fix}".strip()) from e

    async def __aexit__(self, *exc: object) -> None:
        try:
            programs, self._programs = self._programs, None
            if programs is not None:
                await programs.close()
        finally:
            await asyncio.to_thread(self.release)

    def prepare(self) -> None:
        """Find or start what boxes need. Blocking; called first at each start.

        Raises:
            InfrastructureError: the machine lacks it; the message has the command that helps.
        """

    async def probe(self) -> dict[str, Guarantee]:
        """Return the guarantee of each axis, as the canaries measure it."""
        return await measure(self.run)

    async def settle(self) -> None:
        """Start, and measure, what the provider has besides; called after the probe, before
        `enforce` is checked.
        """

    def release(self) -> None:
        """Release what `prepare` and `settle` made, if they did. Blocking; called after all
        programs ended.
        """

    @abstractmethod
    def open_box(self, program: Program) -> Box:
        """Start *program* in a new box whose working directory has its files. Blocking; called in
        several threads.

        Raises:
            InfrastructureError: the sandbox failed.
        """

    async def run(
        self,
        files: Mapping[str, bytes | str],
        argv: Sequence[str],
        stdin: bytes | str = b"",
        limits: ProgramLimits | None = None,
        network: bool = False,
    ) -> ProgramResult:
        """Run *argv* in a new box whose working directory has *files*; the box ends with the
        program.

        Text in *files* and *stdin* is written as UTF-8; the streams of the result are bytes.

        Waits for a slot. A cancelled run is killed before `asyncio.CancelledError` is raised.

        Raises:
            UsageError: the request itself is invalid, or the provider cannot give what it asks for.
            InfrastructureError: the sandbox failed. The program did not get a fair run, so there is
                no result.
        """
        if network:
            raise UsageError(f"{self.name} gives no network; leave out network=True")
        program = Program(
            argv=argv,
            files=as_files(files),
            stdin=as_bytes(stdin, "stdin"),
            limits=as_limits(limits),
        )
        return await self._started().run(program)

    def start(
        self,
        files: Mapping[str, bytes | str],
        argv: Sequence[str],
        limits: ProgramLimits | None = None,
        *,
        beside: RunningProgram | None = None,
        unread: int | None = None,
    ) -> AbstractAsyncContextManager[RunningProgram]:
        """Start *argv* as `run` does, and talk to it: ``async with sandbox.start(files, argv) as
        program:``.

        The limits hold for its whole life. Whatever still runs at the end of the block is killed,
        also by a cancellation.

        Args:
            beside: a running program whose slot this one shares, instead of waiting for a slot of
                its own. A caller that needs two programs at one time starts the second beside the
                first: callers that each hold one slot and wait for a second one deadlock.
            unread: bounds the bytes of standard output that nobody has read yet, in place of
                ``limits.output`` for all of them, for a program that talks for long.

        Raises:
            UsageError: as `run`.
            InfrastructureError: as `run`; also at the end of the block.
        """
        if not self.conversations:
            raise UsageError(
                f"{self.name} runs programs that have all of their input from the begin, and no "
                "conversations with them; use docker or bubblewrap"
            )
        program = Program(
            argv=argv,
            files=as_files(files),
            limits=as_limits(limits),
            interactive=True,
            unread=unread,
        )
        return self._started().start(program, beside)

    @contextlib.asynccontextmanager
    async def session(
        self, files: Mapping[str, bytes | str] | None = None, limits: ProgramLimits = SESSION
    ) -> AsyncIterator[SandboxSession]:
        """Start a session: commands one after the other in one box whose working directory begins
        with *files*.

        Its supervisor needs a ``python3`` in the box. A session holds a slot.

        Raises:
            UsageError: as `run`.
            InfrastructureError: as `run`; also at the end of the block.
        """
        if not self.sessions:
            raise UsageError(f"{self.name} has no sessions; use docker or bubblewrap")
        limits = as_limits(limits)
        # The supervisor bounds each command; the report of one command must fit, whatever the sum
        # over all commands is.
        program = Program(
            argv=SUPERVISOR,
            stdin=SOURCE,
            files=as_files(files),
            limits=limits,
            interactive=True,
            unread=most_unread(limits),
        )
        async with self._started().start(program, None) as running:
            session = SandboxSession(running, limits)
            await session.ready()
            yield session
            await session.close()

    def _started(self) -> Programs:
        if self._programs is None:
            raise self.not_started()
        return self._programs

    def not_started(self) -> UsageError:
        """Return the error of a service that is used before its start or after its end."""
        return UsageError(
            f"{self.name} is not started; use 'async with {type(self).__name__}() as sandbox:'"
        )

    @property
    def name(self) -> str:
        """The provider's name in messages."""
        return type(self).__name__.lower()

    def fix(self, axis: str) -> str:
        """Return how the user gets the *axis* enforced on this machine: a command, or a setting.

        A provider answers for the axes that depend on it, and leaves the others to this method.
        """
        return FIXES.get(
            axis, f"{self.name} does not enforce it on this machine: use another provider"
        )

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
        if axes == self.enforce:  # what code requires, the recipe cannot lower
            kept = [axis for axis in axes if axis not in unmet]
            lines.append(f"or accept less, in args of the service: enforce = {json.dumps(kept)}")
        raise UsageError("\n".join(lines))
