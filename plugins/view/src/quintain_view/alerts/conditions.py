"""The conditions of the alerts, their thresholds with the reasons, and their messages.

An alert is a pure function of the run's recent metrics (`History`) that returns a level: at 1 or
more the alert begins, at 0 or less it ends, in between it does not change (hysteresis). A step
whose numbers are missing changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any, NamedTuple

__all__ = ["ALERTS", "Alert", "History", "MetricsRecord"]

MetricsRecord = Mapping[str, Any]


class Thresholds(NamedTuple):
    """The values at which a condition begins and ends; it holds above *begins* if that is the
    larger, else below.
    """

    begins: float
    ends: float

    def level(self, value: float) -> float:
        """Return 1 at *begins*, 0 at *ends*, linear in *value*."""
        return (value - self.ends) / (self.begins - self.ends)


SPAN = 5
"""Steps in the average of most alerts: one bad batch is noise, five in a row are not."""
IDLE_SPAN = 10
"""Steps without a learning signal before an alert: with small batches a few occur by chance."""
START = 5
"""Steps at the beginning of the run, as a reference."""
SHORT_SPAN = 3
"""Steps of which the median is compared with the start: of five, three are from before a collapse
that took two.
"""
MARKS = 8
"""Held-out measurements in the history."""

ENTROPY_GONE = Thresholds(0.95, 0.9)
"""Loss of entropy as a share of the most that the run had. Healthy runs of the default model lose 50
to 90 % of it before they reach 90 % success. Performance saturates as entropy is exhausted (Cui et
al. 2025, 2505.22617); DAPO (2503.14476, section 3.1) shows a run that loses nearly all of it early.
"""
UNSOLVED = Thresholds(0.9, 0.95)
"""Success rate below which a step without a signal is a problem."""
UNSURE = Thresholds(0.7, 0.8)
"""Success rate below which low entropy is one. A pretrained model whose tasks have one right answer
each is sure of most of them long before it solves 90 %, and goes on learning.
"""
GROUPS_TAKEN = Thresholds(0.5, 0.25)
"""Share of the groups that one reply fills, whatever the task."""
BATCH_TAKEN = Thresholds(0.9, 0.75)
"""Share of all samples that are one reply."""
REPLY_RIGHT = Thresholds(0.6, 0.8)
"""Share of right ones among the samples of that reply, below which it is no answer to their tasks."""
RATIO = Thresholds(math.log(20), math.log(10))
"""Log of the median over steps of the largest theta / ratio_to. Clips work between 0.8 and 1.3; a
token that has become twenty times as likely within one batch is outside the region that its old
samples represent.
"""
RATIO_AT_ONCE = Thresholds(math.log(1000), math.log(10))
"""The same for a single step."""
FALL = Thresholds(1.0, 0.5)
"""Fall of the held-out accuracy from its best, in units of `LEAST_FALL` or of the best's half
interval, the larger.
"""
LEAST_FALL = 0.05
RISE = Thresholds(0.1, 0.0)
"""Rise of the training reward since then, in units of its spread; smaller changes are drift of the
sampled tasks.
"""
ALL_SOLVED = Thresholds(0.95, 0.85)
"""Share of groups whose samples are all right; they cost compute and give no signal."""
NOTHING = Thresholds(0.9, 0.5)
"""Share of the last `IDLE_SPAN` steps without a learning signal."""
NO_TURN = Thresholds(0.1, 0.05)
"""Share of the valid rollouts of a step in which nobody took a turn. Their scores are not the
policy's.
"""
IDLE = 0.99
"""Minimum share of samples with advantage 0 in a step without a learning signal."""
GRADIENT_GONE = 1e-3
"""A step has no signal either if its gradient norm is below this factor times the median of the
first steps.
"""
MISMATCH = Thresholds(0.05, 0.03)
"""Mean \\|log prox - log mu\\| in nats. Correct pairs of engine and trainer stay within 1 to 2 %
(the limit of NeMo-RL for its mean of exp\\|difference\\|); a wrong temperature or template gives
0.1 and more.
"""
STALE = Thresholds(0.01, 0.005)
"""`MISMATCH` where it comes from old weights that the loss ignores. On the quickstart under `areal`
held-out accuracy falls from about 0.03 on; 0.01 is passed two to three steps before.
"""
CLIPPED = Thresholds(0.5, 0.3)
"""Share of clipped terms, which have no gradient. About 0.15 is normal for GSPO and less for
tokens; under a staleness GSPO's bounds on a ratio to the sampler clip 0.87 on the quickstart, and
hardly anything is learned.
"""
TRUNCATED = Thresholds(0.25, 0.15)
"""Share of answers that a limit on tokens truncated, which score like wrong ones (TRL #6263: a
limit of 256 tokens truncated 50 to 80 % of the GSM8K answers).
"""
FAILURES = Thresholds(0.1, 0.05)
"""Share of rollouts that failed for reasons other than the policy: they cost compute and are
left out.
"""


class Mark(NamedTuple):
    """A held-out measurement: its step, accuracy and half interval, and the mean training reward of
    the steps before (``None`` if there are none).
    """

    step: int
    accuracy: float
    slack: float
    reward: float | None


@dataclass(frozen=True, kw_only=True)
class History:
    """The input of an alert.

    Attributes:
        entropy: the most sampled entropy of the run: of one of its first `START` steps, or the
            median of `SHORT_SPAN` in a row since.
        start: the metrics of the first `START` steps.
        recent: the metrics of the last `IDLE_SPAN` steps, oldest first.
        marks: the best held-out measurement before the last `MARKS`, then these, oldest first.
    """

    entropy: float = 0.0
    start: tuple[MetricsRecord, ...] = ()
    recent: tuple[MetricsRecord, ...] = ()
    marks: tuple[Mark, ...] = ()

    def then(self, record: MetricsRecord) -> History:
        """Return this history and one more line of ``metrics.jsonl``; the line of step 0 is from
        before training.
        """
        grown = self
        if record["step"] > 0:
            start = self.start if len(self.start) == START else (*self.start, record)
            grown = replace(self, start=start, recent=(*self.recent, record)[-IDLE_SPAN:])
            first = [] if len(self.start) == START else [number(record, "entropy.sampled")]
            seen = [value for value in (*first, grown.middle("entropy.sampled")) if value]
            grown = replace(grown, entropy=max([self.entropy, *seen]))
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
        """Return the values of *name* in the last *span* steps; empty if there are fewer steps or
        most lack the metric.
        """
        if len(self.recent) < span:
            return []
        values = [value for r in self.recent[-span:] if (value := number(r, name)) is not None]
        return values if 2 * len(values) > span else []

    def mean(self, name: str, span: int = SPAN) -> float | None:
        """Return the mean of `last`; ``None`` if it is empty."""
        values = self.last(name, span)
        return fmean(values) if values else None

    def middle(self, name: str) -> float | None:
        """Return the median of the last `SHORT_SPAN` steps; ``None`` if there are fewer."""
        values = self.last(name, SHORT_SPAN)
        return median(values) if values else None

    def now(self, name: str) -> float | None:
        """Return the value of the last step, ``None`` if it lacks the metric."""
        return number(self.recent[-1], name) if self.recent else None


def number(record: MetricsRecord, name: str) -> float | None:
    """Return a finite number of a record, else ``None``; the file has ``null`` for a number that is
    not finite.
    """
    value = record.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def shown(record: MetricsRecord, name: str) -> float | str | None:
    """Return a finite number of a record, or a text; else ``None``."""
    value = record.get(name)
    return value if isinstance(value, str) else number(record, name)


@dataclass(frozen=True, kw_only=True)
class Alert:
    """A condition on the metrics, with a message for the user.

    Attributes:
        name: as in the list ``alerts`` of the metrics.
        level: function of the history: the alert begins at 1 and ends at 0; ``None`` if the metrics
            are missing.
        meaning: the diagnosis.
        remedy: changes to try.
        shows: metrics in the message.
    """

    name: str
    level: Callable[[History], float | None]
    meaning: str
    remedy: str
    shows: tuple[str, ...]

    def sentence(self, record: MetricsRecord) -> str:
        """Return the message, with the numbers of *record*."""
        numbers = ", ".join(
            f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value!r}"
            for name in self.shows
            if (value := shown(record, name)) is not None
        )
        return f"{self.name}: {self.meaning}{f' ({numbers})' if numbers else ''}. {self.remedy}"


def _all_of(*levels: float | None) -> float | None:
    """Return the minimum: begins once all have begun, ends once one has ended; ``None`` if one is
    missing.
    """
    present = [level for level in levels if level is not None]
    return min(present) if len(present) == len(levels) else None


def _of_mean(name: str, thresholds: Thresholds) -> Callable[[History], float | None]:
    def level(history: History) -> float | None:
        mean = history.mean(name)
        return None if mean is None else thresholds.level(mean)

    return level


def entropy_collapse(history: History) -> float | None:
    """Measure whether nearly all entropy is lost, and tasks are still unsolved. The last step alone
    tells where none of its groups differ: such a step stays as it is.
    """
    levels = [_entropy_gone(history, history.middle)]
    if history.now("zero_variance") == 1:
        levels.append(_entropy_gone(history, history.now))
    return max((level for level in levels if level is not None), default=None)


def _entropy_gone(history: History, of: Callable[[str], float | None]) -> float | None:
    now, success = of("entropy.sampled"), of("success")
    if now is None or success is None or history.entropy <= 0:
        return None
    return _all_of(ENTROPY_GONE.level(1 - now / history.entropy), UNSURE.level(success))


def one_reply(share: str, thresholds: Thresholds) -> Callable[[History], float | None]:
    """Measure whether the reply that fills most groups is *share* of them, right or wrong."""

    def level(history: History) -> float | None:
        right = history.now("reply.right")
        if not history.recent or history.now("samples") == 0:
            return None
        if right is None:  # no reply fills groups of several tasks
            return 0.0
        return _all_of(thresholds.level(history.now(share) or 0.0), REPLY_RIGHT.level(right))

    return level


def ratio_explosion(history: History) -> float | None:
    """Measure whether the largest ratio is far above 1 for several steps, or extreme in one."""
    largest = [math.log(value) for value in history.last("ratio.max") if value > 0]
    if not largest:
        return None
    return max(RATIO.level(median(largest)), RATIO_AT_ONCE.level(largest[-1]))


def held_out_falls(history: History) -> float | None:
    """Measure whether the last two held-out measurements are well below the best earlier one, while
    the training reward rose.
    """
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
    rise = (
        (latest.reward - early) / spread
        if spread > 0
        else math.copysign(1.0, latest.reward - early)
    )
    return _all_of(FALL.level(fall), RISE.level(rise))


def nothing_learned(history: History) -> float | None:
    """Measure whether most recent steps have no advantage or no gradient, and tasks are still
    unsolved.
    """
    success = history.mean("success")
    if len(history.recent) < IDLE_SPAN or success is None:
        return None
    norms = [value for r in history.start if (value := number(r, "grad_norm"))]
    least = GRADIENT_GONE * median(norms) if norms else 0.0
    idle = fmean(_without_signal(r, least) for r in history.recent)
    return _all_of(NOTHING.level(idle), UNSOLVED.level(success))


def _without_signal(record: MetricsRecord, least: float) -> bool:
    if number(record, "critic.warmup"):  # on purpose
        return False
    if not number(record, "updates"):  # none was made, or no group was accepted
        return True
    idle, norm = number(record, "idle"), number(record, "grad_norm")
    return (idle is not None and idle >= IDLE) or (norm is not None and norm <= least)


def stale(history: History) -> float | None:
    """Measure whether tokens are of older weights while the loss takes them for the learner's."""
    ignored, mismatch = history.last("staleness.ignored"), history.mean("mismatch.mean")
    if not ignored or mismatch is None:
        return None
    return _all_of(float(min(ignored) > 0), STALE.level(mismatch))


