"""The request of a user to stop a run at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from ..errors import Interrupted
from ..process.interrupts import CANCEL_SECONDS
from .progress import RunProgress

A = TypeVar("A")


class Interruption:
    """Whether the user has asked the run to stop.

    Attributes:
        asked: set in the thread of the event loop when the user does.
    """

    def __init__(self, progress: RunProgress) -> None:
        self.asked = asyncio.Event()
        self._progress = progress

    async def until_stopped(self, work: Awaitable[A]) -> A:
        """Return the result of *work*, which is cancelled if the user requests a stop.

        Raises:
            Interrupted: the user requested a stop.
        """
        task = asyncio.ensure_future(work)
        asked = asyncio.ensure_future(self.asked.wait())
        try:
            await asyncio.wait({task, asked}, return_when=asyncio.FIRST_COMPLETED)
            if self.asked.is_set():
                task.cancel()
                await asyncio.wait({task}, timeout=CANCEL_SECONDS)  # it may catch its cancellation
                raise Interrupted(f"stopped after step {self._progress.step}")
            return await task
        finally:
            asked.cancel()
