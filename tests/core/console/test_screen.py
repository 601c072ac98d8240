"""What a run shows while it works: progress, phases, the line of a step."""

from __future__ import annotations

import io
import math
import re
import signal
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from quintain.console.metrics import best_reward
from quintain.console.screen import LiveScreen, Screen, rough, steps_to
from quintain.console.step_line import StepLine
from quintain.evaluation.estimates import Estimate
from quintain.process.interrupts import stop_on_signal


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The clock of the screen: its attribute ``now``, in seconds."""
    clock = SimpleNamespace(now=0.0)
    with monkeypatch.context() as patch:
        patch.setattr("quintain.console.screen.time.monotonic", lambda: clock.now)
        yield clock


def test_progress_without_a_terminal_is_sparse(
    capsys: pytest.CaptureFixture[str], clock: SimpleNamespace
) -> None:
    """A line per tenth of the work, but none within ten seconds of the last; the bar's own clock
    runs here.
    """
    screen = Screen()
    screen.phase("sums test", 40)
    for done in range(1, 41):
        clock.now = done * (1.0 if done <= 20 else 60.0)  # slow, then slower
        screen.advance()
    lines = [f"sums test: {done} of 40 done" for done in (10, 20, 24, 28, 32, 36, 40)]
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

    assert out.getvalue().splitlines() == [
        "step 1: rollouts ...",
        "step 1: rollouts: 0 of 40, 1:00 so far",
        "a warning",
        "step 1: rollouts: 0 of 40, 2:10 so far",
        "step 1: rollouts: 1 of 40, 3:10 so far",
        "step 1: update ...",
        "step 1: update: 1:00 so far",
    ]


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

    assert out.getvalue().splitlines() == ["step 1 of 2", "stopping and saving", "step 2 of 2"]


METRICS = {
    "success": 0.65,
    "reward.mean": 1.57,
    "held_out.accuracy": 0.4,
    "length.mean": 21.0,
    "entropy.sampled": 0.04,
    "updates": 1.0,
}
METRICS |= {"tokens_per_second": 12457.0, "seconds.rollouts": 2.0}
SHARE = Estimate(value=0.65, low=0.571, high=0.729, tasks=16, samples=128, effective=100.0)


@pytest.mark.parametrize(
    ("columns", "left_out"),
    [
        (60, {"dev", "length", "tokens/s", "reward"}),
        (80, {"dev", "length", "tokens/s"}),
        (100, {"dev", "tokens/s"}),
        (140, set()),
    ],
)
def test_the_line_of_a_step_explains_itself_and_fits_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: Any, columns: int, left_out: set[str]
) -> None:
    """What is left out is in the metrics; the time left stands beside the bar."""
    monkeypatch.setenv("COLUMNS", str(columns))
    screen = LiveScreen(sys.stderr)
    screen.start(200, 90, "dev", temperature=0.7, best_reward=2.0, may_end_early=True)
    screen.step(100, METRICS, success=SHARE)

    (line,) = [text for text in capsys.readouterr().err.splitlines() if "step 100/200" in text]
    assert len(line) <= columns
    assert line.startswith("step 100/200  right  65% (57-73)  ")
    assert ("reward" in left_out) or "  reward 1.57 of 2  entropy 0.04" in line
    words = {"dev", "entropy", "length", "tokens/s", "reward"}
    assert left_out == {word for word in words if word not in line}


def test_the_bars_on_a_terminal_say_what_their_times_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """How much training is left, from its first step on, and how long each bar runs."""
    monkeypatch.setenv("FORCE_COLOR", "1")  # as a terminal
    monkeypatch.setenv("COLUMNS", "100")
    out = io.StringIO()
    with LiveScreen(out) as screen:
        screen.start(80, 0, "dev", may_end_early=True)
        screen.phase("held-out tasks", 64)
        screen.phase("step 2: rollouts", 64)
        screen.step(1, METRICS)

    drawn = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", out.getvalue())
    first, last = re.findall(r"training.*", drawn)[0], re.findall(r"training.*", drawn)[-1]
    assert re.fullmatch(r"training, time left after step 1 .* 0/80 +\d:\d\d:\d\d elapsed\s*", first)
    assert re.fullmatch(r"training, at most 3 min left .* 1/80 +\d:\d\d:\d\d elapsed\s*", last)
    assert re.search(r"step 2: rollouts .* 0/64 +\d:\d\d:\d\d elapsed", drawn)


@pytest.mark.parametrize(("temperature", "how"), [(0.7, "T 0.7"), (0.0, "greedy")])
def test_the_accuracy_in_the_line_of_a_step_says_how_it_was_decoded(
    temperature: float, how: str
) -> None:
    """Training and evaluation may differ in it."""
    out = io.StringIO()
    screen = Screen(out)
    screen.start(80, 0, "dev", temperature=0.7)
    screen.step(80, METRICS | {"held_out.temperature": temperature}, last=True)

    assert f"  dev 40.0% ({how})\n" in out.getvalue()


@pytest.mark.parametrize(("early", "bound"), [(True, "at most"), (False, "about")])
def test_no_estimate_is_contradicted_by_the_next_line(
    clock: SimpleNamespace, early: bool, bound: str
) -> None:
    """A run that may end early says so, and the last step has no time left."""
    out = io.StringIO()
    screen = Screen(out)
    clock.now = 2.0
    screen.start(80, 0, "dev", temperature=1.0, may_end_early=early)
    screen.step(1, METRICS)
    clock.now = 4.0
    screen.step(2, METRICS, last=True)

    head, first, pace, last = out.getvalue().splitlines()
    assert head == "a step shows the share of right samples at T 1 with its 95 % interval"
    assert f"12,457 tokens/s  {bound} 3 min left" in first
    assert f"2 s a step: {bound} 3 min for the other 79 steps, without evaluations" == pace
    assert "step  2/80  right  65%           reward 1.57  entropy 0.04" in last
    assert "left" not in last


def test_the_time_left_has_the_evaluations_to_come(clock: SimpleNamespace) -> None:
    """One that training had is no part of the pace of a step."""
    out = io.StringIO()
    screen = Screen(out)
    screen.start(10, 0, "dev", may_end_early=True)
    clock.now = 32.0
    screen.step(1, METRICS, evaluated=30.0, to_evaluate=60.0)
    clock.now = 34.0
    screen.step(2, METRICS, evaluated=30.0, to_evaluate=60.0)

    first, pace, second = out.getvalue().splitlines()
    assert "at most 80 s left" in first
    assert pace == "2 s a step: at most 80 s for the other 9 steps, with evaluations"
    assert "at most 80 s left" in second


def test_steps_without_a_gradient_tell_no_time(clock: SimpleNamespace) -> None:
    """They are short: the first one with a gradient says how long the others take."""
    out = io.StringIO()
    screen = Screen(out)
    screen.start(22, 0, "dev")
    metrics = {key: value for key, value in METRICS.items() if not key.startswith("seconds.")}
    for step, now, share in [(1, 1.0, 1.0), (2, 2.0, 1.0), (3, 12.0, 0.5), (4, 13.0, 1.0)]:
        took, clock.now = now - clock.now, now
        screen.step(step, metrics | {"zero_variance": share, "seconds.update": took})

    first, second, third, pace, fourth = out.getvalue().splitlines()
    assert not [line for line in (first, second) if "left" in line]
    assert "about 4 min left" in third
    assert pace.endswith(" s a step: about 4 min for the other 19 steps, without evaluations")
    assert "about 2 min left" in fourth  # 18 times 11 s in 2 steps


@pytest.mark.parametrize("columns", [60, 80, 100, 140, None])
@pytest.mark.parametrize("best", [None, 1.3])
def test_fields_keep_their_place_from_step_to_step(columns: int | None, best: float | None) -> None:
    """Whatever a step lacks: a gradient, an evaluation, a right sample, a measured entropy."""
    line = StepLine("dev", best)
    steps: list[dict[str, Any]] = [
        METRICS,
        METRICS | {"updates": 0.0, "zero_variance": 1.0, "held_out.accuracy": None},
        METRICS | {"success": 1.0, "entropy.sampled": 3.2, "length.mean": 12.0},
        METRICS | {"success": 0.0, "reward.mean": 0.0, "tokens_per_second": 3.0},
        METRICS | {"entropy.sampled": None, "tokens_per_second": None},
    ]
    texts = [
        line.text(f"step {i}/20", m, success=SHARE, width=columns) for i, m in enumerate(steps)
    ]

    assert all(len(text) <= (columns or len(text)) for text in texts)
    for word in ("right", "reward", "entropy", "length", "tokens/s", "no gradient", "dev"):
        places = {text.index(word) for text in texts if word in text}
        assert len(places) <= 1, (word, texts)
    assert sum("entropy" in text for text in texts) == 4
    assert ["no gradient" in text for text in texts] == [False, True, False, False, False]


GRADIENTS: list[tuple[dict[str, Any], str]] = [
    ({"updates": 1.0, "grad_norm": 0.2}, ""),
    ({"updates": 1.0, "grad_norm": 0.2, "idle": 0.9, "zero_variance": 0.9}, ""),
    ({"updates": 1.0, "idle": 1.0, "grad_norm": 0.1}, ""),  # the KL term moves it
    ({"updates": 0.0, "critic.warmup": 1.0}, ""),
    ({"updates": 1.0, "grad_norm": None}, ""),  # not finite: another alert
    (
        {"updates": 0.0, "zero_variance": 1.0},
        "no gradient: the samples of each group earn the same",
    ),
    (
        {"updates": 1.0, "grad_norm": 0.0, "idle": 1.0},
        "no gradient: no sample has an advantage",
    ),
    ({"groups": 4, "groups.rejected": 4}, "no gradient: no group was accepted"),
    ({"updates": 0.0, "updates.skipped": 1.0, "zero_variance": 0.5}, "no gradient"),
]


@pytest.mark.parametrize(("metrics", "end"), GRADIENTS)
def test_a_step_without_a_gradient_says_so(metrics: dict[str, Any], end: str) -> None:
    text = StepLine().text("step 3/9", {"success": 0.5, **metrics})

    assert end in text
    assert ("no gradient" in text) == bool(end)


@pytest.mark.parametrize(
    ("target", "measured", "step", "expected"),
    [
        (0.95, [(10, 0.63), (20, 0.785), (30, 0.91)], 30, 10),
        (0.95, [(10, 0.63), (20, 0.785), (30, 0.91)], 34, 6),
        (0.95, [(5, 0.5), (10, 0.6)], 10, 20),
        (0.95, [(5, 0.6), (10, 0.5)], 10, None),
        (0.95, [(10, 0.6)], 10, None),
        (None, [(5, 0.5), (10, 0.6)], 10, None),
    ],
)
def test_the_trend_says_when_the_target_is_near(
    target: float | None, measured: list[tuple[int, float]], step: int, expected: int | None
) -> None:
    assert steps_to(target, measured, step) == expected


def test_the_time_left_follows_the_trend(clock: SimpleNamespace) -> None:
    """At 91 % of the 95 % that end the run it is not all the steps that might be left."""
    out = io.StringIO()
    screen = Screen(out)
    screen.start(80, 0, "dev", may_end_early=True, accuracy=0.95)
    for step, accuracy in ((10, 0.63), (20, 0.785), (30, 0.91)):
        clock.now = float(60 * step)
        screen.step(step, METRICS | {"held_out.accuracy": accuracy})

    lines = [line for line in out.getvalue().splitlines() if line.startswith("step")]
    assert "at most 70 min left" in lines[0]
    assert "about 10 min left" in lines[2]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (31, "40 s"), (90, "2 min"), (166, "3 min"), (7200, "2 h"), (7201, "2 h 10 min")],
)
def test_estimates_are_rounded_up(seconds: float, text: str) -> None:
    assert text == rough(seconds)


def test_an_evaluation_says_how_it_was_decoded() -> None:
    out = io.StringIO()
    dev = {"accuracy": 0.785, "low": 0.723, "high": 0.836, "tasks": 200, "temperature": 0.7}
    test = {"accuracy": 0.98, "low": 0.971, "high": 0.986, "tasks": 1319, "temperature": 0.0}
    Screen(out).evaluation("dev", 10, dev, ())
    Screen(out).evaluation("test", 10, test, ())
    assert out.getvalue().splitlines() == [
        "dev, step 10: 78.5% (72-84) of 200 tasks right, sampled at T 0.7",
        "test, step 10: 98.0% (97-99) of 1,319 tasks right, greedy",
    ]


@pytest.mark.parametrize(
    ("declared", "best"), [((-1, 2), 2.0), ((-math.inf, math.inf), None), (None, None)]
)
def test_the_best_reward_is_known_where_it_is_finite(
    declared: tuple[float, float] | None, best: float | None
) -> None:
    environment: Any = SimpleNamespace(reward=SimpleNamespace(range=declared), shaping=None)

    assert best == best_reward([environment])
