"""Sampling plans: which tasks an algorithm samples and how it fills a batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..errors import UsageError, did_you_mean
from ..types.sampling import ThinkingBudget
from .pieces import Piece


@dataclass(frozen=True, kw_only=True)
class SamplingPlan:
    """Which tasks are sampled and how a batch is filled.

    Attributes:
        resample: what follows a rejected group. ``none``: the batch is smaller (filtering).
            ``dynamic``: once all are complete, missing groups are sampled together (dynamic
            sampling; DAPO, 2503.14476). ``active``: another task starts as soon as a group is
            rejected (active sampling; Olmo 3, 2512.13961). Both give the same batch: the first
            accepted groups in the order of tasks, whichever finish first.
        attempts: maximum of sampled groups per step, as a multiple of the batch; then the step uses
            the accepted ones.
        order: ``shuffled``, ``easy_to_hard`` (by `Task.level`, once over the run; a smaller split
            repeats), or ``hard_first`` (in proportion to 1 - success rate so far; Kimi k1.5,
            2501.12599, section 2.3.4).
        curriculum: the component that chooses the tasks, or ``FILE.py:Class``; empty: the one that
            *order*, *drop_solved* and the difficulty need.
        drop_solved: a task whose success rate over the run reached this is not drawn again
            (no-positive-resampling; ScaleRL, 2510.13786, with 0.9). Once all tasks are solved, all
            are restored and their rates reset.
        difficulty_samples: samples per task from the initial policy before the first step; 0: none.
            Tasks whose success rate is outside *difficulty_range* or unknown are left out; as many
            are measured as the run samples.
        difficulty_file: success rates that `quintain pass-rates` wrote, instead of
            *difficulty_samples*.
        difficulty_range: lowest and highest success rate of the tasks to keep, both included.
        thinking_budget: of the policy's turns, or ``None``.
        staleness: number of weight versions by which the sampler lags (asynchrony, simulated in a
            synchronous run).
    """

    resample: Literal["none", "dynamic", "active"] = "none"
    attempts: int = 10
    order: Literal["shuffled", "easy_to_hard", "hard_first"] = "shuffled"
    curriculum: str = ""
    drop_solved: float | None = None
    difficulty_samples: int = 0
    difficulty_file: str = ""
    difficulty_range: tuple[float, float] = (0.0, 1.0)
    staleness: int = 0
    thinking_budget: ThinkingBudget | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "difficulty_range", tuple(self.difficulty_range))
        if isinstance(self.thinking_budget, Mapping):
            settings = known_settings(ThinkingBudget, self.thinking_budget, "plan.thinking_budget")
            object.__setattr__(self, "thinking_budget", ThinkingBudget(**settings))
        for name, allowed in (
            ("resample", ("none", "dynamic", "active")),
            ("order", ("shuffled", "easy_to_hard", "hard_first")),
        ):
            if getattr(self, name) not in allowed:
                raise UsageError(
                    f"plan.{name} is {getattr(self, name)!r}; expected {', '.join(allowed)}"
                )
        for name, smallest, largest in (
            ("attempts", 1, 10_000),
            ("difficulty_samples", 0, 65_536),
            ("staleness", 0, 10_000),
        ):
            if type(value := getattr(self, name)) is not int or not smallest <= value <= largest:
                raise UsageError(
                    f"plan.{name} is {value!r}; expected a whole number from {smallest} to "
                    f"{largest:,}"
                )
        if self.drop_solved is not None and not 0 < self.drop_solved <= 1:
            raise UsageError(
                f"plan.drop_solved is {self.drop_solved!r}; expected a success rate above 0, at "
                f"most 1"
            )
        if (
            len(self.difficulty_range) != 2
            or not 0 <= self.difficulty_range[0] <= self.difficulty_range[1] <= 1
        ):
            raise UsageError(
                f"plan.difficulty_range is {self.difficulty_range!r}; expected two success rates, "
                f"the lower first"
            )


def known_settings(settings: Any, changes: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """Return *changes*, once each key is a field of *settings*; a piece checks its own arguments.

    Raises:
        UsageError: a key is no field of *settings*.
    """
    if not isinstance(settings, Piece):
        names = {f.name for f in dataclasses.fields(settings)} - {"published"}
        for key in changes:
            if key not in names:
                raise UsageError(
                    f"{where or 'an algorithm'} has no setting {key!r}{did_you_mean(key, names)}"
                )
    return changes
