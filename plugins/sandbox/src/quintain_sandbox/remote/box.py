"""One program in a sandbox of another machine."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, NonNegativeFloat, NonNegativeInt, ValidationError

from quintain.errors import InfrastructureError, UsageError

from ..launcher import write_all
from ..opened import Box, EndedBy, Finish, mover_of
from ..program import ENVIRONMENT, Program, Usage, process_limits
from .helper import Helper

SOURCE = Path(__file__).with_name("inside_main.py").read_text()
"""What runs the program there."""
KILL_SECONDS = 150.0
"""That a sandbox may take to end."""
HEAD = 1 << 16
"""Bytes of a report at most, without the streams."""


class Ran(BaseModel):
    """What a sandbox reports of a program that ran.

    Attributes:
        late: it was ended there at its time limit.
        sizes: bytes of the standard output and error that follow.
    """

    exit: int
    late: bool
    seconds: NonNegativeFloat
    cpu_seconds: NonNegativeFloat
    memory: NonNegativeInt
    out_of_memory: bool
    host_user: int | None
    sizes: tuple[NonNegativeInt, NonNegativeInt]


class RemoteBox(Box):
    """A program in the sandbox *name*, which is its own.

    The program's time and output are bounded there, so that a slow network costs it nothing. Here
    the limit is *grace* seconds later, and whoever meets it got no fair run.

    Args:
        user: the program's user there.
        give_back: called once, when the sandbox is to be ended.
    """

    def __init__(
        self,
        helper: Helper,
        name: str,
        program: Program,
        user: int,
        grace: float,
        give_back: Callable[[str], None],
    ) -> None:
        self._helper, self._name, self._program = helper, name, program
        self._grace = grace
        self._ran: Ran | None = None
        self._failure: Exception | None = None
        with ExitStack() as stack:
            stack.callback(give_back, name)
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="remote-")))
            self._result = folder / "result"
            (folder / "job").write_bytes(_job(program, user))
            # A program has all of its input from the begin, so what comes here goes nowhere.
            self.stdin = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            stack.callback(self.end_input)
            seconds = program.limits.seconds + grace
            self._answer = helper.ask(
                "run", name=name, source=SOURCE, job=str(folder / "job"),
                result=str(self._result), seconds=seconds,
            )  # fmt: skip
            self.began = time.monotonic() + grace
            mover = mover_of(self, stack, "remote streams", self._move)
            stack.callback(self.kill)
            mover.start()
            self._stack = stack.pop_all()

    def _move(self, stdout: int, stderr: int) -> None:
        """Wait for the end, and move what was written into the pipes."""
        try:
            told = self._answer.result()
            if told["status"]:
                raise InfrastructureError(
                    f"remote: the sandbox did not run {self._program.argv[0]!r}: status "
                    f"{told['status']}, {told['said'].strip()[-300:]}"
                )
            self._ran, streams = _report(self._result, self._program)
            with contextlib.suppress(OSError):  # the box was closed
                for descriptor, data in zip((stdout, stderr), streams, strict=True):
                    write_all(descriptor, data)
        except (InfrastructureError, UsageError) as e:
            self._failure = e

    def kill(self) -> None:
        """End the sandbox; see `Box.kill`."""
        if not self._answer.done():
            self._helper.call("stop", name=self._name, seconds=KILL_SECONDS)

    def finish(self, ended_by: EndedBy | None, stderr: bytes) -> Finish:
        """Return how the program ended; see `Box.finish`."""
        if self._failure is not None and ended_by in (None, "output"):
            raise self._failure
        if ended_by == "timeout":
            raise InfrastructureError(
                f"remote: the sandbox did not report the end of {self._program.argv[0]!r} within "
                f"{self._grace:g} s of its time limit (remote.grace)"
            )
        ran = self._ran
        if ran is None:  # closed by the caller
            return Finish(
                exit=None, out_of_memory=False, usage=Usage(seconds=0.0, cpu_seconds=0.0, memory=0)
            )
        usage = Usage(
            seconds=ran.seconds, cpu_seconds=ran.cpu_seconds, memory=ran.memory, user=ran.host_user
        )
        late: Literal["timeout"] | None = "timeout" if ran.late else None
        return Finish(exit=ran.exit, out_of_memory=ran.out_of_memory, usage=usage, ended_by=late)

    def close(self) -> None:
        """Release everything, and have the sandbox ended; see `Box.close`."""
        self._stack.close()


def _job(program: Program, user: int) -> bytes:
    """Return what `inside_main` reads: a line of JSON, the input and the files."""
    limits = program.limits
    contents = [program.stdin, *program.files.values()]
    header = {
        "argv": list(program.argv),
        "environment": dict(ENVIRONMENT),
        "user": user,
        "limits": process_limits(program, own_user=True, memory_is_counted=True),
        "memory": limits.memory,
        "seconds": limits.seconds,
        "output": limits.output,
        "names": list(program.files),
        "sizes": [len(content) for content in contents],
    }
    return b"".join((json.dumps(header).encode(), b"\n", *contents))


def _report(file: Path, program: Program) -> tuple[Ran, list[bytes]]:
    """Read what `inside_main` wrote.

    Raises:
        UsageError: the sandbox is not as the provider needs it.
        InfrastructureError: it did not run the program, or its report cannot be read.
    """
    most = HEAD + 2 * (program.limits.output + 1)
    try:
        with file.open("rb") as opened:
            data = opened.read(most + 1)
        head, _, rest = data.partition(b"\n")
        told = json.loads(head)
        refused = str(told.get("refused", ""))
        ran = None if refused else Ran.model_validate(told)
    except (OSError, ValueError, AttributeError, ValidationError) as e:
        raise InfrastructureError(
            f"remote: the sandbox sent no report that can be read: {e}"
        ) from e
    if refused.startswith("user "):
        raise UsageError(
            f"remote: commands run as {refused} in the sandbox, and only root can give a program a "
            "user of its own: use an image whose user is root (remote.image)"
        )
    if ran is None:
        raise InfrastructureError(
            f"remote: the sandbox did not run {program.argv[0]!r}: {refused[:300]}"
        )
    first, second = ran.sizes
    if len(data) > most or len(rest) != first + second:
        raise InfrastructureError("remote: the sandbox sent a report of another size than it says")
    return ran, [rest[:first], rest[first:]]
