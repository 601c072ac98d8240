"""Plans: which tasks a method tries and how it fills a batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..errors import UsageError, did_you_mean
from ..types.sampling import Interrupt
from .pieces import Piece


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Which tasks are tried and how a batch is filled: what a method needs besides its pieces.

    Attributes:
        refill: what follows a refused group. ``none``: the batch is smaller (filtering). ``rounds``: missing groups are
            tried together once all have ended, accepted ones are kept (dynamic sampling; DAPO, 2503.14476). ``active``:
            another task starts as soon as a group is refused (active sampling; Olmo 3, 2512.13961). Both give the same
            batch: the first admitted groups in the order of tasks, never of finishing.
        attempts: groups tried per step at most, in batches; then the step learns from what there is.
        order: ``shuffled``, ``level`` (easy to hard, by `Task.level`, once over the run; a smaller split again and
            again), or ``failures`` (in proportion to 1 - success rate so far; Kimi k1.5, 2501.12599, section 2.3.4).
        retire: a task whose success rate over the run reached this is not drawn again (no-positive-resampling; ScaleRL,
            2510.13786, with 0.9). Once all did, they come back and their rates are counted anew; the run says so.
        probe: samples per task of the starting policy, before the first step; 0 skips it. Tasks whose success rate is
            outside *keep* are left out (difficulty filter by best-of-n), and so is what was not probed: beyond as many
            tasks as the run will try, 4,096 at most.
        keep: lowest and highest success rate in *probe* samples that stays, both included.
        lag: published versions that the sampler is behind (a synchronous run's model of asynchrony).
        interrupt: forced interruption, or ``None``.
    """

    refill: Literal["none", "rounds", "active"] = "none"
    attempts: int = 10
    order: Literal["shuffled", "level", "failures"] = "shuffled"
    retire: float | None = None
    probe: int = 0
    keep: tuple[float, float] = (0.0, 1.0)
    lag: int = 0
    interrupt: Interrupt | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "keep", tuple(self.keep))
        if isinstance(self.interrupt, Mapping):
            interrupt = Interrupt(**known_settings(Interrupt, self.interrupt, "plan.interrupt"))
            object.__setattr__(self, "interrupt", interrupt)
        for name, allowed in (("refill", ("none", "rounds", "active")), ("order", ("shuffled", "level", "failures"))):
            if getattr(self, name) not in allowed:
                raise UsageError(f"plan.{name} is {getattr(self, name)!r}; expected {', '.join(allowed)}")
        for name, least in (("attempts", 1), ("probe", 0), ("lag", 0)):
            if type(getattr(self, name)) is not int or getattr(self, name) < least:
                raise UsageError(f"plan.{name} is {getattr(self, name)!r}; expected a whole number from {least}")
        if self.retire is not None and not 0 < self.retire <= 1:
            raise UsageError(f"plan.retire is {self.retire!r}; expected a success rate above 0, at most 1")
        if len(self.keep) != 2 or not 0 <= self.keep[0] <= self.keep[1] <= 1:
            raise UsageError(f"plan.keep is {self.keep!r}; expected two success rates, the lower first")


def known_settings(held: Any, table: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """*table* if all keys are settings of *held*; those of a piece are its own to check.

    Raises:
        UsageError: a key that is no setting of *held*.
    """
    if not isinstance(held, Piece):
        known = {f.name for f in dataclasses.fields(held)} - {"published"}
        for key in table:
            if key not in known:
                raise UsageError(f"{where or 'an algorithm'} has no setting {key!r}{did_you_mean(key, known)}")
    return table
