"""The key-value cache: one block of memory per layer, one row per sequence, each with its own
length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

GROWTH = 256
"""Rows grow by this many tokens, so that short sequences need no memory for the whole context."""


class KVStore:
    """Keys and values of all layers; rows and capacity grow as needed.

    Layers grow one after the other, so that old and new memory of one alone exist at once. Memory
    without tokens is zero, not uninitialised: a NaN would spoil the mixed values even where it is
    masked.

    Attributes:
        data: of each layer [2, rows, K, capacity, E].
        moved: called after the tensors of *data* have been replaced.
        least_rows: to make room for at once, where a move costs much; capacity then grows by half.
    """

    def __init__(
        self,
        layers: int,
        key_heads: int,
        head_dim: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
        context: int,
    ) -> None:
        self.layers = layers
        self.context = context
        self.dtype = dtype
        self._shape = (key_heads, head_dim)
        self._options: Any = {"dtype": dtype, "device": device}
        self.least_rows = 0
        self.moved: Callable[[], None] = lambda: None
        self.release()

    @property
    def rows(self) -> int:
        return self.data[0].shape[1]

    @property
    def capacity(self) -> int:
        """Tokens that fit in a row now."""
        return self.data[0].shape[3]

    @property
    def nbytes(self) -> int:
        """Bytes of the memory."""
        return sum(data.nbytes for data in self.data)

    def release(self) -> None:
        """Give the memory and its content back."""
        self.data = [self._empty(0, 0) for _ in range(self.layers)]
        self.moved()

    def reserve(self, rows: int, length: int) -> None:
        """Make room for *rows* rows of *length* tokens; the content stays."""
        old_rows = self.rows
        old_capacity = self.capacity
        if rows <= old_rows and length <= old_capacity:
            return
        if self.least_rows and length > old_capacity:
            length = max(length, old_capacity * 3 // 2)
        grown = min(-(-length // GROWTH) * GROWTH, max(self.context, length))
        rows = max(rows, old_rows, self.least_rows)
        for layer in range(self.layers):
            bigger = self._empty(rows, max(grown, old_capacity))
            bigger[:, :old_rows, :, :old_capacity] = self.data[layer]
            self.data[layer] = bigger
        self.moved()

    def copy(self, moves: Sequence[tuple[int, int, int]]) -> None:
        """Copy rows: source, target, and how many tokens at least. All are read before any write."""
        if not moves:
            return
        sources, targets, lengths = zip(*moves, strict=True)
        length = max(lengths)
        for data in self.data:
            data[:, list(targets), :, :length] = data[:, list(sources), :, :length]

    def write(
        self, layer: int, rows: Tensor, positions: Tensor, keys: Tensor, values: Tensor
    ) -> None:
        """Store *keys* and *values* [n, T, K, E] of *rows* [n] at *positions* [n, T]."""
        index = (rows[:, None], slice(None), positions)
        self.data[layer][0][index] = keys
        self.data[layer][1][index] = values

    def read(self, layer: int, rows: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Return the keys and values of *rows*, each [n, length, K, E]."""
        both = self.data[layer][:, rows, :, :length]
        return both[0].transpose(1, 2), both[1].transpose(1, 2)

    def _empty(self, rows: int, capacity: int) -> Tensor:
        heads, head_dim = self._shape
        return torch.zeros(2, rows, heads, capacity, head_dim, **self._options)


class RoutedStore(KVStore):
    """A `KVStore` of a mixture, which also keeps the experts of each token of a row. They move with the
    keys and values that they computed, so that a copied prefix has those of its source.

    Args:
        width: experts of a token in all layers.

    Attributes:
        experts: [rows, capacity, width] in int16.
    """

    def __init__(self, *shape: int, width: int, **options: Any) -> None:
        self._width = width
        super().__init__(*shape, **options)

    def release(self) -> None:
        super().release()
        self.experts = self._no_experts()

    def reserve(self, rows: int, length: int) -> None:
        super().reserve(rows, length)
        if self.experts.shape[:2] != (self.rows, self.capacity):
            bigger = self._no_experts(self.rows, self.capacity)
            old_rows, old_capacity, _ = self.experts.shape
            bigger[:old_rows, :old_capacity] = self.experts
            self.experts = bigger

    def copy(self, moves: Sequence[tuple[int, int, int]]) -> None:
        super().copy(moves)
        if moves:
            sources, targets, _ = zip(*moves, strict=True)
            self.experts[list(targets)] = self.experts[list(sources)]

    def _no_experts(self, rows: int = 0, capacity: int = 0) -> Tensor:
        device = self._options["device"]
        return torch.zeros(rows, capacity, self._width, dtype=torch.int16, device=device)


class RowCache(Cache):
    """A `KVStore` as a cache of transformers, for one forward pass: each row is written at its own
    positions.

    Args:
        rows: [n], rows of the store, one per sequence of the batch.
        positions: [n, T], where the tokens are written.
        length: tokens of each row that are read; the caller's mask hides those beyond its own.
    """

    def __init__(self, store: KVStore, rows: Tensor, positions: Tensor, length: int) -> None:
        super().__init__(
            layers=[_RowLayer(store, i, rows, positions, length) for i in range(store.layers)]
        )


class _RowLayer(CacheLayerMixin):
    is_compileable = False
    is_sliding = False

    def __init__(
        self, store: KVStore, layer: int, rows: Tensor, positions: Tensor, length: int
    ) -> None:
        super().__init__()
        self.is_initialized = True
        self._store = store
        self._layer = layer
        self._rows = rows
        self._positions = positions
        self._length = length

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Do nothing: the store exists."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        keys = key_states.transpose(1, 2)
        values = value_states.transpose(1, 2)
        self._store.write(self._layer, self._rows, self._positions, keys, values)
        keys, values = self._store.read(self._layer, self._rows, self._length)
        return keys.transpose(1, 2), values.transpose(1, 2)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._length, 0

    def get_seq_length(self) -> int:
        return self._length - self._positions.shape[1]

    def get_max_length(self) -> int:
        return self._store.context
