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
    """

    def __init__(self, shape: AttentionShape, store: Any, rows: int) -> None:
        self._store, self._scaling = store, shape.head_dim**-0.5
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
        ends = (self._ends, self._begins, self._used)
        return attend_cache(query, keys, values, *ends, self._scaling).flatten(1)


class ReplayedSteps:
    """Steps over tensors that stay in place, so that a GPU may replay them as a graph.

    Args:
        rows: most rows of a step. With fewer, the first one is computed again in place of those
            that are missing.
        make: see `FlashKernels.steps`.
        graph_pool: see `GraphReplay`.
    """

    def __init__(
        self, shape: AttentionShape, store: Any, rows: int, make: Any, graph_pool: Any
    ) -> None:
        self._attention = FlashAttention(shape, store, rows)
        steps = make([0] * rows, self._attention)
        ids = torch.zeros(rows, dtype=torch.long, device=shape.device)
        self._steps, self._ids = steps, ids
        self._sources = torch.zeros_like(self._ids)
        self._begins = self._steps.begins.clone()
        # no reference to this object: a graph that is dropped frees its memory at once
        self._replay = GraphReplay(lambda: steps.step(ids), graph_pool)

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


class StaticSteps:
    """Steps by number of rows; made anew where the cache moves."""

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
        self._by_rows: dict[int, ReplayedSteps] = {}
        store.moved = self.clear

    def begin(self, lengths: Sequence[int]) -> ReplayedSteps:
        """Begin steps on rows ``0 .. n-1``, which hold *lengths* tokens."""
        rows = rows_of_graph(len(lengths))
        if rows not in self._by_rows:
            self._by_rows[rows] = ReplayedSteps(
                self._shape, self._store, rows, self._make, self._graph_pool
            )
        self._by_rows[rows].begin(lengths)
        return self._by_rows[rows]

    def clear(self) -> None:
        """Drop all steps and their graphs."""
        self._by_rows.clear()


def rows_of_graph(rows: int) -> int:
    """Return how many rows a graph for *rows* has: a power of two, or a multiple of 16."""
    return 1 << (rows - 1).bit_length() if rows <= 16 else -(-rows // 16) * 16
