"""Steps of decoding of static shapes: each row reads its own tokens alone, and a GPU replays the
step as a graph.

Shapes: n rows, H query heads, K key heads, S tokens of room in a row, E head size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..transfers import to_device
from .replay import GraphReplay
from .runs import attend_cache
from .shape import AttentionShape


class FlashAttention:
    """Attention of the newest token of each row over its row of *store*: what the steps of the
    embedded engine ask of a `CacheAttention`.

    Args:
        reach: tokens of the longest row at most.
    """

    def __init__(self, shape: AttentionShape, store: Any, rows: int, reach: int) -> None:
        self._store, self._scaling, self._reach = store, shape.head_dim**-0.5, reach
        self._ends = torch.arange(rows + 1, dtype=torch.int32, device=shape.device)
        self._begins, self._used = torch.zeros_like(self._ends), torch.zeros_like(self._ends[1:])

    def begin(self, rows: Tensor, lengths: Tensor) -> None:
        """Read *rows* [n] of the cache, which hold *lengths* [n] tokens."""
        _, _, key_heads, capacity, _ = self._store.data[0].shape
        self._begins[:-1] = rows * (key_heads * capacity)
        self._used.copy_(lengths)

    def open(self, slots: Tensor) -> None:
        self._used.add_(1)

    def mix(self, layer: int, query: Tensor) -> Tensor:
        keys, values = self._store.data[layer]
        ends = (self._ends, self._begins, self._used, self._reach)
        return attend_cache(query, keys, values, *ends, self._scaling).flatten(1)


class ReplayedSteps:
    """Steps over tensors that stay in place, so that a GPU may replay them as a graph.

    Args:
        rows: most rows of a step. With fewer, the first one is computed again in place of those
            that are missing.
        reach: see `FlashAttention`.
        make: see `FlashKernels.steps`.
        graph_pool, room: see `GraphReplay`.
    """

    def __init__(
        self,
        shape: AttentionShape,
        store: Any,
        rows: int,
        reach: int,
        make: Any,
        graph_pool: Any,
        room: Callable[[Tensor], Tensor],
    ) -> None:
        self._attention = FlashAttention(shape, store, rows, reach)
        steps = make([0] * rows, self._attention)
        ids = torch.zeros(rows, dtype=torch.long, device=shape.device)
        self._steps, self._ids = steps, ids
        self._sources = torch.zeros_like(self._ids)
        self._begins = self._steps.begins.clone()
        # no reference to this object: a graph that is dropped frees its memory at once
        self._replay = GraphReplay(lambda: steps.step(ids), graph_pool, room)

    def begin(self, lengths: Sequence[int]) -> None:
        """Decode rows ``0 .. n-1``, which hold *lengths* tokens."""
        rows = list(range(len(lengths)))
        rows += [0] * (len(self._ids) - len(rows))
        self._sources.copy_(to_device(rows, self._ids.device))
        self._steps.begins.copy_(self._begins[self._sources])
        self._steps.positions.copy_(to_device([lengths[i] for i in rows], self._ids.device))
        self._attention.begin(self._sources, self._steps.positions)

    def step(self, ids: Tensor) -> Tensor:
        torch.index_select(ids, 0, self._sources, out=self._ids)
        return self._replay()[: len(ids)]


class Results:
    """One tensor for the results of all graphs of up to *rows* rows: each is read before another
    graph begins.
    """

    def __init__(self, rows: int) -> None:
        self._rows, self._memory = rows, torch.empty(0)

    def room(self, like: Tensor) -> Tensor:
        """Return the memory for a result as *like*, [n, V]."""
        if not len(self._memory):
            self._memory = like.new_empty(self._rows, *like.shape[1:])
        return self._memory[: len(like)]


class StaticSteps:
    """Steps by number of rows and reach; made anew where the cache moves.

    How the kernel divides a row among processors depends on the reach. It follows from the longest
    row alone, so log-probs repeat to the last bit whatever memory the cache has, and wherever a
    burst of steps began.
    """

    def __init__(
        self,
        shape: AttentionShape,
        store: Any,
        make: Callable[[Sequence[int], Any], Any],
        *,
        graphs: bool,
    ) -> None:
        self._shape, self._store, self._make = shape, store, make
        # one pool for all graphs: each ends before another begins
        self._graph_pool = torch.cuda.graph_pool_handle() if graphs else None
        self._made: dict[tuple[int, int], ReplayedSteps] = {}
        self._results = Results(0)
        self._lengths: Sequence[int] = ()
        self._longest = self._done = self._reach = 0
        store.moved = self.clear

    def begin(self, lengths: Sequence[int]) -> StaticSteps:
        """Begin steps on rows ``0 .. n-1``, which hold *lengths* tokens."""
        self._lengths, self._longest = lengths, max(lengths)
        self._done = self._reach = 0
        return self

    def step(self, ids: Tensor) -> Tensor:
        """Step all rows by *ids* [n]; returns the logits [n, V], overwritten by the next step."""
        reach = reach_of_graph(self._longest + self._done + 1)
        steps = self._steps(rows_of_graph(len(self._lengths)), reach)
        if reach != self._reach:
            steps.begin([length + self._done for length in self._lengths])
            self._reach = reach
        self._done += 1
        return steps.step(ids)

    def _steps(self, rows: int, reach: int) -> ReplayedSteps:
        if not self._made:
            self._results = Results(rows_of_graph(self._store.rows))
        if (rows, reach) not in self._made:
            self._made[rows, reach] = ReplayedSteps(
                self._shape,
                self._store,
                rows,
                reach,
                self._make,
                self._graph_pool,
                self._results.room,
            )
        return self._made[rows, reach]

    def clear(self) -> None:
        """Drop all steps and their graphs."""
        self._made.clear()
        self._results = Results(0)


def reach_of_graph(tokens: int) -> int:
    """Return the reach of a graph whose longest row has *tokens*: a power of two from 256."""
    return max(256, 1 << (tokens - 1).bit_length())


def rows_of_graph(rows: int) -> int:
    """Return how many rows a graph for *rows* has: a power of two, or a multiple of 16."""
    return 1 << (rows - 1).bit_length() if rows <= 16 else -(-rows // 16) * 16
