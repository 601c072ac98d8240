"""Schedules: by how many weight versions sampling may run ahead of the learner, and what an update
does to sequences.

Synchronous, one-step-off and fully asynchronous training are the same loop with other values of a
`Schedule`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from ..errors import UsageError
from ..types.rollout import AnyRollout
from .rollout_request import RolloutRequest


class EpisodeOrder(Protocol):
    """Chooses which waiting episode starts next; it has the state of one run."""

    def choose(self, waiting: Sequence[tuple[RolloutRequest, int, int]]) -> int:
        """Return the position of the next episode in *waiting*, never empty: request, sample within
        the group, and number of the request, in the order of admission.
        """

    def observe(self, rollout: AnyRollout) -> None:
        """Take note of a finished rollout, such as of its ``seconds``."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The settings of a schedule; the defaults are synchronous training.

    Attributes:
        max_staleness: maximum of weight versions between the sampling of a token and its update. Up
            to this number of batches is sampled ahead (capacity admission; AReaL, 2505.24298,
            section 5.1); 0 samples nothing ahead. A collector that samples ahead
            refuses older groups; what the loss does about the others is `Algorithm.ratio_to`.
        in_flight_updates: the engine takes new weights in the middle of sequences, which continue
            under them; else it starts no turn until the turns that are being sampled end.
        recompute_kv: after an update in flight, keys and values of unfinished sequences are
            computed again.
        stale: what becomes of a group with an older token. With ``wait`` the learner waits for
            running groups that would become too old, so that none is left out. ``drop`` counts and
            leaves it out, ``retry`` samples its task again.
    """

    max_staleness: int = 0
    in_flight_updates: bool = False
    recompute_kv: bool = True
    stale: Literal["drop", "retry", "wait"] = "wait"

    def __post_init__(self) -> None:
        if type(self.max_staleness) is not int or not 0 <= self.max_staleness <= 10_000:
            raise UsageError(
                f"schedule.args.max_staleness is {self.max_staleness!r}; expected a whole number "
                f"from 0 to 10,000"
            )
        if self.stale not in ("drop", "retry", "wait"):
            raise UsageError(f"schedule.args.stale is {self.stale!r}; expected drop, retry or wait")

    @property
    def overlaps(self) -> bool:
        """Whether episodes run while the learner updates; with a staleness of 0, the same code
        waits for them.
        """
        return self.max_staleness > 0 or self.in_flight_updates

    def collector(self) -> type[Any] | None:
        """Return the subclass of `quintain.run.Collector` that runs episodes while the learner
        updates, which a schedule imports here; ``None`` if it has none and each step waits for its
        groups.
        """
        return None

    def episode_order(self) -> EpisodeOrder | None:
        """Return the order of waiting episodes; ``None`` is that of their tasks."""
        return None
