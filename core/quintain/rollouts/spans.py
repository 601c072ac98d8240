"""Spans: when what a run does began and ended, for the plugin that records them.

Nothing is measured before `record_spans`. `docs/hooks.md` lists the names and attributes.
"""

from __future__ import annotations

import time
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Protocol, Self


class SpanRecorder(Protocol):
    """Takes the spans of a run; its methods are called between two steps of an episode, so they
    are quick and raise nothing.
    """

    def begin(self, span: Span) -> None:
        """Take a span that has begun."""

    def end(self, span: Span) -> None:
        """Take the same span when it is over."""


class Span:
    """The time of a block of code, with what the block does.

    Attributes:
        attributes: by name; the block may add some.
        parent: the span around it that is not over; ``None`` without one.
        began, ended: seconds of `time.monotonic`; *ended* is 0 until the end.
        error: name of the exception that left the block.
    """

    __slots__ = ("_recorder", "attributes", "began", "ended", "error", "name", "parent")

    def __init__(self, name: str, **attributes: Any) -> None:
        self.name = name
        self.attributes = attributes

    def __enter__(self) -> Self:
        recorder = _RECORDER.get()
        self._recorder = recorder
        if recorder is not None:
            self.error = ""
            self.ended = 0.0
            around = _AROUND.get()
            # A task that outlives the span in which it began still has that around it.
            self.parent = None if around is None or around.ended else around
            _AROUND.set(self)
            self.began = time.monotonic()
            recorder.begin(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._recorder is not None:
            self.ended = time.monotonic()
            self.error = kind.__name__ if kind else ""
            _AROUND.set(self.parent)  # `reset` fails in a coroutine that the collector closes
            self._recorder.end(self)


_RECORDER: ContextVar[SpanRecorder | None] = ContextVar("quintain-spans", default=None)
_AROUND: ContextVar[Span | None] = ContextVar("quintain-span", default=None)


def add_span(name: str, began: float, ended: float, error: str, **attributes: Any) -> None:
    """Record a span of another process of this machine, inside the one that is open here."""
    recorder = _RECORDER.get()
    if recorder is not None:
        span = Span(name, **attributes)
        span.parent = _AROUND.get()
        span.began = began
        span.ended = ended
        span.error = error
        recorder.begin(span)
        recorder.end(span)


def record_spans(recorder: SpanRecorder) -> None:
    """Give every span of this run that begins from now on to *recorder*. A hook calls it in
    `quintain_on_run_start`.
    """
    _RECORDER.set(recorder)
