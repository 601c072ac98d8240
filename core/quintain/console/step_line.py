"""The line of a step: fields that keep their place from one step to the next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..evaluation.estimates import Estimate
from ..types.sampling import decoding

PLAIN = {
    "reward.mean": "reward {:.2f}",
    "yardstick.mean": "yardstick {:.2f}",
    "entropy.sampled": "entropy {:.2f}",
    "length.mean": "length {:.0f}",
    "tokens_per_second": "{:>6,.0f} tokens/s",
}
"""Metrics that are a number alone, and their texts. Plugins add none; their alerts and the notices
of a curriculum are lines of their own.
"""
COLUMNS = {
    "step": 0,
    "success": len("right 100% (99-100)"),
    "reward.mean": 0,
    "yardstick.mean": 0,
    "entropy.sampled": len("entropy 0.00"),
    "length.mean": len("length 1000"),
    "tokens_per_second": len("10,000 tokens/s"),
    "time_left": len("at most 100 min left"),
    "held_out.accuracy": 0,
    "gradient": len("no gradient"),
}
"""The columns in their order, and their least widths. One that a step needs wider stays so."""
DROPPED_FIRST = (
    "held_out.accuracy",
    "tokens_per_second",
    "length.mean",
    "yardstick.mean",
    "reward.mean",
)
"""Columns that a narrow terminal does without, first to last: all are in the metrics, and the
accuracy has a line of its own.
"""
GAP = "  "


def has_gradient(metrics: Mapping[str, Any]) -> bool:
    """Return whether a step moved the policy: an update was made, and its gradient was not 0. Steps
    in which the critic alone learns, on purpose, count as such.
    """
    if metrics.get("critic.warmup"):
        return True
    return bool(metrics.get("updates")) and metrics.get("grad_norm") != 0


def why_no_gradient(metrics: Mapping[str, Any]) -> str:
    """Return why a step did not move the policy, in a few words; empty if they are not known."""
    if metrics.get("zero_variance") == 1:
        return "the samples of each group earn the same"
    if metrics.get("idle") == 1:
        return "no sample has an advantage"
    if metrics.get("groups") and metrics.get("groups.rejected") == metrics["groups"]:
        return "no group was accepted"
    return ""


class StepLine:
    """Writes the line of each step.

    Args:
        split: of the held-out tasks.
        best_reward: the highest reward of a sample, if it is known.
    """

    def __init__(self, split: str = "held-out", best_reward: float | None = None) -> None:
        self._split, self._best_reward = split, best_reward
        self._widths = dict[str, int]()

    def text(
        self,
        count: str,
        metrics: Mapping[str, Any],
        *,
        success: Estimate | None = None,
        time_left: str = "",
        width: int | None = None,
    ) -> str:
        """Return the line of a step, within *width* characters.

        Args:
            count: number of the step.
            success: the share of right samples with its interval.
        """
        texts = self._texts(metrics, success)
        texts["step"] = count
        if time_left:
            texts["time_left"] = time_left
        if not has_gradient(metrics):
            texts["gradient"] = "no gradient"
        # A missing number leaves its place empty, so that those after it keep theirs.
        for name, text in texts.items():
            self._widths[name] = max(self._widths.get(name, COLUMNS[name]), len(text))
        shown = self._fitting(width)
        line = GAP.join(texts.get(name, "").ljust(self._widths[name]) for name in shown).rstrip()
        reason = why_no_gradient(metrics)
        if (
            "gradient" in texts
            and reason
            and (width is None or len(line) + len(reason) + 2 <= width)
        ):
            line += f": {reason}"
        return line

    def _fitting(self, width: int | None) -> list[str]:
        """Return the columns that fit *width* in every line, also in one without a gradient."""
        shown = [name for name in COLUMNS if name in self._widths]
        for name in DROPPED_FIRST if width is not None else ():
            widths = {"gradient": COLUMNS["gradient"]} | {n: self._widths[n] for n in shown}
            if sum(widths.values()) + len(GAP) * (len(widths) - 1) <= (width or 0):
                break
            if name in shown:
                shown.remove(name)
        return shown

    def _texts(self, metrics: Mapping[str, Any], success: Estimate | None) -> dict[str, str]:
        known = {name: value for name, value in metrics.items() if value is not None}
        texts = {name: form.format(known[name]) for name, form in PLAIN.items() if name in known}
        if "success" in known:
            interval = ""
            if success is not None:
                interval = f"({100 * success.low:.0f}-{100 * success.high:.0f})"
            texts["success"] = f"right {known['success']:>4.0%} {interval}".rstrip()
        if "reward.mean" in known and self._best_reward is not None:
            texts["reward.mean"] += f" of {self._best_reward:g}"
        if "held_out.accuracy" in known:
            how = ""
            if "held_out.temperature" in known:
                how = decoding(known["held_out.temperature"]).removeprefix("sampled at ")
            texts["held_out.accuracy"] = f"{self._split} {known['held_out.accuracy']:.1%}" + (
                f" ({how})" * bool(how)
            )
        return texts
