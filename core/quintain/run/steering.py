"""What plugins ask of a run while it runs: a pause, an evaluation, a checkpoint, other settings."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ..console.screen import Screen
from ..errors import UsageError
from ..interfaces.engine import TokenEngine
from ..interfaces.events import Steering
from ..rollouts.spans import Span
from ..store.run_folder import RunFolder
from .collect import Collector
from .interruption import Interruption
from .progress import RunProgress

PAUSE_SECONDS = 0.2
"""Between two looks whether a pause is over."""
SETTINGS = ("max_staleness", "concurrency", "replicas")
"""What plugins may change, in the order in which it is changed."""


@dataclass(kw_only=True)
class RunSteering:
    """Does what plugins ask of a run, between two steps, and notes it in ``provenance.jsonl``.

    Attributes:
        asked: what plugins set, at any time.
        changed: the settings that are no longer those of the recipe; every checkpoint has them.
    """

    folder: RunFolder
    screen: Screen
    progress: RunProgress
    interruption: Interruption
    collector: Collector
    engine: TokenEngine
    asked: Steering = field(default_factory=Steering)
    changed: dict[str, int] = field(default_factory=dict)

    async def before_step(self) -> None:
        """Wait while the run is paused, then change the settings that plugins ask to change.

        Raises:
            Interrupted: the user requested a stop in a pause.
        """
        if self.asked.paused:
            await self._pause()
        changed = {}
        for name in SETTINGS:
            value = getattr(self.asked, name)
            if value is None:
                continue
            setattr(self.asked, name, None)
            refusal = self._change(name, value)
            if refusal:
                self.screen.warn(f"{name} = {value} was asked for and is not set: {refusal}")
            else:
                changed[name] = value
        if changed:
            self.changed |= changed
            self._note(**changed)

    def take(self, what: Literal["evaluate", "checkpoint"]) -> bool:
        """Return whether a plugin asked for *what* since the last call."""
        asked = bool(getattr(self.asked, what))
        if asked:
            setattr(self.asked, what, False)
            self._note(**{what: True})
        return asked

    def note_stop(self) -> None:
        """Note that a plugin ends the run with this step, if one does."""
        if self.asked.stop:
            self._note(stop=self.asked.stop)

    def restore(self, changed: dict[str, int]) -> None:
        """Change the settings that had been *changed* at a checkpoint."""
        self.changed = changed
        for name, value in changed.items():
            self._change(name, value)

    async def _pause(self) -> None:
        self.screen.note(f"paused after step {self.progress.step}")
        began = time.monotonic()
        with Span("paused"):
            while self.asked.paused:
                await self.interruption.until_stopped(asyncio.sleep(PAUSE_SECONDS))
        self._note(paused_seconds=time.monotonic() - began)

    def _change(self, name: str, value: int) -> str:
        """Change a setting of the next steps; return why it cannot be changed, or an empty text."""
        collector = self.collector
        if name == "concurrency":
            collector.rollout_context = replace(collector.rollout_context, concurrency=value)
        elif name == "replicas":
            try:
                self.engine.resize(value)
            except UsageError as error:
                return str(error)
        elif collector.saves_unfinished:
            collector.schedule = replace(collector.schedule, max_staleness=value)
        else:
            return "only a schedule that samples ahead has one"
        return ""

    def _note(self, **done: Any) -> None:
        record = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "step": self.progress.step,
            "steering": done,
        }
        self.folder.append(record, self.folder.provenance_path)
