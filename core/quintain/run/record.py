"""The record of a run: metrics, rollouts, alerts and failures, on disk, on the screen, to hooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ..console.metrics import failure_kind, failure_warning, failures_in, success_estimate
from ..console.screen import Screen
from ..interfaces.events import StepEnd, StepMeasured
from ..recipe.advice import Advice
from ..store.rollout_table import Advantages
from ..store.run_folder import RunFolder
from ..types.rollout import AnyGroup
from .collect import Collected
from .held_out import HeldOutEvaluation
from .hooks import Hooks
from .progress import RunProgress

MOST_KINDS = 50
"""Kinds of failures that are counted apart."""


@dataclass(kw_only=True)
class RunRecord:
    """Writes down what happens in a run, and shows it.

    Attributes:
        keep: steps whose rollouts stay, or ``"all"`` or ``"none"``.
        advice: what is said of the first evaluation and of the first step.
        alerts: the message of each active alert, by its name.
        failures: failed episodes by kind, of which at most `MOST_KINDS` are told apart: every
            checkpoint holds their names.
    """

    folder: RunFolder
    screen: Screen
    hooks: Hooks
    progress: RunProgress
    held_out: HeldOutEvaluation
    keep: int | Literal["all", "none"]
    advice: Advice
    alerts: Mapping[str, str] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)

    def start(self, metrics: Mapping[str, Any]) -> None:
        """Write what was measured before the first step, as step 0."""
        record = {"step": 0, **metrics}
        self.folder.append(record)
        self._raise_alerts(record)
        before = self.held_out.before
        in_training = {name: metrics.get(f"held_out.{name}") for name in ("accuracy", "tasks")}
        self._say(self.advice.before(before, before.get("other_decoding", {}), in_training))

    def collected(self, step: int, collected: Collected, notices: Sequence[str]) -> None:
        """Count the failed rollouts of a step; report missing groups, and *notices* of the
        curriculum.
        """
        reasons: dict[str, str] = {}
        for group in collected.tried:
            for rollout in group.rollouts:
                if not rollout.valid:
                    ended = rollout.termination
                    reasons.setdefault(failure_kind(ended), ended.reason)
        self.count_failures(failures_in(collected.tried), reasons)
        if collected.cause:
            self.screen.note(
                f"step {step}: {len(collected.accepted)} of {collected.size} groups were accepted, "
                f"the step continues with them: {collected.cause}"
            )
        for line in notices:
            self.screen.note(f"step {step}: {line}")

    def count_failures(
        self, failed: Mapping[str, int], reasons: Mapping[str, str] | None = None
    ) -> None:
        """Count failed episodes per kind (see `quintain.console.metrics.failures_in`); warn on the
        first of each.

        *reasons* has the message of one failure of each kind, for the warning.
        """
        for name, count in failed.items():
            known = name in self.failures or len(self.failures) < MOST_KINDS
            kind = name if known else "other failures"
            first = kind not in self.failures
            self.failures[kind] = self.failures.get(kind, 0) + count
            if first:
                reason = (reasons or {}).get(name, "")
                self.screen.warn(failure_warning(kind, count, reason))

    def step(
        self,
        step: int,
        groups: Sequence[AnyGroup],
        metrics: Mapping[str, Any],
        advantages: Advantages,
        *,
        last: bool,
    ) -> None:
        """Write the step to disk, with the names of the active alerts; then notify hooks and
        screen.

        Args:
            advantages: of the tokens of *groups* that trained, for the table of rollouts.
            last: no step follows.
        """
        before = self.alerts
        self.alerts = self._raise_alerts({"step": step, **metrics})
        metrics = {**metrics, "alerts": list(self.alerts)}
        with self.progress.clock("record"):
            if self.keep != "none":
                self.folder.write_rollouts(step, groups, advantages)
                self.folder.retain(self.keep, step)
            self.folder.append({"step": step, **metrics})
        self.hooks.emit(StepEnd(step=step, metrics=dict(metrics)))
        self.screen.step(
            step,
            metrics,
            success=success_estimate(groups),
            last=last,
            evaluated=self.held_out.seconds,
            to_evaluate=self.held_out.seconds_left(),
        )
        self.screen.alerts(before, self.alerts)
        if step == 1:
            for text in self.advice.after(metrics):
                self._say(text)

    def _say(self, text: str) -> None:
        for line in text.splitlines():
            self.screen.note(line)

    def restore(self, failures: dict[str, int], step: int) -> None:
        """Go back to the end of *step*, of which a checkpoint has the *failures*.

        Raises:
            RunError: a file of the run is damaged.
        """
        self.failures = failures
        self.folder.truncate_after(step)
        records = self.folder.metrics()
        names = records[-1].get("alerts", ()) if records else ()
        self.alerts = dict.fromkeys(names, "")

    def close(self) -> None:
        """Report the hook plugins that failed, and close all."""
        for line in self.hooks.report():
            self.screen.warn(line)
        self.hooks.close()

    def _raise_alerts(self, record: Mapping[str, Any]) -> dict[str, str]:
        """Return the alerts that hook plugins raise for a line of the metrics file: messages by
        name.
        """
        alerts: dict[str, str] = {}
        metrics = {name: value for name, value in record.items() if name != "step"}
        self.hooks.emit(StepMeasured(step=record["step"], metrics=metrics, alerts=alerts))
        return alerts
