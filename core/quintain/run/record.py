"""The record of a run: metrics, rollouts, alerts and failures, on disk, on the screen, to hooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ..console.metrics import failure_reasons, failure_warning, failures_in, success_estimate
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
        open: metrics of the step that is trained and not written yet, without what its evaluation
            finds; empty between two steps.
        success: the share of right samples in that step (an `Estimate`); ``None`` after a resume.
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
    open: dict[str, Any] = field(default_factory=dict)
    success: Any = None

    def start(self, metrics: Mapping[str, Any]) -> None:
        """Write what was measured before the first step, as step 0."""
        self.folder.append({"step": 0, **metrics})
        self._raise_alerts(metrics)
        before = self.held_out.before
        in_training = {name: metrics.get(f"held_out.{name}") for name in ("accuracy", "tasks")}
        self._say(self.advice.before(before, before.get("other_decoding", {}), in_training))

    def collected(self, step: int, collected: Collected, notices: Sequence[str]) -> None:
        """Count the failed rollouts of a step; report missing groups, and *notices* of the
        curriculum.
        """
        self.count_failures(failures_in(collected.tried), failure_reasons(collected.tried))
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
            if kind not in self.failures:
                reason = (reasons or {}).get(name, "")
                self.screen.warn(failure_warning(kind, count, reason))
            self.failures[kind] = self.failures.get(kind, 0) + count

    def trained(
        self, groups: Sequence[AnyGroup], metrics: dict[str, Any], advantages: Advantages
    ) -> None:
        """Write the rollouts of a complete step, which is open until `step` writes its *metrics*.

        Args:
            advantages: of the tokens of *groups* that trained, for the table of rollouts.
        """
        with self.progress.clock("record"):
            self.folder.keep_rollouts(self.keep, self.progress.step, groups, advantages)
        self.success = success_estimate(groups)
        self.open = metrics

    def step(self, measured: dict[str, Any], *, last: bool) -> None:
        """Write the open step to disk, with the names of the active alerts; then notify hooks and
        screen.

        Args:
            measured: what its evaluation found.
            last: no step follows.
        """
        step = self.progress.step
        before, metrics = self.alerts, self.open | measured
        self.alerts = self._raise_alerts(metrics)
        metrics["alerts"] = [*self.alerts]
        self.folder.append({"step": step, **metrics})
        self.open = {}
        self.hooks.emit(StepEnd(step=step, metrics=dict(metrics)))
        self.screen.step(
            step,
            metrics,
            success=self.success,
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

    def restore(self, failures: dict[str, int], still_open: dict[str, Any]) -> None:
        """Go back to the last complete step, of which a checkpoint has the *failures*, and the
        metrics if it is *still_open*.

        Raises:
            RunError: a file of the run is damaged.
        """
        self.failures, self.open = failures, still_open
        self.folder.truncate_after(self.progress.step, still_open=bool(still_open))
        records = self.folder.metrics()
        names = records[-1].get("alerts", ()) if records else ()
        self.alerts = dict.fromkeys(names, "")

    def close(self) -> None:
        """Report the hook plugins that failed, and close all."""
        for failure in self.hooks.failures:
            self.screen.warn(str(failure))
        self.hooks.close()

    def _raise_alerts(self, metrics: Mapping[str, Any]) -> dict[str, str]:
        """Return the alerts that hook plugins raise for a line of the metrics file: messages by
        name.
        """
        alerts: dict[str, str] = {}
        self.hooks.emit(StepMeasured(step=self.progress.step, metrics=dict(metrics), alerts=alerts))
        return alerts
