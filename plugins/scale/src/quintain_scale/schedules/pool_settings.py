"""What the engine `pool` takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator

from quintain.errors import UsageError
from quintain.registry import current

from .health import RestartPolicy

SLOTS = 64
"""Sequences that a replica decodes at once by default."""


def _known(name: str) -> str:
    current().find("engine", name)
    return name


Name = Annotated[str, AfterValidator(_known)]
Table = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class PoolSettings:
    """What `EnginePool` takes.

    Attributes:
        engine: of the replicas, a `TokenEngine`.
        count: of replicas, where *replicas* lists none.
        replicas: arguments of each replica, such as ``[{url = "http://a:8000"}, {url =
            "http://b:8000"}]``.
        settings: arguments of all replicas.
        slots: sequences that a replica decodes at once.
        segment: tokens after which a turn may move to another replica: it becomes several requests,
            each with a seed of its own. 0 samples a turn by one request, which does not move.
        late: replicas that an update between turns may leave behind; they end their turns, get new
            ones only if all others fail, and take the next update.
        restarts: of a replica within ten minutes; one that dies once more is given up.
        backoff: seconds before the first of these restarts; each further one waits twice as long,
            up to a minute.
        admission: the engine's own queue, preemptions and cache limit the turns of a replica, to at
            most *slots*; see `TurnLimit`.
        least, most: bounds of the number of replicas when it is changed in a running run; ``None``
            is no bound.

    Raises:
        UsageError: a setting is out of range.
    """

    engine: Name = "embedded"
    count: int = 2
    replicas: Sequence[Table] = ()
    settings: Table | None = None
    slots: int = SLOTS
    segment: int = 0
    late: int = 0
    restarts: int = 5
    backoff: float = 1.0
    admission: bool = False
    least: int = 1
    most: int | None = None

    def __post_init__(self) -> None:
        if self.slots < 1 or self.segment < 0 or not 0 <= self.late < len(self.args_by_replica):
            raise UsageError(
                f"a pool of {len(self.args_by_replica)} replicas, {self.late} of them late, with "
                f"{self.slots} slots and segments of {self.segment} tokens; expected at least 1 "
                "replica, fewer late ones, 1 slot, and 0 tokens"
            )
        count = len(self.args_by_replica)
        if not 1 <= self.least <= count or (self.most is not None and self.most < count):
            raise UsageError(
                f"a pool of {count} replicas, at least {self.least} and at most {self.most}; "
                f"expected 1 <= least <= {count} <= most"
            )
        self.restart_policy()  # which raises what it finds

    @property
    def args_by_replica(self) -> Sequence[Table]:
        """The arguments of each replica."""
        return self.replicas or [{}] * self.count

    def restart_policy(self) -> RestartPolicy:
        """Return when a dead replica is started again."""
        return RestartPolicy(restarts=self.restarts, backoff=self.backoff)
