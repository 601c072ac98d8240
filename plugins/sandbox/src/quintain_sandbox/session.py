"""A session: commands one after the other in one box, with a working directory that stays.

`session_main` runs inside and takes orders. Its messages come from a box that runs programs of a
policy, so they are parsed strictly and bounded; an invalid message ends the session.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from quintain import InfrastructureError
from quintain.errors import UsageError

from .program import Program, ProgramLimits, ProgramResult, Usage, as_bytes, as_files
from .running import LineTimeout, LineTooLong, RunningProgram

SESSION = ProgramLimits(seconds=300.0, cpu_seconds=120.0)
"""The default limits of a session as a whole."""
SOURCE = Path(__file__).with_name("session_main.py").read_bytes()
SUPERVISOR = (
    "python3",
    "-I",
    "-c",
    f"import os\nn, code = {len(SOURCE)}, b''\nwhile n > len(code): code += os.read(0, n - "
    f"len(code))\nexec(code)",
)
"""Executes the `SOURCE` that comes first on its standard input, so that listings of processes do
not show it.
"""
READ = 8 << 20
"""Most bytes of one file that is read."""
START_SECONDS = 30.0
"""How long the supervisor may take to start on a loaded machine."""
GRACE = 10.0
"""Seconds that the supervisor may be late; it waits for a loaded machine."""


class SessionFileError(Exception):
    """A file of a session cannot be read or written because of a program in it; the session remains
    usable.
    """


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


def _decoded(text: object) -> bytes:
    if not isinstance(text, str):
        raise ValueError("not a string")
    return base64.b64decode(text, validate=True)


_Bytes = Annotated[bytes, BeforeValidator(_decoded)]


class _Refused(_Strict):
    refused: str = Field(max_length=1000)


class _Ended(_Strict):
    status: Literal["ok", "failed", "timeout", "output"]
    exit: Annotated[int, Field(ge=0, le=255)] | None
    stdout: _Bytes
    stderr: _Bytes
    seconds: Annotated[float, Field(ge=0)]
    cpu_seconds: Annotated[float, Field(ge=0)]
    memory: Annotated[int, Field(ge=0)]
    truncated: list[Literal["stdout", "stderr"]]


class _Data(_Strict):
    data: _Bytes


class _Nothing(_Strict):
    pass


class _Executed(_Strict):
    status: Literal["ok", "error", "timeout", "exit"]
    stdout: _Bytes
    error: str
    truncated: bool
    seconds: Annotated[float, Field(ge=0)]


ANSWERS: Mapping[str, TypeAdapter[Any]] = {
    "run": TypeAdapter(_Ended),
    "write": TypeAdapter(_Nothing | _Refused),
    "read": TypeAdapter(_Data | _Refused),
    "execute": TypeAdapter(_Executed | _Refused),
}


@dataclass(frozen=True, kw_only=True)
class PythonOutcome:
    """What came of executing code.

    Attributes:
        status: ``ok``; ``error`` for an exception; ``timeout``, ``memory`` or ``exit`` if the
            interpreter ended, so that the next code meets a new one; ``closed`` if the session is
            over.
        stdout: what was printed, standard error too, cut at the limit; the value of a last
            expression is printed.
        error: the traceback, which begins in the code; empty unless ``error``.
        truncated: whether *stdout* was cut.
    """

    status: Literal["ok", "error", "timeout", "memory", "exit", "closed"]
    stdout: str
    error: str
    truncated: bool
    seconds: float


class _Over(Exception):
    """The program of the session ended."""


class SandboxSession:
    """Made by `ProbedSandbox.session`; used by one task at a time.

    The limits hold for the session as a whole, except that `ProgramLimits.output` holds for each
    command. When the box ends by a limit, this command and all later ones have its status.
    """

    def __init__(self, program: RunningProgram, limits: ProgramLimits) -> None:
        self._program, self._limits = program, limits
        self._over: ProgramResult | None = None
        self._left = False

    async def ready(self) -> None:
        """Wait until the supervisor takes requests; before that, nothing of a policy runs.

        Raises:
            InfrastructureError: it did not start.
        """
        try:
            line = await self._program.read_line(seconds=START_SECONDS)
        except LineTimeout:
            line = b""
        if line != b"ready\n":
            result = await self._program.close()
            error_text = (
                result.stderr[-500:].decode("utf-8", "replace").strip() or f"status {result.status}"
            )
            raise InfrastructureError(
                f"a session needs a python3 of 3.9 or later in the box: {error_text}"
            )

    async def run(
        self,
        argv: Sequence[str],
        stdin: bytes | str = b"",
        files: Mapping[str, bytes | str] | None = None,
        seconds: float | None = None,
    ) -> ProgramResult:
        """Write *files*, then run *argv* in the working directory. Text is written as UTF-8.

        What it leaves running is killed when it ends; `python` stays. A command that cannot be
        started has exit status 127 or 126, as in a shell. ``usage.memory`` is the peak of its
        largest process.

        Args:
            seconds: time limit of the command; ``None`` leaves the rest of the session's.

        Raises:
            UsageError: the request itself is invalid.
            SessionFileError: *files* cannot be written where a program put something else, or the
                disk is full.
            InfrastructureError: the sandbox failed.
        """
        contents, data = as_files(files), as_bytes(stdin, "stdin")
        Program(argv=argv, files=contents, stdin=data, limits=self._limits)  # checks
        limit = self._limit(seconds)
        kills = self._program.memory_kills()
        try:
            if contents:
                await self._write(contents)
            answer = await self._ask(
                "run",
                seconds=limit,
                argv=list(argv),
                stdin=_encoded(data),
                output=self._limits.output,
            )
        except _Over:
            assert self._over is not None
            return self._over
        memory = self._program.memory_kills() > kills
        return ProgramResult(
            status="memory" if memory and answer.status != "output" else answer.status,
            exit=answer.exit,
            stdout=answer.stdout,
            stderr=answer.stderr,
            truncated=tuple(answer.truncated),
            usage=Usage(
                seconds=answer.seconds, cpu_seconds=answer.cpu_seconds, memory=answer.memory
            ),
        )

    async def write(self, path: str, data: bytes | str) -> None:
        """Write a regular file, relative to the working directory or absolute in the box; missing
        folders are made.

        Text is written as UTF-8.

        Raises:
            UsageError: *data* has more bytes than ``limits.disk``.
            SessionFileError: it cannot be written, or the session is over.
            InfrastructureError: the sandbox failed.
        """
        data = as_bytes(data, "data")
        if len(data) > self._limits.disk or "\0" in path:
            raise UsageError(
                f"{len(data)} bytes for {path[:80]!r}; expected a path without NUL and at most "
                f"limits.disk = {self._limits.disk} bytes"
            )
        try:
            await self._write({path: data})
        except _Over:
            raise SessionFileError(f"{path[:200]}: the session is over") from None

    async def read(self, path: str, limit: int = READ) -> bytes:
        """Return the content of a regular file, relative to the working directory or absolute in
        the box.

        Raises:
            SessionFileError: there is none, it cannot be read, it has more than *limit* bytes, or
                the session is over.
            InfrastructureError: the sandbox failed.
        """
        if not 0 <= limit <= READ or "\0" in path:
            raise UsageError(
                f"limit is {limit} for {path[:80]!r}; expected a path without NUL and at most "
                f"{READ} bytes"
            )
        try:
            answer = await self._ask("read", path=path, limit=limit)
        except _Over:
            raise SessionFileError(f"{path[:200]}: the session is over") from None
        if isinstance(answer, _Refused):
            raise SessionFileError(f"{path[:200]}: {answer.refused}")
        data: bytes = answer.data
        return data[:limit]

    def python(self) -> Interpreter:
        """Return a Python interpreter in the working directory, which keeps its state from one
        execution to the next.
        """
        return Interpreter(self)

    async def execute(self, code: str, seconds: float | None = None) -> PythonOutcome:
        """Execute *code* in the session's interpreter; see `Interpreter.execute`."""
        limit = self._limit(seconds)
        kills = self._program.memory_kills()
        try:
            source = code.encode("utf-8", "replace")
            answer = await self._ask(
                "execute", seconds=limit, code=_encoded(source), output=self._limits.output
            )
        except _Over:
            return PythonOutcome(status="closed", stdout="", error="", truncated=False, seconds=0.0)
        if isinstance(answer, _Refused):
            raise InfrastructureError(
                f"the interpreter of a session did not start: {answer.refused}"
            )
        memory = answer.status == "exit" and self._program.memory_kills() > kills
        return PythonOutcome(
            status="memory" if memory else answer.status,
            stdout=answer.stdout.decode("utf-8", "replace"),
            error=answer.error,
            truncated=answer.truncated,
            seconds=answer.seconds,
        )

    def _limit(self, seconds: float | None) -> float:
        if seconds is not None and not (
            isinstance(seconds, (int, float)) and 0 < seconds < float("inf")
        ):
            raise UsageError(f"seconds is {seconds!r}; expected a positive finite number")
        return self._limits.seconds if seconds is None else seconds

    async def _write(self, files: Mapping[str, bytes]) -> None:
        answer = await self._ask(
            "write", files={name: _encoded(data) for name, data in files.items()}
        )
        if isinstance(answer, _Refused):
            raise SessionFileError(f"{', '.join(files)[:200]} cannot be written: {answer.refused}")

    async def _ask(self, do: str, seconds: float = 0.0, **request: Any) -> Any:
        if self._left:
            raise UsageError("the session has ended; use it inside its 'async with' block")
        if self._over is not None:
            raise _Over
        if do in ("run", "execute"):
            request["seconds"] = seconds
        began = time.monotonic()
        await self._program.write(json.dumps({"do": do, **request}).encode() + b"\n")
        try:
            line = await self._program.read_line(
                seconds=seconds + GRACE, limit=most_unread(self._limits)
            )
            if line:
                return ANSWERS[do].validate_json(line)
        except LineTimeout:
            await self._program.close()
            raise InfrastructureError(
                f"the supervisor of a session gave no answer within {time.monotonic() - began:.0f} "
                f"s"
            ) from None
        except (LineTooLong, ValidationError):
            pass
        await self._end()
        raise _Over

    async def _end(self) -> None:
        """Remember how the box ended; one that still runs has broken the protocol."""
        result = await self._program.close()
        status = result.status if result.status in ("timeout", "memory", "output") else "failed"
        self._over = dataclasses.replace(result, status=status, exit=None, stdout=b"", stderr=b"")

    async def close(self) -> None:
        """End the box."""
        self._left = True
        if self._over is None:
            await self._end()


@dataclass(frozen=True)
class Interpreter:
    """The interpreter of a session."""

    session: SandboxSession

    async def execute(self, code: str, seconds: float | None = None) -> PythonOutcome:
        """Execute *code*; names stay for the next. What it leaves running is killed.

        A time limit, an exit and the limit on memory end the interpreter alone: files stay, names
        are lost.

        Raises:
            InfrastructureError: the sandbox failed.
        """
        return await self.session.execute(code, seconds)


def most_unread(limits: ProgramLimits) -> int:
    """Return the most bytes of an answer: both streams or a file in base64, or a traceback of
    escapes.
    """
    return 8 * limits.output + 2 * READ


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()
