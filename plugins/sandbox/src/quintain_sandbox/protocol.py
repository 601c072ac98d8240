"""What every provider of sandboxes offers: one call, its result as a value, and its guarantees per axis."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Literal

from quintain import Sandbox
from quintain.errors import UsageError, did_you_mean

Status = Literal["ok", "failed", "timeout", "memory", "output"]
"""``ok`` is exit status 0; ``failed`` any other exit; the rest name the limit that ended the program."""

AXES: Mapping[str, str] = {
    "filesystem": "host files other than programs and libraries are invisible, and all host files are read-only",
    "network": "neither another machine nor a server or abstract socket of this one is reachable",
    "processes": "processes of the host are invisible, and all of the program's end with it",
    "users": "the program's user on the host owns nothing and differs from the trainer's and from its neighbours'",
    "memory": "the sum over all processes and temporary files is bounded",
    "forks": "the number of processes and threads is bounded",
    "disk": "the bytes written to temporary files and the size of one file are bounded",
    "output": "the bytes read from standard output and error are bounded",
    "time": "the program ends at most 0.25 s after its limit",
    "syscalls": "calls that reach past namespaces (vsock, io_uring, keyrings, ptrace, nested namespaces) are refused",
}
"""The axes of isolation, each with what *enforced* means."""


class Guarantee(StrEnum):
    """How far a provider keeps one axis on this machine, by measurement."""

    ENFORCED = "enforced"
    BEST_EFFORT = "best effort"
    ABSENT = "absent"


@dataclass(frozen=True, kw_only=True)
class ProgramLimits:
    """Limits on one run. All are positive."""

    seconds: float = 5.0
    """Wall-clock time."""
    cpu_seconds: float = 10.0
    """CPU time of each process; rounded up to whole seconds."""
    memory: int = 512 << 20
    """Bytes of memory, temporary files included, summed over all processes."""
    processes: int = 64
    """Processes and threads at one time."""
    output: int = 1 << 20
    """Bytes of standard output, and as many of standard error."""
    disk: int = 64 << 20
    """Bytes in ``/tmp``, as many in ``/dev/shm``, and the size of one file."""
    open_files: int = 256
    """Open file descriptors of each process."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if not 0 < value < float("inf"):
                raise UsageError(f"limits.{item.name} is {value}; expected a positive finite number")


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What a run took."""

    seconds: float
    """Wall-clock time from the release of the program to the end of its last process, measured on the host."""
    cpu_seconds: float
    """User and system time of the program and of the children that it waited for."""
    memory: int
    """Peak bytes: of all processes together where a control group counts them, else of the largest process."""
    refused_forks: int = 0
    """How often the limit on processes refused one; 0 where no control group counts it."""
    user: int | None = None
    """The program's user id on the host, as the kernel says; ``None`` where the program runs on another kernel."""


@dataclass(frozen=True, kw_only=True)
class ProgramResult:
    """How a program ended. Only the sandbox's own failures are exceptions.

    Attributes:
        status: ``ok`` means exit status 0 and nothing more; a grader needs a message that proves its tests ran.
        exit: exit status, 128 + n after signal n; ``None`` where the sandbox ended the program.
        truncated: the streams that were cut at the limit: ``stdout``, ``stderr``.
    """

    status: Status
    exit: int | None
    stdout: bytes
    stderr: bytes
    usage: Usage
    truncated: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Program:
    """One run: files of the working directory by relative path, and the command that starts there."""

    argv: Sequence[str]
    files: Mapping[str, bytes] = field(default_factory=dict)
    stdin: bytes = b""
    limits: ProgramLimits = field(default_factory=ProgramLimits)

    def __post_init__(self) -> None:
        if isinstance(self.argv, str) or not self.argv or any("\0" in word for word in self.argv):
            raise UsageError(f"argv is {self.argv!r}; expected a sequence of words without NUL, the command first")
        for name in self.files:
            parts = PurePosixPath(name).parts
            if not parts or name.startswith("/") or ".." in parts or "\0" in name or len(parts) > 16 or len(name) > 512:
                raise UsageError(
                    f"file name {name[:80]!r} is outside the working directory, too long or too deep; "
                    "expected a relative path without '..', of at most 16 parts and 512 characters"
                )
        size = sum(map(len, self.files.values()))
        if size > self.limits.disk or len(self.files) > 256:
            raise UsageError(
                f"{len(self.files)} files of {size} bytes; expected at most 256 files and limits.disk = "
                f"{self.limits.disk} bytes"
            )


class ProbedSandbox(Sandbox):
    """A provider: `run`, and the guarantees that it measured when it started."""

    guarantees: Mapping[str, Guarantee]
    """By axis, for all of `AXES`; filled at start."""

    @abstractmethod
    async def run(
        self,
        files: Mapping[str, bytes],
        argv: Sequence[str],
        stdin: bytes = b"",
        limits: ProgramLimits | None = None,
        network: bool = False,
    ) -> ProgramResult:
        """Run *argv* in a new box whose working directory has *files*; the box ends with the program.

        Raises:
            UsageError: the request itself is invalid, or the provider cannot give what it asks for.
            InfrastructureError: the sandbox failed. The program did not get a fair run, so there is no result.
        """

    @abstractmethod
    def fix(self, axis: str) -> str:
        """How the user gets the *axis* enforced on this machine: a command, or a setting."""

    def require(self, axes: Iterable[str]) -> None:
        """Refuse to go on unless each of *axes* is enforced.

        Raises:
            UsageError: one is not; the message has the fix of each.
        """
        unmet = []
        for axis in axes:
            if axis not in AXES:
                raise UsageError(f"unknown guarantee {axis!r}{did_you_mean(axis, AXES)}")
            if (level := self.guarantees.get(axis, Guarantee.ABSENT)) is not Guarantee.ENFORCED:
                unmet.append(f"  {axis}: {level}; {self.fix(axis)}")
        if unmet:
            raise UsageError(
                f"{type(self).__name__} does not enforce what is needed on this machine:\n" + "\n".join(unmet)
            )
