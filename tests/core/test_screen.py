"""What a run shows while it works: progress, phases, the line of a step."""

from __future__ import annotations

import io
import signal
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from quintain.training.interrupts import stop_on_signal
from quintain.training.screen import LiveScreen, Screen


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The clock of the screen: its attribute ``now``, in seconds."""
    clock = SimpleNamespace(now=0.0)
    with monkeypatch.context() as patch:
        patch.setattr("quintain.training.screen.time.monotonic", lambda: clock.now)
        yield clock


def test_progress_without_a_terminal_is_sparse(capsys: pytest.CaptureFixture[str], clock: SimpleNamespace) -> None:
    """A line per tenth of the work, but none within ten seconds of the last; the bar's own clock runs here."""
    screen = Screen()
    screen.phase("sums test", 40)
    for done in range(1, 41):
        clock.now = done * (1.0 if done <= 20 else 60.0)  # slow, then slower
        screen.advance()
    lines = [f"sums test: {done} of 40" for done in (10, 20, 24, 28, 32, 36, 40)]
    assert capsys.readouterr().err.splitlines() == ["sums test ...", *lines]


def test_a_phase_is_announced_the_first_time_and_while_it_takes_long(
    capsys: pytest.CaptureFixture[str], clock: SimpleNamespace
) -> None:
    screen = Screen()
    for step, seconds in enumerate((3, 12, 2, 1)):
        screen.phase(f"step {step}: rollouts", 40)
        clock.now += seconds
    assert capsys.readouterr().err.splitlines() == ["step 0: rollouts ...", "step 2: rollouts ..."]


def test_a_phase_in_which_nothing_ends_is_reported_each_minute(clock: SimpleNamespace) -> None:
    """At most once a minute, and not within a minute of another line."""
    out = io.StringIO()
    screen = Screen(out)
    screen.phase("step 1: rollouts", 40)
    for now in range(1, 200):
        clock.now = float(now)
        screen.report_silence()
        if now == 70:
            screen.note("a warning")
        if now == 135:
            screen.advance()
    screen.phase("step 1: update")
    for now in range(200, 265):
        clock.now = float(now)
        screen.report_silence()

    assert [
        "step 1: rollouts ...",
        "step 1: rollouts: 0 of 40, 1:00 so far",
        "a warning",
        "step 1: rollouts: 0 of 40, 2:10 so far",
        "step 1: rollouts: 1 of 40, 3:10 so far",
        "step 1: update ...",
        "step 1: update: 1:00 so far",
    ] == out.getvalue().splitlines()


def test_the_screen_ends_its_thread() -> None:
    before = threading.active_count()
    with Screen(io.StringIO()):
        assert before < threading.active_count()
    assert before == threading.active_count()


class Interrupting(io.StringIO):
    """A stream that gets SIGINT while its first line is being written."""

    interrupted = False

    def write(self, text: str) -> int:
        written = super().write(text)
        if not self.interrupted and "step 1" in text:
            self.interrupted = True
            signal.raise_signal(signal.SIGINT)
        return written


@pytest.mark.parametrize("kind", [Screen, LiveScreen])
def test_ctrl_c_while_a_line_is_written_repeats_none(kind: type[Screen]) -> None:
    """The line of the signal handler comes after the one that it interrupts."""
    out = Interrupting()
    screen = kind(out)
    with stop_on_signal(screen, "stopping and saving"):
        screen.note("step 1 of 2")
        screen.note("step 2 of 2")

    assert ["step 1 of 2", "stopping and saving", "step 2 of 2"] == out.getvalue().splitlines()


def test_the_line_of_a_step_fits_the_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    """Length and entropy are in the metrics; a log has them all."""
    metrics = {"success": 0.65, "reward.mean": 1.57, "held_out.accuracy": 0.4, "length.mean": 21.0}
    metrics |= {"entropy": 0.04, "tokens_per_second": 12457.0}
    for columns, left_out in (("80", ("entropy", "length")), ("100", ("entropy",)), ("120", ())):
        monkeypatch.setenv("COLUMNS", columns)
        screen = LiveScreen(sys.stderr)
        screen.start(200, 90, "dev")
        screen.step(100, metrics)
        (line,) = [text for text in capsys.readouterr().err.splitlines() if "step 100/200" in text]
        assert len(line) <= int(columns) and line.rstrip().rpartition("left")[2] and "tokens/s" in line
        assert [name for name in ("entropy", "length") if name not in line] == list(left_out)
    Screen().step(100, metrics)
    assert "entropy 0.04" in capsys.readouterr().err
