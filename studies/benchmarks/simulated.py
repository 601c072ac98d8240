"""A simulated clock for runs whose tools wait: the code of a run is executed, its waits are not.

The event loop's clock jumps to the next timer when nothing else is due, and what the run measures
with `time` reads the same clock. Durations of computation come from one of two sources:

- `Costs`: fixed seconds per forward pass of the engine and per update of the learner. Two runs with
  the same seed then have equal metrics. Learner and sampler do not slow each other down, as on
  hardware of their own.
- ``None``: computation takes the time that it takes, on threads as always, and the clock jumps only
  while nothing is computed. This is a real run without its waits.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import quintain.engine.sampler
import quintain.learning.learner
import quintain.rollouts.runner
import quintain.run.progress
import quintain_scale.schedules.collector
import quintain_scale.schedules.idle
from quintain.engine.embedded import EmbeddedEngine
from quintain.learning.learner import Learner

MEASURING: tuple[ModuleType, ...] = (
    quintain.engine.sampler,
    quintain.learning.learner,
    quintain.rollouts.runner,
    quintain.run.progress,
    quintain_scale.schedules.collector,
    quintain_scale.schedules.idle,
)
"""The modules whose durations decide or are reported."""


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Seconds of computation.

    Attributes:
        forward: of one forward pass of the engine: one token of all rows, or a batch of prompts.
        update: of the learner, for the log-probs of a batch and all its optimizer steps.
    """

    forward: float = 0.0015
    update: float = 0.05


class Clock:
    """Seconds that have passed in the simulation."""

    def __init__(self, costs: Costs | None) -> None:
        self.costs, self._skipped = costs, 0.0
        self._apart: list[float] = []  # seconds charged to a computation in a thread of its own

    def now(self) -> float:
        return self._skipped if self.costs else time.monotonic() + self._skipped

    def skip(self, seconds: float) -> None:
        """Let *seconds* pass without waiting."""
        self._skipped += seconds

    def charge(self, seconds: float) -> None:
        """Count *seconds* of computation."""
        if self._apart:
            self._apart[-1] += seconds
        else:
            self.skip(seconds)

    def timed(self, work: Callable[[], Any]) -> tuple[Any, float]:
        """Return the result of *work* and the seconds charged to it, which have not passed."""
        self._apart.append(0.0)
        try:
            return work(), self._apart[-1]
        finally:
            self._apart.pop()


class _Selector(selectors.DefaultSelector):
    """Jumps to the next timer instead of waiting for it, unless a thread computes."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock, self.computing = clock, 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self.computing or timeout is None or timeout <= 0:
            return super().select(timeout)
        if not (events := super().select(0)):
            self.clock.skip(timeout)
        return events


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop on a simulated clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._waiting = clock, _Selector(clock)
        super().__init__(self._waiting)

    def time(self) -> float:
        return self._clock.now()

    def run_in_executor(
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:  # type: ignore[override]
        """With fixed costs: compute at once, and complete when the charged seconds have passed."""
        if self._clock.costs is None:
            self._waiting.computing += 1
            running = super().run_in_executor(executor, func, *args)
            running.add_done_callback(self._computed)
            return running
        outcome: Future[Any] = Future()
        seconds = 0.0
        try:
            result, seconds = self._clock.timed(lambda: func(*args))
            outcome.set_result(result)
        except Exception as error:  # noqa: BLE001 -- as an executor does
            outcome.set_exception(error)
        done = self.create_future()
        self.call_later(seconds, _copy, outcome, done)
        return done

    def _computed(self, _: asyncio.Future[Any]) -> None:
        self._waiting.computing -= 1


def _copy(outcome: Future[Any], done: asyncio.Future[Any]) -> None:
    if done.cancelled():
        return
    if error := outcome.exception():
        done.set_exception(error)
    else:
        done.set_result(outcome.result())


_clock = Clock(None)


@contextmanager
def simulated(costs: Costs | None = None) -> Iterator[Clock]:
    """Runs inside the block have a simulated clock; see the module."""
    global _clock
    before, _clock = _clock, Clock(costs)
    clock = _clock

    reading = SimpleNamespace(monotonic=clock.now, perf_counter=clock.now, time=time.time)
    patches = [patch.object(module, "time", reading) for module in MEASURING]
    patches.append(patch.object(asyncio.events, "new_event_loop", lambda: SimulatedLoop(clock)))
    try:
        for each in patches:
            each.start()
        yield clock
    finally:
        for each in patches:
            each.stop()
        _clock = before


class ChargedEngine(EmbeddedEngine):
    """The embedded engine, whose forward passes cost `Costs.forward` on the simulated clock."""

    @classmethod
    def sharing(cls, *args: Any, **options: Any) -> EmbeddedEngine:
        engine = super().sharing(*args, **options)
        forward: Any = engine._forward
        extend, steps = forward.extend, forward.steps

        def charged_steps(*args: Any) -> Any:
            begun = steps(*args)
            return SimpleNamespace(step=_charged(begun.step, "forward"))

        forward.extend, forward.steps = _charged(extend, "forward"), charged_steps
        return engine


class ChargedLearner(Learner):
    """The learner, whose updates cost `Costs.update` on the simulated clock."""

    def step(self, *args: Any, **options: Any) -> dict[str, float]:
        return _charged(super().step, "update")(*args, **options)  # type: ignore[no-any-return]


def _charged(work: Callable[..., Any], cost: str) -> Callable[..., Any]:
    def run(*args: Any, **options: Any) -> Any:
        result = work(*args, **options)
        if _clock.costs is not None:
            _clock.charge(getattr(_clock.costs, cost))
        return result

    return run
