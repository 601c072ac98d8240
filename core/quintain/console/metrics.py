"""The metrics of a step: plain numbers under dotted names.

``loss``, ``entropy``, ``ratio.max`` and so on come from the learner unchanged (see
`quintain.learning.meter`). Collectors, curricula, rewards (`quintain.rollouts.scoring`) and the
check of the sampler add theirs; the others are computed here from the groups. Metrics that do not
apply to a step are omitted. ``docs/health.md`` explains each name; plugins raise alerts about them.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, pstdev
from typing import Any

from ..evaluation.estimates import Estimate, proportion
from ..evaluation.evaluation import Evaluation
from ..interfaces.environment import Environment
from ..types.rollout import (
    SCORE_TOLERANCE,
    AnyGroup,
    AnyRollout,
    Termination,
    TerminationKind,
    are_equal,
    reaches,
)
from ..types.transcript import TokenSource, Transcript
from .replies import takeover

Metrics = dict[str, Any]
TRAINING = ("difficulty", "rollouts", "update", "sync")
"""Phases that count as training time; evaluation and checkpoints do not."""
ZERO_WHERE_ABSENT = ("groups.rejected.stale", "groups.retried", "groups.abandoned")
BINS = 10
"""Bins of the calibration error."""
LONGEST_KIND = 120
"""Characters of the name of a kind of failure."""


def step_metrics(
    groups: Sequence[AnyGroup],
    *,
    rejected: Mapping[str, int] | None = None,
    learned: Mapping[str, float] | None = None,
    held_out: Mapping[str, Any] | None = None,
    seconds: Mapping[str, float] | None = None,
) -> Metrics:
    """Return all metrics of a step.

    Args:
        groups: all groups of the step, with rejected ones.
        rejected: number of rejected groups, by reason.
        learned: metrics of the learner.
        held_out: metrics of an evaluation, if there was one (see `held_out_metrics`).
        seconds: time by phase.
    """
    everything = [r for g in groups for r in g.rollouts]
    valid = [r for r in everything if r.valid]
    return {
        **rewards(valid),
        **group_metrics(groups, rejected or {}),
        **lengths(valid),
        **confidence(valid),
        **terminations(everything),
        **takeover(groups),
        **_reported(valid),
        **_of_environments(groups),
        **_of_learner(learned or {}),
        **flat("held_out", held_out or {}),
        **time_metrics(sum(r.tokens for r in everything), len(everything), seconds or {}),
    }


def _of_learner(learned: Mapping[str, float]) -> Metrics:
    """Return the metrics of the learner; its counts and time get the prefix ``learner.``."""
    out: Metrics = {
        f"learner.{k}" if k in ("samples", "tokens", "seconds") else k: v
        for k, v in learned.items()
    }
    if out.get("learner.seconds", 0) > 0 and "learner.tokens" in out:
        out["learner.tokens_per_second"] = out["learner.tokens"] / out["learner.seconds"]
    return out


def rewards(valid: Sequence[AnyRollout]) -> Metrics:
    """Return the mean and spread (standard deviation, ddof 0) of total, outcome, shaping and parts;
    the share ``success``.

    ``yardstick`` is the score that does not train, ``yardstick.missing`` the share of rollouts
    where it failed.
    """
    out = _of("reward", [r.total for r in valid])
    out |= _of("reward.outcome", [r.outcome.total for r in valid if r.outcome])
    if any(r.shaping for r in valid):
        out |= _of("reward.shaping", [r.shaping.total for r in valid if r.shaping])
    if measured := [r.yardstick.total for r in valid if r.yardstick]:
        out |= {**_of("yardstick", measured), "yardstick.missing": 1 - len(measured) / len(valid)}
    for slot in ("outcome", "shaping"):
        scores = [s for r in valid if (s := getattr(r, slot)) is not None]
        for part in sorted({p for s in scores for p in s.parts}):
            values = [s.parts[part] for s in scores if part in s.parts]
            if len(scores) > len(values) or len(scores[0].parts) > 1 or slot == "shaping":
                out |= _of(f"reward.part.{part}", values)
    return out | ({"success": fmean(map(_right, valid))} if valid else {})


def group_metrics(groups: Sequence[AnyGroup], rejected: Mapping[str, int]) -> Metrics:
    """Return the number of groups and of rejected ones; share of groups with equal outcomes (all
    right, all wrong).
    """
    out: Metrics = {"groups": len(groups), "groups.rejected": sum(rejected.values())}
    out |= {
        f"groups.rejected.{reason.replace(' ', '_')}": count
        for reason, count in sorted(rejected.items())
    }
    kinds = Counter(_uniform(g) for g in groups if g.valid)
    total = sum(kinds.values())
    if total:
        out["zero_variance"] = sum(kinds[k] for k in ("all_right", "all_wrong", "between")) / total
        out |= {f"zero_variance.{k}": kinds[k] / total for k in ("all_right", "all_wrong")}
    return out


def _uniform(group: AnyGroup) -> str:
    outcomes = [r.outcome.total if r.outcome else 0.0 for r in group.valid]
    if not are_equal(outcomes):
        return "mixed"
    if reaches(outcomes[0]):
        return "all_right"
    return "all_wrong" if outcomes[0] <= SCORE_TOLERANCE else "between"


def lengths(valid: Sequence[AnyRollout]) -> Metrics:
    """Return the sampled tokens per rollout, also by right and wrong answers; turns, if a rollout
    has several or none.
    """
    right, wrong = [r for r in valid if _right(r)], [r for r in valid if not _right(r)]
    parts = {"mean": valid, "right": right, "wrong": wrong}
    out: Metrics = {
        f"length.{name}": fmean(r.tokens for r in part) for name, part in parts.items() if part
    }
    if valid:
        out["length.max"] = max(r.tokens for r in valid)
        out["turns.none"] = fmean(not r.turns for r in valid)
        if any(len(r.turns) > 1 for r in valid):
            out["turns.mean"] = fmean(len(r.turns) for r in valid)
    return out


def confidence(valid: Sequence[AnyRollout]) -> Metrics:
    """Return the confidence of the policy in its answers, over all valid rollouts, with rejected
    groups.

    ``entropy.sampled`` is minus the mean log-prob of all sampled tokens under the sampler, an
    estimate of its entropy per token (the learner's exact ``entropy`` covers only samples that have
    an advantage). A sample's confidence is exp(mean log-prob of its tokens), the geometric mean of
    their probabilities. ``calibration.error`` is the expected calibration error of that confidence
    as a forecast of success, in ten bins of equal width (Guo et al. 2017, 1706.04599, equation 3):
    the sum over bins of n_b / N times \\|mean confidence - share of successes\\|.
    """
    logps: list[float] = []
    forecasts: list[tuple[float, bool]] = []  # the confidence of a sample, and whether it is right
    for rollout in valid:
        for player, names in rollout.conversations.items():
            sampled = [logp for name in names for logp in _logps(rollout.transcripts[name])]
            if sampled:
                sure = math.exp(min(0.0, fmean(sampled)))
                forecasts.append((sure, _right(rollout, player)))
                logps += sampled
    if not forecasts:
        return {}
    bins: dict[int, list[tuple[float, bool]]] = {}
    for sure, right in forecasts:
        bins.setdefault(min(int(sure * BINS), BINS - 1), []).append((sure, right))
    # |sum of confidences - successes| / N per bin is n_b / N times the difference of the bin's
    # means.
    gaps = [
        abs(math.fsum(sure for sure, _ in members) - sum(right for _, right in members))
        for members in bins.values()
    ]
    return {
        "entropy.sampled": -fmean(logps),
        "calibration.confidence": fmean(sure for sure, _ in forecasts),
        "calibration.error": math.fsum(gaps) / len(forecasts),
    }


def _logps(transcript: Transcript) -> list[float]:
    """Return the log-probs of the sampled tokens, each once."""
    return [
        logp
        for branch in transcript.branches
        for logp, source in zip(branch.logps, branch.sources, strict=True)
        if source == TokenSource.MODEL
    ]


def terminations(everything: Sequence[AnyRollout]) -> Metrics:
    """Return the counts ``termination.<kind>`` and, of failures, ``cause.<cause>``; ``failed`` is a
    share of all rollouts, ``truncated`` (by tokens or context) and ``truncated.turns`` are shares
    of the valid ones: a game that used all its turns is not cut off.
    """
    kinds = Counter(r.termination.kind for r in everything)
    causes = Counter(r.termination.cause for r in everything if r.termination.cause)
    out: Metrics = {f"termination.{kind.value}": count for kind, count in sorted(kinds.items())}
    out |= {f"cause.{cause}": count for cause, count in sorted(causes.items())}
    valid = sum(r.valid for r in everything)
    if valid:
        limits = Counter(
            r.termination.reason
            for r in everything
            if r.termination.kind is TerminationKind.TRUNCATED
        )
        out["truncated"] = (limits.total() - limits["turns"]) / valid
        if limits["turns"] or any(len(r.turns) > 1 for r in everything):
            out["truncated.turns"] = limits["turns"] / valid
    if everything:
        out["failed"] = 1 - valid / len(everything)
        out["retried"] = sum(r.termination.attempts > 1 for r in everything) / len(everything)
    return out


def time_metrics(tokens: int, samples: int, seconds: Mapping[str, float]) -> Metrics:
    """Return the seconds by phase; ``tokens_per_second`` is the speed of sampling."""
    out: Metrics = {"samples": samples, "tokens": tokens}
    out |= {f"seconds.{phase}": value for phase, value in seconds.items()}
    if seconds.get("rollouts", 0) > 0:
        out["tokens_per_second"] = tokens / seconds["rollouts"]
    return out


def sampling(records: Sequence[Metrics]) -> Metrics:
    """Return the means over the steps of a run: throughput, idle shares, staleness and groups left
    out because of it.
    """
    kinds = (
        "throughput.",
        "idle.",
        "staleness.mean",
        "staleness.mixed",
        "staleness.share.",
        *ZERO_WHERE_ABSENT,
    )
    steps = [r for r in records if "seconds.rollouts" in r]
    names = sorted({name for r in steps for name in r if name.startswith(kinds)})
    return {
        n: fmean(r.get(n, 0.0) for r in steps if n in r or n in ZERO_WHERE_ABSENT) for n in names
    }


def held_out_metrics(results: Sequence[Evaluation], weights: Sequence[float]) -> Metrics:
    """Return the accuracy (pass@1) with its 95 % interval, as the mean over environments by
    *weights*, and of each environment; ``pass@k`` if tasks were sampled several times.

    ``accuracy`` is ``None`` if an environment has no valid rollout. The interval of a weighted mean
    treats the parts as independent: half-widths add in squares, separately for each side.
    """
    share = [w / math.fsum(weights) for w in weights]
    rollouts = [r for result in results for r in result.rollouts]
    accuracies = _present([r.accuracy for r in results], share)
    if len(accuracies) < len(results):
        out = _estimate(None)
    elif len(results) == 1:
        out = _estimate(results[0].accuracy)
    else:
        value, low, high = _weighted_mean(accuracies)
        out = {"accuracy": value, "low": max(0.0, low), "high": min(1.0, high)}
    out["tasks"] = sum(len(r.groups) for r in results)
    for k in sorted({k for result in results for k in result.ks} - {1}):
        solved = _present([r.pass_at(k) for r in results], share)
        if len(solved) == len(results):
            out[f"pass@{k}"] = _weighted_mean(solved)[0]
    if measured := _present([r.yardstick for r in results], share):
        total = math.fsum(weight for weight, _ in measured)
        value, low, high = _weighted_mean(measured, total)
        out |= {"yardstick": value, "yardstick.low": low, "yardstick.high": high}
    if missing := [m for r in results if (m := r.yardstick_missing) is not None]:
        out["yardstick.missing"] = fmean(missing)
    earned = _present([r.reward for r in results], share)
    if len(earned) == len(results):
        out["reward"] = _weighted_mean(earned)[0]
    if valid := [r for r in rollouts if r.valid]:
        out["length.mean"] = lengths(valid)["length.mean"]
    out |= {
        k: v
        for k, v in terminations(rollouts).items()
        if k in ("truncated", "truncated.turns", "failed")
    }
    if len(results) > 1:
        names = distinct_names(r.environment for r in results)
        for name, result in zip(names, results, strict=True):
            out |= {f"{name}.{k}": v for k, v in _estimate(result.accuracy).items()}
        for name, result in zip(names, results, strict=True):
            out |= {f"{name}.{k}": v for k, v in _yardstick(result.yardstick).items()}
    return out


def _present(
    estimates: Sequence[Estimate | None], share: Sequence[float]
) -> list[tuple[float, Estimate]]:
    """Return the estimates that there are, each after its weight."""
    return [(weight, e) for weight, e in zip(share, estimates, strict=True) if e]


def _weighted_mean(
    estimates: Sequence[tuple[float, Estimate]], total: float = 1.0
) -> tuple[float, float, float]:
    """Return the mean of *estimates*, whose weights add up to *total*, and the ends of its interval.

    The estimates are independent: half-widths add in squares, separately for each side.
    """
    value = math.fsum(weight * e.value for weight, e in estimates) / total
    below = math.hypot(*(weight * (e.value - e.low) for weight, e in estimates)) / total
    above = math.hypot(*(weight * (e.high - e.value) for weight, e in estimates)) / total
    return value, value - below, value + above


def best_reward(environments: Iterable[Environment[Any, Any]]) -> float | None:
    """Return the highest total of outcome and shaping, if rewards declare it, finite, and all
    *environments* have the same.
    """
    best: set[float] = set()
    for environment in environments:
        ranges = [
            reward.range
            for reward in (environment.reward, environment.shaping)
            if reward is not None
        ]
        best.add(math.fsum(known[1] for known in ranges if known) if all(ranges) else math.inf)
    return best.pop() if len(best) == 1 and all(map(math.isfinite, best)) else None


def evaluation_metrics(result: Evaluation) -> Metrics:
    """Return one evaluation as flat numbers: accuracy with interval, every pass@k and cons@k,
    reward, length, shares.
    """
    out: Metrics = _estimate(result.accuracy)
    out |= {name: e.value for name, e in result.estimates().items() if e is not None}
    out |= {
        "tasks": len(result.groups),
        "samples": result.samples,
        "failed": result.failed,
        "length.mean": result.tokens,
    }
    if result.reward is not None:
        out["reward"] = result.reward.value
    return out | _yardstick(result.yardstick)


def _yardstick(e: Estimate | None) -> Metrics:
    return {"yardstick": e.value, "yardstick.low": e.low, "yardstick.high": e.high} if e else {}


def _estimate(e: Estimate | None) -> Metrics:
    return {"accuracy": e.value, "low": e.low, "high": e.high} if e else {"accuracy": None}


def _reported(valid: Sequence[AnyRollout]) -> Metrics:
    """Return the metrics that environments report by ``agent.metric``: means over the rollouts that
    have them.
    """
    names = sorted({n for r in valid for n in r.metrics})
    return {f"metric.{n}": fmean(r.metrics[n] for r in valid if n in r.metrics) for n in names}


def _of_environments(groups: Sequence[AnyGroup]) -> Metrics:
    """Return the reward and success by environment, if there are several."""
    names = sorted({g.environment for g in groups})
    if len(names) < 2:
        return {}
    out: Metrics = {}
    for name in names:
        valid = [r for g in groups if g.environment == name for r in g.valid]
        if valid:
            out[f"environment.{name}.reward.mean"] = fmean(r.total for r in valid)
            out[f"environment.{name}.success"] = fmean(map(_right, valid))
    return out


def _right(rollout: AnyRollout, player: str | None = None) -> bool:
    """Return whether the outcome is a success, for *player* or as a whole."""
    if rollout.outcome is None:
        return False
    return reaches(rollout.outcome.total if player is None else rollout.outcome.of_player(player))


def success_of(group: AnyGroup) -> tuple[int, int]:
    """Return the number of successful and of all valid samples."""
    return sum(map(_right, group.valid)), len(group.valid)


def success_estimate(groups: Sequence[AnyGroup]) -> Estimate | None:
    """Return the share of right samples of a step with its interval, over the tasks one could have
    drawn; ``None`` without a valid sample.
    """
    counts = [success_of(group) for group in groups if group.valid]
    if not counts:
        return None
    return proportion([right / valid for right, valid in counts], [valid for _, valid in counts])


def failures_in(groups: Sequence[AnyGroup]) -> Counter[str]:
    """Return the number of invalid rollouts by kind of termination, type of error and place in the
    author's code.

    Where the reason names no place, its quoted parts and numbers, which differ between rollouts,
    are left out.
    """
    return Counter(failure_kind(r.termination) for g in groups for r in g.rollouts if not r.valid)


def failure_reasons(groups: Sequence[AnyGroup]) -> dict[str, str]:
    """Return the reason of one invalid rollout by each of the kinds that `failures_in` counts."""
    ended = [r.termination for g in groups for r in g.rollouts if not r.valid]
    return {failure_kind(one): one.reason for one in reversed(ended)}  # the first wins


_PLACE = re.compile(r" \([^()]+, line \d+\)$")
_TYPE = re.compile(r"(?:.*? failed: )?\w+", re.DOTALL)
_VALUES = re.compile(r"'[^']*'|\"[^\"]*\"|<[^>]*>|0x[0-9a-f]+|\d+(?:\.\d+)?(?:e[+-]?\d+)?")


def failure_kind(termination: Termination) -> str:
    """Return the name under which `failures_in` counts *termination*."""
    reason, place = termination.reason, _PLACE.search(termination.reason)
    if place and (error := _TYPE.match(reason)):
        return f"{termination.kind}: {error[0]}{place[0]}"
    return f"{termination.kind}: {_VALUES.sub('...', reason)[:LONGEST_KIND]}"


def failure_warning(kind: str, count: int, reason: str) -> str:
    """Return what is said of *count* failures of *kind*; *reason* is that of the first, empty where
    none is known.
    """
    text = f"{count} episodes failed and were left out"
    if "..." in kind and reason:  # the kind repeats the reason without its quoted parts and numbers
        return f"{text}: {kind.partition(': ')[0]}: {reason}{' (the first)' if count > 1 else ''}"
    return f"{text}: {kind}" + ("" if reason in kind else f"; the first: {reason}")


def _of(name: str, values: Sequence[float]) -> Metrics:
    finite = [v for v in values if math.isfinite(v)]
    return {f"{name}.mean": fmean(finite), f"{name}.spread": pstdev(finite)} if finite else {}


def flat(prefix: str, values: Mapping[str, Any]) -> Metrics:
    """Return *values* under names that begin with *prefix* and a dot."""
    return {
        f"{prefix}.{k}": v for k, v in values.items() if not isinstance(v, (Mapping, list, tuple))
    }


def distinct_names(names: Iterable[str], mark: str = "#") -> list[str]:
    """Return *names*, with *mark* and a number added to repeated ones."""
    seen: Counter[str] = Counter()
    out = []
    for name in names:
        seen[name] += 1
        out.append(name if seen[name] == 1 else f"{name}{mark}{seen[name]}")
    return out


def alert_intervals(records: Iterable[Mapping[str, Any]]) -> list[tuple[str, int, int]]:
    """Return the intervals of active alerts: name, first and last step, ordered by first step."""
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
