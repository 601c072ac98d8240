"""Runs the engine's coroutines without gradients."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import Any

import torch


class WithoutGradients:
    """Awaits a coroutine in inference mode, and leaves the mode while the coroutine waits.

    The mode belongs to the thread: other tasks that run meanwhile, such as a learner's update,
    would be in it, too.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, Any, None]:
        error: BaseException | None = None
        while True:
            try:
                with torch.inference_mode():
                    waits = (
                        self._coroutine.send(None)
                        if error is None
                        else self._coroutine.throw(error)
                    )
            except StopIteration:
                return
            error = None
            try:
                yield waits
            except BaseException as raised:  # noqa: BLE001 - cancellation included: the coroutine decides
                error = raised
