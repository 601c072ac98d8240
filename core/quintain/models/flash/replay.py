"""A CUDA graph: many small kernels, started by the host at once."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

WARM_UPS = 2
"""Plain calls before a graph is recorded: kernels are loaded and chosen in them."""

_log = logging.getLogger(__name__)


class GraphReplay:
    """Calls of a function that reads and writes tensors which stay in place.

    Its result is overwritten by the next call.

    Args:
        function: starts the same kernels in each call, and never waits for the device.
        pool: memory of graphs. The function is recorded in the third call, and the record replayed
            from then on. ``None`` calls *function* each time.
        room: returns the memory of the result of a record, given one like it.
    """

    def __init__(
        self, function: Callable[[], Tensor], pool: Any, room: Callable[[Tensor], Tensor]
    ) -> None:
        self._function, self._pool, self._room, self._calls = function, pool, room, 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._result = torch.empty(0)

    def __call__(self) -> Tensor:
        if self._graph is not None:
            self._graph.replay()
            return self._result
        if self._pool is None or self._calls < WARM_UPS:
            self._calls += 1
            self._result = self._function()
            return self._result
        result = self._room(self._result)  # outside the pool, where it would be that of this graph
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.current_stream()
        # The learner may compute in another thread, whose allocations only this mode permits.
        mode = "thread_local"
        try:
            # records, and computes nothing
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode=mode):
                result.copy_(self._function())
        except RuntimeError as error:
            # A record that cannot end leaves its own stream current, which waits for no other.
            torch.cuda.set_stream(stream)
            _log.warning("steps are not replayed as a CUDA graph: %s", error)
            self._pool = None
            return self._function()
        self._graph, self._result = graph, result
        graph.replay()
        return self._result
