"""Whether a replica may take turns: a table of states without clock, processes or network."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum

from quintain.errors import UsageError


class ReplicaState(StrEnum):
    """Where a replica is between its start and its end. Only a healthy one takes turns."""

    HEALTHY = "healthy"
    DEAD = "dead"
    RESTARTING = "restarting"
    STALE = "stale"
    GIVEN_UP = "given up"
    LEAVING = "leaving"
    REMOVED = "removed"


COMING = frozenset({ReplicaState.DEAD, ReplicaState.RESTARTING, ReplicaState.STALE})
"""States from which a replica may become healthy again."""
ENDED = frozenset({ReplicaState.GIVEN_UP, ReplicaState.REMOVED})
UP = frozenset({ReplicaState.HEALTHY, ReplicaState.STALE, ReplicaState.LEAVING})
"""States in which a replica runs; only such a one can die."""


@dataclass(frozen=True, kw_only=True)
class RestartPolicy:
    """How often and how soon a replica is started again.

    Attributes:
        restarts: at most within *window* seconds; one more death and it is given up.
        backoff: seconds before the first restart in *window*; each further one waits twice as long,
            at most *longest*.
        failures: turns or probes that fail one after the other until the replica counts as dead.

    Raises:
        UsageError: a number is out of range.
    """

    restarts: int = 5
    window: float = 600.0
    backoff: float = 1.0
    longest: float = 60.0
    failures: int = 3

    def __post_init__(self) -> None:
        if self.restarts < 0 or self.backoff < 0 or self.failures < 1:
            raise UsageError(
                f"{self.restarts} restarts, the first after {self.backoff:g} s, on {self.failures} "
                "failures; expected 0 or more restarts and seconds, and at least 1 failure"
            )


@dataclass(kw_only=True)
class ReplicaHealth:
    """The state of one replica, and why.

    No way leads from dead to healthy but by `restarting`, `came_up` and `took_weights`: a new
    process has the weights that it loaded, which are old.

    Attributes:
        state: of now; a replica that is started while the run goes on begins as dead.
        why: the error that brought it there; empty while it is healthy.
        retry_at: time from which a dead one may be started.
    """

    policy: RestartPolicy
    state: ReplicaState = ReplicaState.HEALTHY
    why: str = ""
    retry_at: float = 0.0
    _failures: dict[str, int] = field(default_factory=dict)
    _deaths: deque[float] = field(default_factory=deque)

    def failed(self, now: float, source: str, why: str) -> bool:
        """Note that a turn or a probe, the *source*, failed at the time *now*; return whether that
        was one too many, and the replica is dead.
        """
        if self.state not in UP:
            return False
        self._failures[source] = self._failures.get(source, 0) + 1
        if self._failures[source] < self.policy.failures:
            return False
        self.died(now, why)
        return True

    def succeeded(self, source: str) -> None:
        """Note that a turn or a probe succeeded. A server may answer probes and fail every turn, so
        that one does not excuse the other.
        """
        self._failures.pop(source, None)

    def died(self, now: float, why: str) -> None:
        """Note that it can sample no more. One that dies too often is given up, and one that was
        leaving is gone.
        """
        if self.state in ENDED:
            return
        self.why = why
        self._failures.clear()
        if self.state == ReplicaState.LEAVING:
            self.state = ReplicaState.REMOVED
            return
        while self._deaths and self._deaths[0] <= now - self.policy.window:
            self._deaths.popleft()
        self._deaths.append(now)
        if len(self._deaths) > self.policy.restarts:
            self.state = ReplicaState.GIVEN_UP
            return
        self.state = ReplicaState.DEAD
        delay = self.policy.backoff * 2.0 ** (len(self._deaths) - 1)
        self.retry_at = now + min(self.policy.longest, delay)

    def restarting(self) -> None:
        """Note that a dead one is being started."""
        self._expect(ReplicaState.DEAD)
        self.state = ReplicaState.RESTARTING

    def came_up(self) -> None:
        """Note that it runs again, with weights of its own."""
        self._expect(ReplicaState.RESTARTING)
        self.state = ReplicaState.STALE

    def took_weights(self) -> None:
        """Note that it has the weights of now, checked by its canary."""
        if self.state == ReplicaState.LEAVING:
            return
        self._expect(ReplicaState.STALE, ReplicaState.HEALTHY)
        self.state, self.why = ReplicaState.HEALTHY, ""

    def leaves(self) -> None:
        """Note that it was removed: it ends its turns and gets no new ones."""
        self.why = "removed"
        healthy = self.state == ReplicaState.HEALTHY
        self.state = ReplicaState.LEAVING if healthy else ReplicaState.REMOVED

    def ended(self) -> None:
        """Note that a leaving one has ended its turns and is closed."""
        self.state = ReplicaState.REMOVED

    def _expect(self, *states: ReplicaState) -> None:
        if self.state not in states:
            raise RuntimeError(f"a replica is {self.state}; expected {' or '.join(states)}")