def clipped(history: History) -> float | None:
    """Measure whether the clip of the ratio stops most terms."""
    low, high = history.mean("clip.low"), history.mean("clip.high")
    return None if low is None and high is None else CLIPPED.level((low or 0.0) + (high or 0.0))


def no_tokens(history: History) -> float | None:
    """Measure whether the valid rollouts of the last step have no sampled token, or several have no
    turn.
    """
    length = number(history.recent[-1], "length.mean") if history.recent else None
    if length is None:
        return None
    return max(float(length == 0), NO_TURN.level(number(history.recent[-1], "turns.none") or 0.0))


AGAINST_ONE_REPLY = (
    "A run may find its way out: wait some steps. If it lasts, stop (Ctrl-C) and train again: a lower "
    "learner.lr, more prompts and samples per step, a KL term, a higher temperature, or an algorithm "
    "in which rare answers weigh more (`--set algorithm.use=maxrl`). Or go back to a checkpoint from "
    "before (checkpoint.every keeps them). `quintain check` says what a constant reply earns."
)

ALERTS = (
    Alert(
        name="no_tokens",
        level=no_tokens,
        meaning=(
            "episodes end without a turn or a sampled token, so their scores are not the policy's "
            "own"
        ),
        remedy="Let `rollout` of the environment take a turn: await agent.turn(), or iterate over "
        "agent.turns(); "
        "`quintain check` plays the environment. An agent behind the gateway has to ask the "
        "address that it is given.",
        shows=("samples", "turns.none"),
    ),
    Alert(
        name="entropy_collapse",
        level=entropy_collapse,
        meaning=(
            "the policy samples nearly the same text every time although tasks are unsolved; it no "
            "longer explores"
        ),
        remedy="Go back to a checkpoint from before (checkpoint.every keeps them); lower learner.lr, "
        "add a KL term, or sample at a "
        "higher temperature.",
        shows=("entropy.sampled", "success"),
    ),
    Alert(
        name="one_reply_groups",
        level=one_reply("reply.groups", GROUPS_TAKEN),
        meaning=(
            "one reply takes over the groups of different tasks, where it is right and where it is "
            "wrong; such groups have no gradient"
        ),
        remedy=AGAINST_ONE_REPLY,
        shows=("reply.text", "reply.groups", "reply.right"),
    ),
    Alert(
        name="one_reply_batch",
        level=one_reply("reply.share", BATCH_TAKEN),
        meaning=(
            "the policy has collapsed: one reply is nearly all samples of the batch, whatever the "
            "task, and the share of right ones only says how often the tasks ask for it"
        ),
        remedy=AGAINST_ONE_REPLY,
        shows=("reply.text", "reply.share", "reply.right"),
    ),
    Alert(
        name="ratio_explosion",
        level=ratio_explosion,
        meaning=(
            "within one batch the policy changes so much that its samples are no longer "
            "representative"
        ),
        remedy=(
            "Lower learner.lr, take fewer epochs or minibatches per batch, or an objective with a "
            "tighter clip."
        ),
        shows=("ratio.max", "clip.high", "kl.prox.k3"),
    ),
    Alert(
        name="held_out_falls",
        level=held_out_falls,
        meaning="the training reward rises while held-out accuracy falls: the policy exploits the "
        "reward or memorises "
        "the tasks",
        remedy="Read rollouts of the last steps, check each part of the reward, go back to the "
        "best checkpoint, add "
        "tasks, or add a KL term.",
        shows=("held_out.accuracy", "reward.mean", "success"),
    ),
    Alert(
        name="all_solved",
        level=_of_mean("zero_variance.all_right", ALL_SOLVED),
        meaning=(
            "in nearly every group all samples are right, so hardly any sample has a learning "
            "signal"
        ),
        remedy=(
            "Stop, or use harder tasks; plan.resample fills the batch with groups of different "
            "rewards."
        ),
        shows=("zero_variance.all_right", "held_out.accuracy"),
    ),
    Alert(
        name="nothing_learned",
        level=nothing_learned,
        meaning=(
            "in the last steps the samples of each group have equal rewards, or the gradient "
            "vanishes"
        ),
        remedy="If all answers are wrong, use easier tasks, a reward with partial credit, more "
        "samples per group or a "
        "warm start; if all are alike, sample at a higher temperature.",
        shows=("success", "zero_variance.all_wrong", "grad_norm"),
    ),
    Alert(
        name="mismatch",
        level=_of_mean("mismatch.mean", MISMATCH),
        meaning="the sampler and the learner assign different probabilities to the same tokens, so "
        "the gradient is "
        "that of a different policy",
        remedy="With a staleness.mean of 0, compare temperature, template and precision on both "
        "sides; use float32 or "
        "float16 on both. Above 0, lower learner.lr, or the staleness "
        "(schedule.args.max_staleness, or plan.staleness "
        "of the algorithm); if the alert `stale` is active too, follow that one first.",
        shows=("mismatch.mean", "mismatch.max", "ess.tokens", "staleness.mean"),
    ),
    Alert(
        name="stale",
        level=stale,
        meaning="the samples are of older weights and the loss takes them for its own; held-out "
        "accuracy usually falls "
        "soon",
        remedy='The recipe sets algorithm.args.ratio_to = "prox". Leave it out; the default, "mu", '
        "needs an objective "
        "that has a ratio.",
        shows=("mismatch.mean", "staleness.mean"),
    ),
    Alert(
        name="clipped",
        level=clipped,
        meaning="the clip stops most terms, which then have no gradient, so hardly anything is learned",
        remedy="Widen the bounds (low and high of algorithm.args.objective), lower learner.lr, or "
        "lower the staleness "
        "where the ratio is to the sampler.",
        shows=("clip.low", "clip.high", "mismatch.mean", "staleness.mean"),
    ),
    Alert(
        name="truncated",
        level=_of_mean("truncated", TRUNCATED),
        meaning="many answers are truncated by a limit on tokens and score like wrong ones",
        remedy=(
            "Raise sampling.max_tokens or the environment's limits.tokens, or shorten answers "
            "(overlong penalty)."
        ),
        shows=("truncated", "length.mean", "length.max"),
    ),
    Alert(
        name="failures",
        level=_of_mean("failed", FAILURES),
        meaning=(
            "many rollouts fail for reasons other than the policy (time-outs, crashed rewards or "
            "services)"
        ),
        remedy=(
            "Fix the failures that termination.* and the warnings above name before you trust the "
            "curves."
        ),
        shows=("failed", "retried"),
    ),
)
