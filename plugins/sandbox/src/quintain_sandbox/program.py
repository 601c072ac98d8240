"""A program and how it ended, as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import ceil
from pathlib import PurePosixPath
from typing import Literal

from quintain.errors import UsageError

Status = Literal["ok", "failed", "timeout", "memory", "output", "closed"]
"""``ok`` is exit status 0, ``failed`` any other exit, ``closed`` a kill by the caller; the rest are
limits.
"""
WAITER_NAME = "quintain-waits"
"""An argument by which a container's own command is found among its processes."""
HOME = "/tmp/box"
"""The working directory of a program that sees file systems of its own."""
ENVIRONMENT: Mapping[str, str] = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": HOME,
    "LANG": "C.UTF-8",
    "TMPDIR": "/tmp",
    "USER": "nobody",
    "LOGNAME": "nobody",
}
"""What every provider sets; without file systems of its own, a program has other folders."""


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
    """Open file descriptors of each process; a few more than there are files where that is
    larger.
    """

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if not isinstance(value, (int, float)) or not 0 < value < float("inf"):
                raise UsageError(
                    f"limits.{item.name} is {value!r}; expected a positive finite number"
                )


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What a run took."""

    seconds: float
    """Wall-clock time from the release of the program to the end of its last process, measured on
    the host.
    """
    cpu_seconds: float
    """User and system time of the program and of the children that it waited for."""
    memory: int
    """Peak bytes: of all processes together where a control group counts them, else of the largest
    process.
    """
    refused_forks: int = 0
    """How often the limit on processes refused one; 0 where no control group counts it."""
    user: int | None = None
    """The program's user id on the host, as the kernel says; ``None`` where the program runs on
    another kernel.
    """


@dataclass(frozen=True, kw_only=True)
class ProgramResult:
    """How a program ended. Only the sandbox's own failures are exceptions.

    Attributes:
        status: ``ok`` means exit status 0 and nothing more; a grader needs a message that proves
            its tests ran.
        exit: exit status, 128 + n after signal n; ``None`` where the sandbox ended the program.
        truncated: the streams that were cut at the limit: ``stdout``, ``stderr``.
    """

    status: Status
    exit: int | None
    stdout: bytes
    stderr: bytes
    usage: Usage
    truncated: tuple[str, ...] = ()


def as_limits(limits: ProgramLimits | None) -> ProgramLimits:
    """Return *limits*, or the defaults.

    Raises:
        UsageError: it is something else.
    """
    if limits is not None and not isinstance(limits, ProgramLimits):
        raise UsageError(
            f"limits is {limits!r}; expected ProgramLimits, such as limits=ProgramLimits(seconds=2)"
        )
    return limits or ProgramLimits()


def as_files(files: Mapping[str, bytes | str] | None) -> dict[str, bytes]:
    """Return *files* with contents as bytes; text as UTF-8.

    Raises:
        UsageError: it is no mapping of names to contents.
    """
    if files is not None and (
        not isinstance(files, Mapping) or not all(isinstance(name, str) for name in files)
    ):
        raise UsageError(
            f"files is {str(files)[:80]!r}; expected contents by name, such as {{'main.py': "
            f"'print(1)'}}"
        )
    return {
        name: as_bytes(content, f"files[{name[:80]!r}]") for name, content in (files or {}).items()
    }


def as_bytes(content: object, name: str) -> bytes:
    """Return *content* as bytes; text as UTF-8.

    Raises:
        UsageError: it is neither, or text that UTF-8 cannot encode.
    """
    if isinstance(content, (bytes, bytearray, memoryview)):
        return bytes(content)
    if not isinstance(content, str):
        raise UsageError(f"{name} is a {type(content).__name__}; expected bytes or text")
    try:
        return content.encode()
    except UnicodeEncodeError as e:
        raise UsageError(
            f"{name} has characters that UTF-8 cannot encode ({e.reason}); give bytes"
        ) from e


@dataclass(frozen=True, kw_only=True)
class Program:
    """One run: files of the working directory by relative path, and the command that starts there.

    Raises:
        UsageError: an argument has another type, or is out of range.
    """

    argv: Sequence[str]
    files: Mapping[str, bytes] = field(default_factory=dict)
    stdin: bytes = b""
    interactive: bool = False
    """Whether standard input stays open after *stdin*, for a caller that writes more."""
    unread: int | None = None
    """Bounds the bytes of standard output that nobody has read yet, in place of ``limits.output``
    for all of them.
    """
    limits: ProgramLimits = field(default_factory=ProgramLimits)

    def __post_init__(self) -> None:
        if isinstance(self.argv, (str, bytes)) or not self.argv:
            raise UsageError(
                f"argv is {self.argv!r}; expected a sequence of words, the command first"
            )
        for word in self.argv:
            if not isinstance(word, str) or "\0" in word:
                raise UsageError(f"argv has {word!r}; expected words of text without NUL")
        for name in self.files:
            parts = PurePosixPath(name).parts
            if (
                not parts
                or name.startswith("/")
                or ".." in parts
                or "\0" in name
                or len(parts) > 16
                or len(name) > 512
            ):
                raise UsageError(
                    f"file name {name[:80]!r} is outside the working directory, too long or too "
                    "deep; expected a relative path without '..', of at most 16 parts and 512 "
                    "characters"
                )
        size = sum(map(len, self.files.values()))
        if size > self.limits.disk or len(self.files) > 256:
            raise UsageError(
                f"{len(self.files)} files of {size} bytes; expected at most 256 files and "
                f"limits.disk = {self.limits.disk} bytes"
            )


def process_limits(
    program: Program, *, own_user: bool, memory_is_counted: bool, supervisors: int = 0
) -> dict[str, int]:
    """Return the resource limits of each process, by the names of `resource` without ``RLIMIT_``:
    the second line of defence.

    Args:
        own_user: whether the program's user has no other processes, which the kernel would count
            with its own.
        memory_is_counted: whether a control group bounds the sum of memory.
        supervisors: processes of the provider that the same user has.
    """
    limits = program.limits
    limits_by_name = {
        "CPU": ceil(limits.cpu_seconds),
        "CORE": 0,
        "FSIZE": limits.disk,
        # bubblewrap reads each from a descriptor
        "NOFILE": max(limits.open_files, len(program.files) + 24),
    }
    if own_user:
        limits_by_name["NPROC"] = limits.processes + supervisors
    if not memory_is_counted:
        limits_by_name["AS"] = limits.memory
    return limits_by_name
