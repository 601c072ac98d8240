"""Costs and episodes of a run, from the timelines and the rollouts of its folder."""

from __future__ import annotations

import bisect
import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy

from quintain.errors import UsageError
from quintain.store import RunFolder, find_run
from quintain_watch.trace import Timed, read_trace, steps_of

from .episodes import EpisodeStep

FIRST = 2
"""The first steps of a run warm caches up, and do not count."""


@dataclass(frozen=True, kw_only=True)
class MeasuredTurn:
    """A turn of a run: when it began and ended, its tokens, and what came after it."""

    began: float
    ended: float
    tokens: int


def setup_like(
    names: Sequence[str], folder: str
) -> tuple[tuple[tuple[EpisodeStep, ...], ...], dict[str, Any]]:
    """Return the episodes of the runs *names*, and the tables of a setup with their costs.

    Raises:
        UsageError: there is no such run, or it has too few timelines.
    """
    episodes: list[list[MeasuredTurn]] = []
    rows: list[tuple[float, float, float]] = []
    updates: list[Mapping[str, Any]] = []
    for name in names:
        run = RunFolder(find_run(name, folder), lock=False)
        steps = [step for step in steps_of(run.path) if step > FIRST]
        if not steps:
            raise UsageError(
                f"run {name!r} has no timelines after step {FIRST}; they are recorded while a run "
                "trains, unless QUINTAIN_TIMELINE is off"
            )
        spans = [span for step in steps for span in read_trace(run.path, step).spans]
        of_run = [*episodes_of(spans)]
        episodes += of_run
        rows += turn_rows([turn for episode in of_run for turn in episode])
        updates += [record for record in run.metrics() if record.get("step", 0) > FIRST]
    measured = tuple(tuple(_steps(episode)) for episode in episodes)
    return measured, {"engine": fitted_engine(rows), "learner": fitted_learner(updates)}


def episodes_of(spans: Sequence[Timed]) -> Iterator[list[MeasuredTurn]]:
    """Yield the turns of each finished episode among *spans*, in order."""
    turns: dict[int, list[MeasuredTurn]] = defaultdict(list)
    for span in spans:
        tokens = span.attributes.get("tokens", 0)
        if span.kind == "turn" and tokens:
            turns[span.parent].append(
                MeasuredTurn(began=span.began, ended=span.ended, tokens=tokens)
            )
    for episode in turns.values():
        yield sorted(episode, key=lambda turn: turn.began)


def _steps(turns: Sequence[MeasuredTurn]) -> Iterator[EpisodeStep]:
    """Yield the turns of an episode as simulated ones; what comes after the last is not seen."""
    for turn, after in itertools.zip_longest(turns, turns[1:]):
        wait = 0.0 if after is None else max(0.0, after.began - turn.ended)
        yield EpisodeStep(0.0, turn.tokens, wait)


def turn_rows(turns: Sequence[MeasuredTurn]) -> list[tuple[float, float, float]]:
    """Return tokens, tokens times the mean number of *turns* that ran beside, and seconds of
    each.
    """
    if not turns:
        return []
    beside = Concurrency(turns)
    return [
        (
            turn.tokens,
            turn.tokens * beside.mean(turn.began, turn.ended),
            turn.ended - turn.began,
        )
        for turn in turns
    ]


def fitted_engine(rows: Sequence[tuple[float, float, float]]) -> dict[str, float]:
    """Return ``overhead`` and ``sequence`` of the engine that sampled the turns of *rows*.

    A turn of n tokens, beside which b sequences are decoded on average, takes
    ``n * (overhead + sequence * b)``.

    Raises:
        UsageError: there are fewer than two turns.
    """
    if len(rows) < 2:
        raise UsageError("the run has fewer than two turns in its timelines")
    overhead, sequence = least_squares(rows)
    return {"overhead": overhead, "sequence": sequence}


def least_squares(rows: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    """Return x and y, both at least 0, with the least squared errors of ``a * x + b * y = c`` over
    *rows* of a, b and c.
    """
    a, b, c = numpy.array(rows, dtype=float).T
    x, y = numpy.linalg.lstsq(numpy.stack([a, b], axis=1), c, rcond=None)[0]
    if x < 0:
        return 0.0, float(b @ c / (b @ b))
    if y < 0:
        return float(a @ c / (a @ a)), 0.0
    return float(x), float(y)


class Concurrency:
    """How many of *turns* run at once, as a sum over time that is read at any two moments."""

    def __init__(self, turns: Sequence[MeasuredTurn]) -> None:
        changes = sorted(
            [*((turn.began, 1) for turn in turns), *((turn.ended, -1) for turn in turns)]
        )
        self._times = [moment for moment, _ in changes]
        self._running = [*itertools.accumulate(change for _, change in changes)]
        self._sums = [0.0]
        for (moment, after), running in zip(
            itertools.pairwise(self._times), self._running, strict=False
        ):
            self._sums.append(self._sums[-1] + (after - moment) * running)

    def mean(self, began: float, ended: float) -> float:
        """Return the mean number between two moments."""
        if ended <= began:
            return 1.0
        return (self._up_to(ended) - self._up_to(began)) / (ended - began)

    def _up_to(self, moment: float) -> float:
        at = bisect.bisect_right(self._times, moment) - 1
        return self._sums[at] + (moment - self._times[at]) * self._running[at]


def fitted_learner(records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return ``base``, ``token`` and ``transfer`` of the learner by the steps of *records*: an
    update of n tokens takes ``base + token * n``.

    Raises:
        UsageError: there are none.
    """
    if not records:
        raise UsageError("the run has too few steps")
    rows = [(1.0, float(r["tokens"]), float(r.get("seconds.update", 0.0))) for r in records]
    base, token = least_squares(rows)
    transfer = math.fsum(r.get("seconds.sync", 0.0) for r in records) / len(records)
    return {"base": base, "token": token, "transfer": transfer}
