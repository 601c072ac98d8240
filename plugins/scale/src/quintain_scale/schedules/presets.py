"""Presets: schedules by the names of the papers and trainers that introduced them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from quintain.errors import UsageError
from quintain.interfaces import EpisodeOrder, Schedule

from .orders import LongestFirst


@dataclass(frozen=True, kw_only=True)
class OneStepOff(Schedule):
    """The next batch is sampled while the learner updates on the last one (2410.18252; verl's
    ``one_step_off``).

    Attributes:
        order: of waiting episodes: ``fifo``, that of their tasks, or ``longest_first`` (see
            `LongestFirst`).
    """

    max_staleness: int = 1
    order: Literal["fifo", "longest_first"] = "fifo"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.order not in ("fifo", "longest_first"):
            raise UsageError(
                f"schedule.args.order is {self.order!r}; expected fifo or longest_first"
            )

    def collector(self) -> type[Any]:
        from .collector import AsyncCollector  # torch, which a listing of schedules does without

        return AsyncCollector

    def episode_order(self) -> EpisodeOrder | None:
        return LongestFirst() if self.order == "longest_first" else None


@dataclass(frozen=True, kw_only=True)
class Areal(OneStepOff):
    """Interruptible sampling with bounded staleness (AReaL, 2505.24298, section 4.1: staleness 4,
    cache recomputed).
    """

    max_staleness: int = 4
    in_flight_updates: bool = True


@dataclass(frozen=True, kw_only=True)
class Pipeline(OneStepOff):
    """In-flight updates on the old cache (PipelineRL, 2509.19128, section 4), here with a staleness
    of at most 8.
    """

    max_staleness: int = 8
    in_flight_updates: bool = True
    recompute_kv: bool = False
