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
from quintain_view.watch.trace import Timed, read_trace, steps_of

from .episodes import EpisodeStep

FIRST = 2
"""The first steps of a run warm caches up, and do not count."""

NOT_MEASURED_ENGINE = dict.fromkeys(
    ("weights", "compute", "context", "prefill", "prefill_context"), 0.0
)
NOT_MEASURED_LEARNER = {"sequence": 0.0, "pair": 0.0}
"""Seconds that those of a token hold in a fit: without a 0, the data sheet of a GPU adds its own.
For the same reason, the fitted episodes have no prompt: the learner's token is a sampled one.
"""


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
        by_step = [read_trace(run.path, step).spans for step in steps]
        episodes += [episode for spans in by_step for episode in episodes_of(spans)]
        # Turns of evaluations and of unfinished episodes take seconds of the engine, too.
        rows += turn_rows([turn for spans in by_step for _, turn in turns_of(spans)])
        updates += [record for record in run.metrics() if record.get("step", 0) > FIRST]
    measured = tuple(tuple(_steps(episode)) for episode in episodes)
    return measured, {
        "engine": NOT_MEASURED_ENGINE | fitted_engine(rows),
        "learner": NOT_MEASURED_LEARNER | fitted_learner(updates),
        "episodes": {"prompt": 0},
    }


def turns_of(spans: Sequence[Timed]) -> Iterator[tuple[int, MeasuredTurn]]:
    """Yield each turn among the *spans* of one step that sampled tokens, after the id of the span
    around it.
    """
    for span in spans:
        tokens = span.attributes.get("tokens", 0)
        if span.kind == "turn" and tokens:
            yield span.parent, MeasuredTurn(began=span.began, ended=span.ended, tokens=tokens)


def episodes_of(spans: Sequence[Timed]) -> Iterator[list[MeasuredTurn]]:
    """Yield the turns of each training episode that ended among the *spans* of one step, in order.

    A turn that ended in an earlier step than its episode is missing: its span is in the file of
    that step, and its episode is not.
    """
    by_id = {span.id: span for span in spans}
    turns: dict[int, list[MeasuredTurn]] = defaultdict(list)
    for parent, turn in turns_of(spans):
        around = by_id.get(parent)
        if around is not None and around.kind == "episode" and not _is_evaluated(around, by_id):
            turns[parent].append(turn)
    for episode in turns.values():
        yield sorted(episode, key=lambda turn: turn.began)


def _is_evaluated(span: Timed, by_id: Mapping[int, Timed]) -> bool:
    """Return whether *span* lies inside an evaluation."""
    around = by_id.get(span.parent)
    return around is not None and (around.kind == "evaluation" or _is_evaluated(around, by_id))


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
