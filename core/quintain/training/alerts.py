"""Alerts: what in the metrics of a run calls for a person, in plain words, once when it begins and once when it ends.

An alert is a pure function of the run's recent metrics (`History`). It gives a level: 1 or more is where it begins, 0
or less where it ends, and in between it stays as it is, so that a number near a threshold does not make it flicker. The
levels at which each condition begins and ends stand at the top, with the reason. A step that cannot tell (its numbers
are missing) changes nothing.

An `AlertMonitor` folds the lines of ``metrics.jsonl``, one by one. It keeps nothing that those lines do not hold, so a
resumed run reads them again and goes on as if it had never stopped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any, NamedTuple

MetricsRecord = Mapping[str, Any]


class Thresholds(NamedTuple):
    """Where a condition begins and where it ends again; above or below, as the two stand to each other."""

    begins: float
    ends: float

    def level(self, value: float) -> float:
        """1 at the beginning, 0 at the end, on a straight line through both."""
        return (value - self.ends) / (self.begins - self.ends)


SPAN = 5
"""Steps that most alerts average over: one bad batch is noise, five in a row are not."""
IDLE_SPAN = 10
"""Steps without anything to learn before that is said: small batches meet a few by chance."""
START = 5
"""Steps that stand for the beginning of the run."""
MARKS = 8
"""Held-out measurements that are remembered."""

ENTROPY_GONE = Thresholds(0.95, 0.9)
"""Share of the first steps' entropy that has gone. Runs of the default model that learn well lose half to nine tenths
of it on their way to 90 % success. Performance is bought with entropy and stops rising as that runs out (Cui et al.
2025, 2505.22617); DAPO (2503.14476, section 3.1) shows a run that loses nearly all of it early."""
UNSOLVED = Thresholds(0.9, 0.95)
"""Success below which lost entropy, or a step that teaches nothing, is a loss: a policy that is right may be sure."""
RATIO = Thresholds(math.log(20), math.log(10))
"""Log of the median over steps of the largest theta / ratio_to. Clips work between 0.8 and 1.3; a token that has become
twenty times as likely within one batch has left the region where the old samples say anything."""
RATIO_AT_ONCE = Thresholds(math.log(1000), math.log(10))
"""The same of a single step: no batch has room for that."""
FALL = Thresholds(1.0, 0.5)
"""Fall of the held-out accuracy from its best, in units of `LEAST_FALL` or of the best's half interval, the larger."""
LEAST_FALL = 0.05
RISE = Thresholds(0.1, 0.0)
"""Rise of the training reward since then, in units of its spread; less is drift of the tasks drawn."""
ALL_SOLVED = Thresholds(0.95, 0.85)
"""Share of groups whose samples are all right: what is left teaches, but the batch is paid for in full."""
NOTHING = Thresholds(0.9, 0.5)
"""Share of the last `IDLE_SPAN` steps that taught nothing."""
IDLE = 0.99
"""Share of samples with advantage 0 from which on a step counts as one that taught nothing."""
GRADIENT_GONE = 1e-3
"""So does one whose gradient is smaller than this times the median of the first steps'."""
MISMATCH = Thresholds(0.05, 0.03)
"""Mean \\|log prox - log mu\\| in nats. Sound pairs of engine and trainer stay within 1 to 2 % (the limit that NeMo-RL
gives for its mean of exp\\|difference\\|); a wrong temperature or template makes tenths."""
TRUNCATED = Thresholds(0.25, 0.15)
"""Share of answers that hit a limit. They score as if the model knew no better (TRL #6263: a limit of 256 tokens cut
50 to 80 % of the GSM8K answers)."""
FAILURES = Thresholds(0.1, 0.05)
"""Share of rollouts that failed through no fault of the policy: they are paid for and left out."""


class Mark(NamedTuple):
    """A held-out measurement: of which step, its accuracy, half its interval, the training reward of the steps before
    it (``None``: there were none).
    """

    step: int
    accuracy: float
    slack: float
    reward: float | None


@dataclass(frozen=True, kw_only=True)
class History:
    """What an alert sees.

    Attributes:
        start: the metrics of the first `START` steps.
        recent: those of the last `IDLE_SPAN` steps, the last one at the end.
        marks: the best held-out measurement before the last `MARKS`, if it is better than those, then they.
    """

    start: tuple[MetricsRecord, ...] = ()
    recent: tuple[MetricsRecord, ...] = ()
    marks: tuple[Mark, ...] = ()

    def then(self, record: MetricsRecord) -> History:
        """With one more line of ``metrics.jsonl``; that of step 0 says what came before training."""
        grown = self
        if record["step"] > 0:
            start = self.start if len(self.start) == START else (*self.start, record)
            grown = replace(self, start=start, recent=(*self.recent, record)[-IDLE_SPAN:])
        accuracy = number(record, "held_out.accuracy")
        if accuracy is None:
            return grown
        low = number(record, "held_out.low")
        slack = max(LEAST_FALL, accuracy - low if low is not None else 0.0)
        mark = Mark(record["step"], accuracy, slack, grown.mean("reward.mean"))
        marks = (*self.marks, mark)
        best = max(marks[:-MARKS], key=lambda m: m.accuracy, default=None)
        return replace(grown, marks=((best,) if best else ()) + marks[-MARKS:])

    def last(self, name: str, span: int = SPAN) -> list[float]:
        """The values of *name* in the last *span* steps; none while there are fewer steps, or where most lack it."""
        if len(self.recent) < span:
            return []
        values = [value for r in self.recent[-span:] if (value := number(r, name)) is not None]
        return values if 2 * len(values) > span else []

    def mean(self, name: str, span: int = SPAN) -> float | None:
        """Their mean."""
        values = self.last(name, span)
        return fmean(values) if values else None


