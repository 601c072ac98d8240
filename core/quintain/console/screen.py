"""Progress of a run: a live display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import re
import shlex
import shutil
import signal
import sys
import textwrap
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TextIO

from ..evaluation.estimates import Estimate
from ..types.rollout import AnyRollout, reaches
from ..types.sampling import decoding
from ..types.task import messages_of
from .step_line import StepLine

PAUSE = 10.0
"""Seconds between the lines that report the progress of a phase."""
SILENCE = 60.0
"""Seconds without a line after which plain lines say which phase still runs."""

TREND = 3
"""Evaluations that show the trend of the held-out accuracy."""
MOST_UPDATES = 20
"""Lines that `Screen.update` prints at most."""


class Screen(AbstractContextManager["Screen"]):
    """Plain lines, one per event, for logs and pipes; `for_terminal` returns the live screen on a
    terminal.

    Args:
        out: stream to write to. Once nobody reads it, the screen is silent and sends Ctrl-C.
        quiet: write only warnings.
        dated: begin each line with the local time.
    """

    def __init__(
        self, out: TextIO | None = None, *, quiet: bool = False, dated: bool = False
    ) -> None:
        self._out = out or sys.stderr
        self._quiet, self._dated = quiet, dated
        self._unread = False
        self._phase_name, self._phase_began, self._took = "", 0.0, dict[str, float]()
        self._steps, self._timed_from = 0, 0
        self._line = StepLine()
        self._target: float | None = None
        self._measured = list[tuple[int, float]]()
        self._bound = "about"
        self._began = self._printed = time.monotonic()
        self._lines, self._printing, self._ended = list[str](), threading.Lock(), threading.Event()
        Screen.phase(self, "")  # not self.phase: a subclass is not complete yet

    def __enter__(self) -> Screen:
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self._thread.join(1.0)

    def _watch(self) -> None:
        while not self._ended.wait(1.0):
            self.report_silence()

    def report_silence(self) -> None:
        """Say how long the phase takes by now, if the last line is `SILENCE` seconds old."""
        if self._phase_name and time.monotonic() - self._printed >= SILENCE:
            done = f"{self._items_done} of {self._items}, " if self._items else ""
            self.note(
                f"{self._phase_name}: {done}{clock_text(time.monotonic() - self._phase_began)} so far"
            )

    def note(self, text: str) -> None:
        """Print one line, unless quiet."""
        if not self._quiet:
            self._print(text)

    def warn(self, text: str) -> None:
        """Print a warning, also if quiet."""
        self._print(f"warning: {text}")

    def start(
        self,
        steps: int,
        done: int = 0,
        split: str = "held-out",
        *,
        temperature: float | None = None,
        best_reward: float | None = None,
        may_end_early: bool = False,
        accuracy: float | None = None,
    ) -> None:
        """Show that training begins at step *done* of *steps*; held-out accuracy is that of
        *split*.

        Args:
            temperature: of the training samples.
            best_reward: the highest reward of a sample, if it is known.
            may_end_early: a limit of ``[stop]`` may end the run before *steps*.
            accuracy: the held-out accuracy that ends the run.
        """
        self._target, self._measured = accuracy, list[tuple[int, float]]()
        self._steps = steps
        self._timed_from = done
        self._began = time.monotonic()
        self._line = StepLine(split, best_reward)
        if temperature is not None:
            self.note(
                f"a step shows the share of right samples at T {temperature:g} with its 95 % interval"
            )
        self._bound = "at most" if may_end_early else "about"

    def phase(self, name: str, total: int | None = None) -> None:
        """Start the phase *name*, with *total* items; report that if its kind is new or took over
        `PAUSE` seconds.
        """
        before, kind = (re.sub(r"\d+", "", text) for text in (self._phase_name, name))
        self._took[before], self._phase_began = (
            time.monotonic() - self._phase_began,
            time.monotonic(),
        )
        if name and self._took.get(kind, PAUSE) >= PAUSE:
            self.note(f"{name} ...")
        self._phase_name, self._items, self._items_done = name, total, 0
        self._tenths, self._reported = 0, time.monotonic()

    def advance(self, piece: object = None) -> None:
        """Count one item of the phase; report at most each tenth of it, and each `PAUSE`
        seconds.
        """
        self._items_done += 1
        tenths = self._items_done * 10 // self._items if self._items else 0
        if tenths > self._tenths and time.monotonic() - self._reported >= PAUSE:
            self._tenths, self._reported = tenths, time.monotonic()
            self.note(f"{self._phase_name}: {self._items_done} of {self._items} done")

    def update(self, number: int, total: int, text: str) -> None:
        """Count update *number* of *total*, from 1, as one item of the phase; print *text* for
        `MOST_UPDATES` of them.
        """
        self.advance()
        if number * MOST_UPDATES // total > (number - 1) * MOST_UPDATES // total:
            self.note(f"update {number}/{total}  {text}")

    def step(
        self,
        step: int,
        metrics: Mapping[str, Any],
        *,
        success: Estimate | None = None,
        last: bool = False,
        evaluated: float = 0.0,
        to_evaluate: float = 0.0,
    ) -> None:
        """Print the metrics of a step and, unless it is the *last*, the time left.

        After the first one of the process with a gradient also a forecast, if that is over a minute:
        a step in which no group has one is short.

        Args:
            success: the share of right samples with its interval.
            evaluated: seconds of the evaluations since training began.
            to_evaluate: seconds that those until the end of the run will take.
        """
        steps_left, first = self._steps - step, step == self._timed_from + 1
        if first and (
            spent := sum(value for key, value in metrics.items() if key.startswith("seconds."))
        ):
            self._began = time.monotonic() - spent - evaluated  # without the evaluation before
        training = time.monotonic() - self._began - evaluated
        pace = training / max(step - self._timed_from, 1)
        is_short = first and metrics.get("zero_variance") == 1
        if is_short:
            self._timed_from = step
        left, bound = pace * steps_left + to_evaluate, self._bound
        if (measured := metrics.get("held_out.accuracy")) is not None:
            self._measured.append((step, measured))
        expected = steps_to(self._target, self._measured[-TREND:], step)
        if expected is not None and expected < steps_left:
            left, bound = left * expected / steps_left, "about"
        count = f"step {step:>{len(str(self._steps))}}/{self._steps}"
        time_left = "" if last or is_short else f"{bound} {rough(left)} left"
        self._write_step(count, metrics, success, time_left)
        if first and left > 60 and not last and not is_short:
            each = f"{pace:.2g} s" if pace < 60 else f"{pace / 60:.1f} min"
            kind = "with" if to_evaluate else "without"
            self.note(
                f"{each} a step: {self._bound} {rough(left)} for the other {steps_left} steps, {kind} "
                "evaluations"
            )

    def _write_step(
        self, count: str, metrics: Mapping[str, Any], success: Estimate | None, time_left: str
    ) -> None:
        self.note(self._line.text(count, metrics, success=success, time_left=time_left))

    def evaluation(
        self, split: str, step: int, metrics: Mapping[str, Any], rollouts: Iterable[AnyRollout]
    ) -> None:
        """Print the accuracy of an evaluation with its 95 % interval, and one right and one wrong
        answer of its *rollouts*.
        """
        if metrics["accuracy"] is not None:
            between = f"({100 * metrics['low']:.0f}-{100 * metrics['high']:.0f})"
            tasks = f"{metrics['tasks']:,} tasks"
            how = decoding(metrics["temperature"])
            yardstick = f"; yardstick {metrics['yardstick']:.3g}" if "yardstick" in metrics else ""
            self.note(
                f"{split}, step {step}: {metrics['accuracy']:.1%} {between} of {tasks} right, "
                f"{how}{yardstick}"
            )
        self.answers(split, step, rollouts)

    def answers(self, split: str, step: int, rollouts: Iterable[AnyRollout]) -> None:
        """Print one right and one wrong answer of an evaluation; which ones changes with *step*."""
        valid = [r for r in rollouts if r.valid and r.outcome]
        for name, success in (("right", True), ("wrong", False)):
            if matching := [r for r in valid if r.outcome and reaches(r.outcome.total) is success]:
                self.note(f"{split}, step {step}, {name}:{answer(matching[step % len(matching)])}")

    def alerts(self, before: Mapping[str, str], now: Mapping[str, str]) -> None:
        """Print the messages of the alerts that began (also if quiet) and the names of those that
        ended.
        """
        for name in (n for n in now if n not in before):
            self._print(f"alert: {now[name]}")
        for name in (n for n in before if n not in now):
            self.note(f"alert over: {name}")

    def _print(self, text: str) -> None:
        self._lines.append(text)
        self._printed = time.monotonic()
        # a signal handler's line waits for its turn
        while self._lines and self._printing.acquire(blocking=False):
            try:
                while self._lines:
                    self._write(self._lines.pop(0))
            finally:
                self._printing.release()

    def _write(self, text: str) -> None:
        if self._unread:
            return
        line = f"{time.strftime('%F %T ') * self._dated}{printable(text)}"
        try:
            print(line, file=self._out, flush=True)
        except BrokenPipeError:
            # An error in the middle of a step would lose what is not saved; Ctrl-C saves it.
            self._unread = True
            signal.raise_signal(signal.SIGINT)


class LiveScreen(Screen):
    """Progress bars of the run and the phase, below the lines of the last steps."""

    def __init__(self, out: TextIO | None = None) -> None:
        super().__init__(out)
        from rich import progress as bars
        from rich.console import Console
        from rich.theme import Theme

        # rich paints the elapsed time yellow.
        self._console = Console(file=self._out, theme=Theme({"progress.elapsed": "none"}))
        counts = bars.BarColumn(20), bars.MofNCompleteColumn()
        elapsed = bars.TimeElapsedColumn(), bars.TextColumn("elapsed")
        columns = bars.SpinnerColumn(), bars.TextColumn("{task.description}"), *counts, *elapsed
        self._progress = bars.Progress(*columns, console=self._console, transient=True)
        self._training: Any = None
        self._phase: Any = None

    def __exit__(self, *exc: object) -> None:
        super().__exit__(*exc)
        self._progress.stop()

    def start(self, steps: int, done: int = 0, split: str = "held-out", **options: Any) -> None:
        super().start(steps, done, split, **options)
        description = f"training, time left after step {done + 1}"
        self._training = self._progress.add_task(description, total=steps, completed=done)

    def phase(self, name: str, total: int | None = None) -> None:
        # not before the first phase: bars of a download need a terminal of their own
        self._progress.start()
        if self._phase is not None:
            self._progress.remove_task(self._phase)
        self._phase = self._progress.add_task(name, total=total)

    def advance(self, piece: object = None) -> None:
        if self._phase is not None:
            self._progress.advance(self._phase)

    def step(self, step: int, metrics: Mapping[str, Any], **options: Any) -> None:
        super().step(step, metrics, **options)
        if self._training is not None:
            self._progress.update(self._training, completed=step)

    def _write_step(
        self, count: str, metrics: Mapping[str, Any], success: Estimate | None, time_left: str
    ) -> None:
        """Write the line of a step. On a terminal the time left stands beside the bar, where it
        does not scroll away.
        """
        width = self._console.width
        self.note(self._line.text(count, metrics, success=success, width=width))
        if self._training is not None:
            self._progress.update(
                self._training, description=f"training, {time_left}" if time_left else "training"
            )

    def _write(self, text: str) -> None:
        self._console.print(printable(text), highlight=False, markup=False)


def for_terminal(out: TextIO | None = None, *, quiet: bool = False) -> Screen:
    """Return the live screen on a terminal, plain lines with the time elsewhere."""
    out = out or sys.stderr
    return LiveScreen(out) if out.isatty() and not quiet else Screen(out, quiet=quiet, dated=True)


def steps_to(target: float | None, measured: Sequence[tuple[int, float]], step: int) -> int | None:
    """Return the steps from *step* on until the held-out accuracy reaches *target*, if it rises on
    as it did over *measured* (steps and accuracies); ``None`` if it does not rise.
    """
    if target is None or len(measured) < 2:
        return None
    (first, low), (last, high) = measured[0], measured[-1]
    rise = (high - low) / (last - first)
    if rise <= 0:
        return None
    # It is measured, and may end the run, only each so many steps.
    every = last - measured[-2][0]
    marks = max(1, math.ceil((target - high) / rise / every))
    return max(0, last + marks * every - step)


def answer(rollout: AnyRollout) -> str:
    """Return the last message of the prompt, the last reply and the reason of the score, in lines
    that fit the terminal.
    """
    width = max(20, min(shutil.get_terminal_size().columns, 120) - 2)
    reason = rollout.outcome.reason if rollout.outcome else ""
    texts = (
        messages_of(rollout.task.prompt)[-1].content,
        f"-> {rollout.reply or '(nothing)'}",
        rollout.yardstick and f"(yardstick {rollout.yardstick.total:g})",
        reason and f"({reason})",
    )
    lines = [
        text if len(text) < 400 else f"{text[:200]} ... {text[-200:]}" for text in texts if text
    ]
    lines = [
        textwrap.fill(" / ".join(s.split("\n")), width, subsequent_indent="   ") for s in lines
    ]
    return textwrap.indent("\n".join(["", *lines]), "  ")


_PICTURE = re.compile("\ufdd1image ([0-9]+x[0-9]+) [0-9a-f]{32}\ufdd1")
"""A reference to a picture, between two of `quintain.models.PICTURE`."""


def printable(text: str) -> str:
    """Return *text* without control characters, which a terminal would obey; line breaks and tabs
    stay. A picture is ``[image 64x48]``.
    """
    text = _PICTURE.sub(r"[image \1]", text)
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)


def program_name() -> str:
    """Return the shell command for ``quintain``: its name if it is on the path, else a path to the
    running installation.
    """
    if shutil.which("quintain"):
        return "quintain"
    python = Path(sys.executable)
    beside = python.with_name("quintain")
    words = [beside] if beside.is_file() else [python, "-m", "quintain"]
    working_folder = Path.cwd()
    return shlex.join(
        str(
            w.relative_to(working_folder)
            if isinstance(w, Path) and w.is_relative_to(working_folder)
            else w
        )
        for w in words
    )


def rough(seconds: float) -> str:
    """Return an estimate, rounded up: ``40 s``, ``3 min`` or ``2 h 10 min``."""
    if seconds < 90:
        return f"{math.ceil(seconds / 10) * 10} s"
    if seconds < 7200:
        return f"{math.ceil(seconds / 60)} min"
    hours, tens = divmod(math.ceil(seconds / 600), 6)
    return f"{hours} h" + f" {tens}0 min" * (tens > 0)


def clock_text(seconds: float) -> str:
    """Return ``1:02:03`` or ``2:03``."""
    minutes, rest = divmod(int(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
