"""The base class of trackers: it receives the hooks of a run and calls three methods."""

from __future__ import annotations

import importlib
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from quintain.errors import UsageError
from quintain.store import write_atomically


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """The run that a tracker logs.

    Attributes:
        name: of the run.
        folder: its absolute path.
        step: the last completed step; 0 for a new run.
        recipe: the resolved recipe, as plain data.
    """

    name: str
    folder: Path
    step: int
    recipe: Mapping[str, Any]

    def tracker_id(self, tracker: str, make: Callable[[], str]) -> str:
        """Return the id of the run in *tracker*: *make* is called once, and a resumed run gets the
        same id.
        """
        file = self.folder / "trackers" / tracker
        if not file.is_file():
            write_atomically(file, make().encode())
        return file.read_text(encoding="utf-8")


@dataclass(kw_only=True, eq=False)
class Tracker(ABC):
    """A tracker; the fields of a subclass are its settings, ``args`` of its table in the recipe.

    An instance with default settings is the entry point of the group ``quintain.plugins``. When a
    run starts that names the tracker in ``[[trackers]]``, a second instance with the settings of
    the recipe is made. If a method raises, the run prints one warning, and that instance is not
    called again.
    """

    label: ClassVar[str]
    """The name of the entry point."""
    _active: Tracker | None = field(default=None, init=False, repr=False, compare=False)

    @abstractmethod
    def start(self, run: TrackedRun) -> None:
        """Begin to log *run*, or continue if it was resumed."""

    @abstractmethod
    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Log finite numbers of *step*; several calls may have the same step."""

    @abstractmethod
    def finish(self, status: str) -> None:
        """End with *status* ``finished``, ``interrupted`` or ``failed``."""

    def quintain_on_run_start(self, event: Any) -> None:
        self._active = None
        for table in event.recipe.get("trackers") or ():
            if table["use"].rpartition("/")[2] == self.label:
                run = TrackedRun(
                    name=event.run, folder=Path(event.folder), step=event.step, recipe=event.recipe
                )
                self._active = type(self)(**table.get("args", {}))
                self._call(partial(_start, run))

    def quintain_on_step_end(self, event: Any) -> None:
        self._call(lambda tracker: tracker.log(dict(numbers(event.metrics)), event.step))

    def quintain_on_evaluation_end(self, event: Any) -> None:
        prefix = f"evaluation/{event.environment}/{event.split}{'/other_decoding' * event.other_decoding}"
        values = {f"{prefix}/{name}": value for name, value in numbers(event.metrics)}
        self._call(lambda tracker: tracker.log(values, event.step))

    def quintain_on_run_end(self, event: Any) -> None:
        self._call(lambda tracker: tracker.finish(event.status))
        self._active = None

    def _call(self, action: Callable[[Tracker], None]) -> None:
        tracker, self._active = self._active, None  # stays none if the action raises
        if tracker is not None:
            # standard output is for the summary, with --json an object
            with redirect_stdout(sys.stderr):
                action(tracker)
            self._active = tracker


def _start(run: TrackedRun, tracker: Tracker) -> None:
    tracker.start(run)


def numbers(metrics: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the finite numbers of *metrics*; the first dot of a name becomes a slash, by which
    dashboards group.
    """
    for name, value in metrics.items():
        if (
            isinstance(value, (int, float))
            and not isinstance(value, bool)
            and name != "step"
            and math.isfinite(value)
        ):
            yield name.replace(".", "/", 1), float(value)


def flattened(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested tables and lists, by dotted name."""
    for name, value in table.items():
        items = dict(enumerate(value)) if isinstance(value, (list, tuple)) else value
        if isinstance(items, Mapping):
            yield from flattened(
                {str(key): item for key, item in items.items()}, f"{prefix}{name}."
            )
        else:
            yield f"{prefix}{name}", value


def imported(package: str, extra: str) -> Any:
    """Return the module *package*.

    Raises:
        UsageError: it is not installed; the message names the *extra* that brings it.
    """
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as e:
        raise UsageError(f"{e}; install it with: pip install 'quintain-view[{extra}]'") from e
