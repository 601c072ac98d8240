"""The axes of isolation, and how far a provider keeps each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator

from quintain.errors import UsageError, did_you_mean

AXES: Mapping[str, str] = {
    "filesystem": "no host file other than programs and libraries can be read, and none can be changed",
    "network": "neither another machine nor a server or abstract socket of this one is reachable",
    "processes": (
        "no process of the host can be listed, read or signalled, and all of the program's end "
        "with it"
    ),
    "users": (
        "the program's user on the host owns nothing and differs from the trainer's and from its "
        "neighbours'"
    ),
    "memory": "the sum over all processes and temporary files is bounded",
    "forks": "the number of processes and threads is bounded",
    "disk": "the bytes written to temporary files and the size of one file are bounded",
    "output": "the bytes read from standard output and error are bounded",
    "time": "the program ends at most 0.25 s after its limit",
    "syscalls": (
        "calls that reach past namespaces (vsock, io_uring, keyrings, ptrace, nested namespaces) "
        "are refused"
    ),
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
    UNKNOWN = "not known"
    ABSENT = "absent"


def weakest(*levels: Guarantee) -> Guarantee:
    """Return the level that all of *levels* reach."""
    return max(levels, key=list(Guarantee).index)


def known_axes(names: Iterable[str], where: str) -> tuple[str, ...]:
    """Return *names*, each of which must be among `AXES`.

    Raises:
        UsageError: one is not; the message begins with *where* and has the most similar axis.
    """
    names = tuple(names)
    for name in names:
        if name not in AXES:
            raise UsageError(f"{where} {name!r}, which is no guarantee{did_you_mean(name, AXES)}")
    return names


Axes = Annotated[Sequence[str], AfterValidator(lambda names: known_axes(names, "enforce has"))]
"""The type of a field with names of axes: a recipe with an unknown one is refused before anything
starts.
"""
