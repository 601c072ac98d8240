"""Servers and ranks of a run that claim their devices."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quintain import Weights, objective
from quintain.interfaces import ProcessCluster
from quintain_engines.vllm.sleep import LearnerHook

from ..ray.placed_replica import PlacedReplica
from . import claims
from .claims import FOLDER, Claims

LONG = 60.0
"""Seconds that a server may take to do what a signal asks for."""


@objective
def claiming(t: Any) -> Any:
    """A policy gradient, in whose computation a rank has its device."""
    device = Claims(Path(os.environ[FOLDER]), "rank")
    device.claim()
    term = t.ratio() * t.advantage
    device.leave()
    return term


class ClaimingReplica(PlacedReplica):
    """A replica whose server claims its device, and gives it up while the learner computes, if it
    takes turns.
    """

    name = "claiming-replica"

    def __init__(self, *, cluster: ProcessCluster | None = None, sleep_mode: bool = False) -> None:
        super().__init__(cluster=cluster)
        self._sleeps, self._asleep = sleep_mode, False
        self._hook: LearnerHook | None = None
        self._folder = Path(os.environ[FOLDER])

    @classmethod
    def on_gpus(
        cls, settings: Mapping[str, Any], gpus: int, *, turns: bool = False
    ) -> Mapping[str, Any]:
        assert gpus == 1
        return {**settings, "sleep_mode": turns}

    async def _start(self) -> None:
        words = ["-S", "-E", claims.__file__, str(self._folder), "{host}", "{port}"]
        await self._server.start(words, gpus=1, patience=120)

    async def __aexit__(self, *exc: object) -> None:
        if self._hook is not None:
            self._hook.stop()
        await super().__aexit__(*exc)

    async def update(self, weights: Weights) -> int:
        if self._sleeps and self._hook is None:
            self._hook = LearnerHook(getattr(weights, "module", None), self._rest)
            self._hook.start()
        if self._asleep:
            self._asleep = False
            await asyncio.to_thread(self._signal, signal.SIGUSR2, "claims")
        return await super().update(weights)

    def _rest(self) -> None:
        if not self._asleep:
            self._asleep = True
            self._signal(signal.SIGUSR1, "leaves")

    def _signal(self, number: signal.Signals, what: str) -> None:
        """Send a signal to the server, and wait until it has done *what*."""
        before = self._count(what)
        os.kill(self._server.pid, number)
        deadline = time.monotonic() + LONG
        while self._count(what) == before and time.monotonic() < deadline:
            time.sleep(0.01)

    def _count(self, what: str) -> int:
        return (self._folder / "log").read_text().count(f"server {what}")
