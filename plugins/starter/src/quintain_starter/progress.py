"""What the screen says while a warm start trains."""

from __future__ import annotations

import math
import time

from quintain.console import Screen, clock_text

from .warm_start import WarmStart, WarmStartCheck

LONG = 600.0
"""Seconds of a warm start beyond which the screen says what makes it shorter."""
USUAL_FROM_GENERAL, USUAL_FROM_RANDOM = (10, 160), (80, 800)
"""Updates after which the warm starts of most small environments ended: from the general starter 10
of 12, from random weights 8 of 9 (``studies/benchmarks/results/starter.json``, 2026-11-26).
"""
FIRST_ANSWERS = 0.03
"""Least accuracy of a target that is reached with the first right answers."""
SOONER = (
    "to begin reinforcement learning sooner: stop at the first right answers, "
    f"--set 'model.start.args.target=[{FIRST_ANSWERS},0.6]', or make the tasks smaller"
)
PAUSE = 30.0
"""Seconds without a line after which an update is reported."""


class WarmStartProgress:
    """Prints a line for each check, and one for updates where the next check is far.

    When a warm start ends is not known before. So it is said how many updates they usually take,
    with the time of as many; the limit, from there on.

    Args:
        usual: updates after which most warm starts of this kind ended, the least and the most.
    """

    def __init__(self, screen: Screen, settings: WarmStart, usual: tuple[int, int]) -> None:
        self._screen, self._settings = screen, settings
        self._least, self._usual = usual
        self._began = self._spoken = self._checked = self._updated = time.monotonic()
        self._forecast_due = True
        self._longest_check = 0.0
        self._steps = self._taken_back = 0  # updates of the weights now; those of restored checks

    def updated(self, steps: int) -> None:
        """Report that the weights have gone through *steps* updates."""
        self._updated = time.monotonic()
        if self._forecast_due and steps == 3:  # the first is slow
            self._forecast_due = False
            pace = self._pace(steps)
            limit = self._settings.max_steps
            seconds = self._seconds(min(self._usual, limit) - steps, pace)
            when = f"at the latest after {limit} updates ({about(seconds)})"
            if limit > self._usual:
                least = math.ceil(self._seconds(max(self._least - steps, 0), pace) / 60)
                most = math.ceil(seconds / 60)
                when = f"usually after {self._least} to {self._usual} updates (" + (
                    f"{least} to {most} min)" if least < most else f"about {most} min)"
                )
            self._screen.note(
                f"warm start: {pace:.1f} s an update. It ends when {self.range_text()} of dev are "
                f"right, {when}"
            )
            if seconds > LONG:
                self._say_what_is_sooner()
        if self._updated - self._spoken > PAUSE:
            self._spoken = self._updated
            passed = clock_text(self._updated - self._began)
            self._screen.note(f"warm start: {self._count(steps)} after {passed}")

    def checked(self, check: WarmStartCheck) -> None:
        """Report a check."""
        now = time.monotonic()
        self._longest_check = max(self._longest_check, now - self._updated)
        line = f"warm start: {self._count(check.steps)}{self._result(check)}"
        restores = check.halvings * self._settings.check_every > self._taken_back
        pace = self._pace(check.steps)
        before = self._steps
        if restores:
            self._taken_back += self._settings.check_every
        else:
            self._steps = check.steps
        updates = self._settings.max_steps - self._steps
        ended = (
            check.inside >= self._settings.settle or check.halvings > self._settings.most_halvings
        )
        unusual = self._steps >= self._usual and not ended and updates > 0
        seconds = self._seconds(updates, pace)
        if unusual:
            line += f"  longer than usual: at most {updates} more updates, {about(seconds)}"
        self._screen.advance()
        self._screen.note(line)
        if unusual and before < self._usual and seconds > LONG:
            self._say_what_is_sooner()
        self._checked = self._updated = self._spoken = now

    def range_text(self) -> str:
        """Return the accuracies that end the warm start."""
        return percent((self._settings.target[0], self._settings.highest))

    def _say_what_is_sooner(self) -> None:
        if self._settings.target[0] > FIRST_ANSWERS:
            self._screen.note(SOONER)

    def _pace(self, steps: int) -> float:
        """Return the seconds of an update since the last check, the weights being at *steps*."""
        return (self._updated - self._checked) / max(steps - self._steps, 1)

    def _seconds(self, updates: int, pace: float) -> float:
        """Return the seconds of *updates* with their checks."""
        return (
            updates * pace + math.ceil(updates / self._settings.check_every) * self._longest_check
        )

    def _count(self, steps: int) -> str:
        return f"{steps} updates" + (f" ({self._taken_back} taken back)" * (self._taken_back > 0))

    def _result(self, check: WarmStartCheck) -> str:
        settings = self._settings
        loss = "" if check.loss is None else f"  loss {check.loss:.3f}"
        text = f"{loss}  dev {'about ' if check.rough else ''}{check.accuracy:.1%}"
        if check.inside >= settings.settle and check.accuracy <= settings.highest:
            outcome = "stays as it is" if check.steps == 0 else "ends here"
            return f"{text}  within {self.range_text()}: {outcome}"
        if check.accuracy <= settings.highest:
            return (
                f"{text}  within the range {check.inside}/{settings.settle}"
                if check.inside
                else text
            )
        above = f"{text}  above {100 * settings.highest:g} %"
        if check.steps == 0:
            return f"{above}: stays as it is"
        if check.halvings > settings.most_halvings:
            return f"{above} again: ends with the nearest check"
        return f"{above}: goes back to {self._steps} updates and halves the learning rate"


def about(seconds: float) -> str:
    """Return an estimate in minutes, rounded up."""
    return f"about {math.ceil(seconds / 60)} min"


def percent(target: tuple[float, float]) -> str:
    """Return a range of accuracies in percent."""
    return f"{100 * target[0]:g}-{100 * target[1]:g} %"
