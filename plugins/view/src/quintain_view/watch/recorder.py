"""The hooks that record the spans of a run: a file for each step, what runs now, and the export to
a collector.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from quintain.errors import UsageError
from quintain.rollouts import Span, record_spans
from quintain.store import plain_data
from quintain.types import reaches

from ..viewer.pictures import labelled
from .otlp import Exporter
from .trace import FOLDER, Timed, TimelineFile, path_of, steps_of, write_trace, write_whole

KEPT = 50
"""Steps with a timeline, unless ``QUINTAIN_TIMELINE`` says otherwise."""
MOST_BYTES = 500_000_000
"""Of the timelines of a run; the older ones go first."""
BEAT = 0.025
"""Seconds between two looks whether the event loop runs."""
LATE = 0.02
"""Seconds by which such a look is late if something blocked the loop."""
LIVE_SECONDS = 1.0
"""Between two writes of what runs now."""
SHOWN_LIVE = 500
"""Open spans, and finished rollouts of the step that runs, in what runs now; the oldest spans and
the newest rollouts."""
EXCERPT = 160
"""Characters of a prompt or a reply there."""


def kept_steps(text: str) -> int | None:
    """Return how many steps ``QUINTAIN_TIMELINE`` = *text* keeps; ``None`` is all.

    Raises:
        UsageError: it is no number, ``all`` or ``off``.
    """
    if text in ("", "all"):
        return None if text else KEPT
    if text == "off":
        return 0
    if text.isdecimal():
        return int(text)
    raise UsageError(f"QUINTAIN_TIMELINE is {text!r}; expected a number of steps, all or off")


class TimelineRecorder:
    """Collects the spans of a run and writes them when a step is over.

    Args:
        folder: of the run.
        step: the last complete one.
        kept: number of steps whose files stay; ``None`` is all.
        exporter: sends the spans of each step to a collector.
    """

    def __init__(
        self, folder: Path, *, step: int = 0, kept: int | None, exporter: Exporter | None = None
    ) -> None:
        self.folder, self._kept, self._exporter = folder, kept, exporter
        self._since_1970 = time.time() - time.monotonic()
        self._open: dict[Span, None] = {}
        self._over: list[Span] = []
        self._blocked: list[tuple[float, float]] = []
        self._rollouts: list[dict[str, Any]] = []
        self._complete: dict[int, float] = {}  # groups that no batch has taken, with their times
        self._takes_groups = False
        self._step, self._began, self._wrote_live = step, bool(step), 0.0
        self._timer: asyncio.TimerHandle | None = None

    # ---------------------------------------------------------------- what a run calls
    def begin(self, span: Span) -> None:
        if span.name == "step":
            if not self._began:
                self._write(path_of(self.folder, 0))
            self._began, self._step = True, span.attributes["step"]
        elif span.name == "episode" and "request" in span.attributes:
            request = span.attributes.pop("request")
            span.attributes |= {"environment": request.name, "group": request.index}
        self._open[span] = None

    def end(self, span: Span) -> None:
        self._open.pop(span, None)
        self._over.append(span)
        if span.name == "score":
            rollout = span.attributes.pop("rollout", None)
            if any(around.name == "evaluation" for around in around_of(span)):
                return
            if rollout is not None:
                self._rollouts.append(live_row(rollout))
            elif "group" in span.attributes:
                self._complete[span.attributes["group"]] = span.ended
        elif span.name == "batch":
            self._takes_groups = True
            for group in span.attributes["groups"]:
                self._complete.pop(group, None)
        elif span.name == "step":
            if not self._takes_groups:  # a collector whose batch is what it has sampled
                self._complete.clear()
            self._write(path_of(self.folder, self._step))

    def beat(self, loop: asyncio.AbstractEventLoop) -> None:
        """Note when the event loop was blocked, and write what runs now, until `stop`."""
        self._timer = None
        due = time.monotonic() + BEAT

        def look() -> None:
            nonlocal due
            now = time.monotonic()
            if now - due > LATE:
                self._blocked.append((due, now))
            if now - self._wrote_live > LIVE_SECONDS:
                self.write_live(now)
            due = now + BEAT
            self._timer = loop.call_later(BEAT, look)

        self._timer = loop.call_later(BEAT, look)

    def stop(self) -> None:
        """Write what is left; the run is over."""
        if self._timer is not None:
            self._timer.cancel()
        self._write(self.folder / FOLDER / "after.json")
        (self.folder / FOLDER / "live.json").unlink(missing_ok=True)
        if self._exporter is not None:
            self._exporter.close()

    # ---------------------------------------------------------------- files
    def _write(self, path: Path) -> None:
        over, self._over = self._over, []
        blocked, self._blocked = self._blocked, []
        if not over:
            return
        self._rollouts = []
        timeline = TimelineFile(
            run=self.folder.name, step=self._step, spans=list(self._timed(over, blocked))
        )
        if self._exporter is not None:
            self._exporter.send(timeline)
        if self._kept != 0:
            write_trace(path, timeline)
        if self._kept is not None:
            self._retain(self._kept)

    def _retain(self, kept: int) -> None:
        """Keep the files of the last *kept* steps, fewer above `MOST_BYTES`."""
        left = MOST_BYTES
        for number, step in enumerate(reversed(steps_of(self.folder))):
            path = path_of(self.folder, step)
            left -= path.stat().st_size
            if number >= kept or (number and left < 0):
                path.unlink(missing_ok=True)

    def _timed(self, over: list[Span], blocked: list[tuple[float, float]]) -> Iterator[Timed]:
        over.sort(key=lambda span: span.began)
        numbers = {span: number for number, span in enumerate(over, 1)}
        offset = self._since_1970
        for span, number in numbers.items():
            apart = span.name == "engine waits"  # begins in the task of some turn
            yield Timed(
                id=number,
                parent=0 if apart or span.parent is None else numbers.get(span.parent, 0),
                kind=span.name,
                began=span.began + offset,
                ended=span.ended + offset,
                attributes=span.attributes,
                error=span.error,
            )
        for number, (began, ended) in enumerate(blocked, len(over) + 1):
            yield Timed(
                id=number, parent=0, kind="blocked", began=began + offset, ended=ended + offset
            )

    def write_live(self, now: float) -> None:
        """Write ``live.json``: the step, its open spans with their ages, and its rollouts so far."""
        self._wrote_live = now
        open_spans = [span for span in self._open if span.name != "step"]
        live = {
            "time": now + self._since_1970,
            "step": self._step,
            "open": [
                {**span.attributes, "kind": span.name, "seconds": now - span.began}
                for span in sorted(open_spans, key=lambda span: span.began)[:SHOWN_LIVE]
            ],
            "count": len(open_spans),
            "queue": [[group, now - at] for group, at in self._complete.items()][:SHOWN_LIVE],
            "rollouts": self._rollouts[-SHOWN_LIVE:],
            "finished": len(self._rollouts),
        }
        write_whole(self.folder / FOLDER / "live.json", json.dumps(plain_data(live)))


def around_of(span: Span) -> Iterator[Span]:
    """Yield the spans around *span*, the innermost first."""
    around = span.parent
    while around is not None:
        yield around
        around = around.parent


def live_row(rollout: Any) -> dict[str, Any]:
    """Return what a list shows of a rollout before its step is stored."""
    outcome, shaping = rollout.outcome, rollout.shaping
    if rollout.termination.ours or outcome is None:
        result = "failed"
    else:
        result = "right" if reaches(outcome.total) else "wrong"
    prompt = rollout.task.prompt
    prompt = prompt if isinstance(prompt, str) else prompt[-1].content if prompt else ""
    return {
        "environment": rollout.environment,
        "group": rollout.group,
        "sample": rollout.sample,
        "result": result,
        "reward": None if outcome is None else outcome.total + (shaping.total if shaping else 0.0),
        "termination": str(rollout.termination.kind),
        "cause": rollout.termination.cause,
        "sampled": rollout.tokens,
        "seconds": rollout.seconds,
        "prompt": labelled(prompt)[:EXCERPT],
        "reply": rollout.reply[:EXCERPT],
    }


_recorder: TimelineRecorder | None = None


def quintain_on_run_start(event: Any) -> None:
    """Record the run from here on, unless ``QUINTAIN_TIMELINE`` is ``off``."""
    global _recorder
    kept = kept_steps(os.environ.get("QUINTAIN_TIMELINE", ""))
    exporter = Exporter.of_environment(os.environ, event.run)
    _recorder = None
    if kept == 0 and exporter is None:
        return
    _recorder = TimelineRecorder(Path(event.folder), step=event.step, kept=kept, exporter=exporter)
    _recorder.beat(asyncio.get_running_loop())
    record_spans(_recorder)


def quintain_on_run_end(event: Any) -> None:
    """Write what is left."""
    global _recorder
    recorder, _recorder = _recorder, None
    if recorder is not None:
        recorder.stop()
