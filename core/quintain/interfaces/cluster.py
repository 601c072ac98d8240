"""A cluster: what starts processes of a run on any of several machines.

Without ``[cluster]`` a run has none, and its components start their processes themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

Role = Literal["rank", "replica", "worker"]


@dataclass(frozen=True, kw_only=True)
class ProcessRequest:
    """A process to start.

    Attributes:
        role: what the process is for.
        words: arguments of the Python that runs there, as ``("-m", "my_package.rank")``.
        environment: variables beside those of the machine. No command line has them, so secrets go
            here.
        cpus, gpus: what it takes of its machine. A process sees no other GPUs.
        restarts: whether the cluster starts it again when it is killed or its machine is gone. One
            whose owner has to know of each end asks for a new process itself.
    """

    role: Role
    words: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    cpus: float = 1
    gpus: float = 0
    restarts: bool = True


class PlacedProcess(Protocol):
    """A process that a cluster has started, and starts again, here or elsewhere, when it is killed
    or its machine is gone, if that was asked for.

    Attributes:
        host: address of its machine; empty while it waits for room.
        ended: its exit code and last words, once it has ended and does not start again; else
            ``None``.
    """

    @property
    def host(self) -> str: ...

    @property
    def ended(self) -> str | None: ...

    def end(self) -> None:
        """End the process, if it has not, and give its room back."""


@runtime_checkable
class ProcessCluster(Protocol):
    """Machines on which processes can be started. Register a callable that makes one of its settings.

    Attributes:
        host: address at which processes of the cluster reach this machine.
    """

    host: str

    def start(self, requests: Sequence[ProcessRequest]) -> Sequence[PlacedProcess]:
        """Start processes that need each other: each waits until there is room for all. Does not
        wait for them. May be called from any thread.

        Raises:
            UsageError: one asks for what the cluster does not know.
        """

    def close(self) -> None:
        """End all processes. They end with this process, too."""