def number(record: MetricsRecord, name: str) -> float | None:
    """A finite number of a record; what is not finite stands as ``null`` in the file."""
    value = record.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


@dataclass(frozen=True, kw_only=True)
class Alert:
    """Something that calls for a person.

    Attributes:
        name: as in the list ``alerts`` of the metrics.
        level: of the history: begins at 1, ends at 0; ``None`` where it cannot tell.
        meaning: what it says.
        remedy: what to try.
        shows: metrics that a person wants to see with it.
    """

    name: str
    level: Callable[[History], float | None]
    meaning: str
    remedy: str
    shows: tuple[str, ...]

    def sentence(self, record: MetricsRecord) -> str:
        """For a person, with the numbers of *record*."""
        numbers = ", ".join(f"{name} {value:.3g}" for name in self.shows if (value := number(record, name)) is not None)
        return f"{self.name}: {self.meaning}{f' ({numbers})' if numbers else ''}. {self.remedy}"


def _all_of(*levels: float | None) -> float | None:
    """Begins where all have begun, ends where one has ended."""
    present = [level for level in levels if level is not None]
    return min(present) if len(present) == len(levels) else None


def _of_mean(name: str, thresholds: Thresholds) -> Callable[[History], float | None]:
    def level(history: History) -> float | None:
        mean = history.mean(name)
        return None if mean is None else thresholds.level(mean)

    return level


def entropy_collapse(history: History) -> float | None:
    """Hardly any of the entropy that the run began with is left, and tasks are still unsolved."""
    first = [value for r in history.start if (value := number(r, "entropy.sampled")) is not None]
    now, success = history.mean("entropy.sampled"), history.mean("success")
    if not first or now is None or success is None or max(first) <= 0:
        return None
    return _all_of(ENTROPY_GONE.level(1 - now / max(first)), UNSOLVED.level(success))


def ratio_explosion(history: History) -> float | None:
    """The largest ratio is far from 1, for several steps or beyond all measure in one."""
    largest = [math.log(value) for value in history.last("ratio.max") if value > 0]
    if not largest:
        return None
    return max(RATIO.level(median(largest)), RATIO_AT_ONCE.level(largest[-1]))


def held_out_falls(history: History) -> float | None:
    """The last two held-out measurements are well below the best one before them, while the training reward rose."""
    if len(history.marks) < 3:
        return None
    *before, last, latest = history.marks
    best = max(before, key=lambda mark: mark.accuracy)
    early = best.reward
    if early is None:
        first = [value for r in history.start if (value := number(r, "reward.mean")) is not None]
        early = fmean(first) if first else None
    spread = history.mean("reward.spread")
    if early is None or latest.reward is None or spread is None:
        return None
    fall = (best.accuracy - max(last.accuracy, latest.accuracy)) / best.slack
    rise = (latest.reward - early) / spread if spread > 0 else math.copysign(1.0, latest.reward - early)
    return _all_of(FALL.level(fall), RISE.level(rise))


def nothing_learned(history: History) -> float | None:
    """Step after step without an advantage or a gradient, on tasks that are not solved."""
    success = history.mean("success")
    if len(history.recent) < IDLE_SPAN or success is None:
        return None
    norms = [value for r in history.start if (value := number(r, "grad_norm"))]
    least = GRADIENT_GONE * median(norms) if norms else 0.0
    idle = fmean(_taught_nothing(r, least) for r in history.recent)
    return _all_of(NOTHING.level(idle), UNSOLVED.level(success))


def _taught_nothing(record: MetricsRecord, least: float) -> bool:
    if number(record, "critic.warmup"):  # on purpose
        return False
    if not number(record, "updates"):  # none was made, or no group was accepted
        return True
    idle, norm = number(record, "idle"), number(record, "grad_norm")
    return (idle is not None and idle >= IDLE) or (norm is not None and norm <= least)


ALERTS = (
    Alert(
        name="entropy_collapse",
        level=entropy_collapse,
        meaning="the policy says nearly the same thing every time, though tasks are unsolved, so it finds nothing new",
        remedy="Go back to a checkpoint from before; lower learner.lr, raise the upper clip (clip-higher), add a KL "
        "term, or sample at a higher temperature.",
        shows=("entropy.sampled", "success"),
    ),
    Alert(
        name="ratio_explosion",
        level=ratio_explosion,
        meaning="within one batch the policy moves so far that its own samples no longer speak for it",
        remedy="Lower learner.lr, take fewer epochs or minibatches per batch, or an objective with a tighter clip.",
        shows=("ratio.max", "clip.high", "kl.prox.k3"),
    ),
    Alert(
        name="held_out_falls",
        level=held_out_falls,
        meaning="reward rises in training while held-out accuracy falls: the policy learns the reward or the tasks by "
        "heart, not the skill",
        remedy="Read what it says in the rollouts of the last steps, look at each part of the reward, go back to the "
        "best checkpoint, add tasks, or add a KL term.",
        shows=("held_out.accuracy", "reward.mean", "success"),
    ),
    Alert(
        name="all_solved",
        level=_of_mean("zero_variance.all_right", ALL_SOLVED),
        meaning="nearly every group is all right, so hardly any sample teaches any more",
        remedy="Stop here, or give harder tasks; plan.resample keeps the batch full of groups that differ.",
        shows=("zero_variance.all_right", "held_out.accuracy"),
    ),
    Alert(
        name="nothing_learned",
        level=nothing_learned,
        meaning="no sample of the last steps is better or worse than the others of its group, or no gradient is left",
        remedy="If all answers are wrong, take easier tasks, a reward with steps in between, more samples per group or "
        "a warm start; if all are alike, sample at a higher temperature.",
        shows=("success", "zero_variance.all_wrong", "grad_norm"),
    ),
    Alert(
        name="mismatch",
        level=_of_mean("mismatch.mean", MISMATCH),
        meaning="the sampler and the learner give the same tokens different probabilities, so the gradient is that of "
        "another policy",
        remedy="Where staleness.mean is above 0 that is a part of it. Compare temperature, template and precision on "
        'both sides; take float32 or float16 on both, or a correction such as algorithm.args.correction = "tis" (a '
        "ratio to mu holds one already: tighten its clip or cap instead).",
        shows=("mismatch.mean", "mismatch.max", "ess.tokens", "staleness.mean"),
    ),
    Alert(
        name="truncated",
        level=_of_mean("truncated", TRUNCATED),
        meaning="many answers are cut off by a limit and score as if the model knew no better",
        remedy="Raise sampling.max_tokens or the environment's limits, or shorten answers (soft overlong punishment).",
        shows=("truncated", "length.mean", "length.max"),
    ),
    Alert(
        name="failures",
        level=_of_mean("failed", FAILURES),
        meaning="many rollouts fail through no fault of the policy (time-outs, crashed rewards or services)",
        remedy="The counts termination.* and the warnings above say which; mend what fails before you trust the "
        "curves.",
        shows=("failed", "retried"),
    ),
)


@dataclass(frozen=True, kw_only=True)
class Change:
    """What a step changed: alerts that began, that ended, and the names of those that are on."""

    begun: tuple[Alert, ...] = ()
    ended: tuple[Alert, ...] = ()
    active: tuple[str, ...] = ()


def alert_intervals(records: Iterable[MetricsRecord]) -> list[tuple[str, int, int]]:
    """When alerts were on: name, first and last step, in the order in which they began."""
    intervals: list[tuple[str, int, int]] = []
    on: dict[str, int] = {}
    for record in records:
        names = record.get("alerts", ())
        on = {name: place for name, place in on.items() if name in names}
        for name in names:
            if name in on:
                intervals[on[name]] = (name, intervals[on[name]][1], record["step"])
            else:
                on[name] = len(intervals)
                intervals.append((name, record["step"], record["step"]))
    return intervals


class AlertMonitor:
    """The alerts of a run.

    Args:
        records: the lines of ``metrics.jsonl`` so far.

    Attributes:
        active: names of the alerts that are on, in the order of `ALERTS`.
    """

    def __init__(self, records: Iterable[MetricsRecord] = ()) -> None:
        self.history = History()
        self.active: tuple[str, ...] = ()
        for record in records:
            self.see(record)

    def see(self, record: MetricsRecord) -> Change:
        """Take one more line into account."""
        self.history = self.history.then(record)
        levels = {alert.name: alert.level(self.history) for alert in ALERTS}
        before, self.active = self.active, tuple(name for name in levels if self._rings(name, levels[name]))
        return Change(
            begun=tuple(a for a in ALERTS if a.name in self.active and a.name not in before),
            ended=tuple(a for a in ALERTS if a.name in before and a.name not in self.active),
            active=self.active,
        )

    def _rings(self, name: str, level: float | None) -> bool:
        on = name in self.active
        if level is None:
            return on
        return level > 0 if on else level >= 1
