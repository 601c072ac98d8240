"""The inner loop of decoding over the layers of a `Decoder`, one token per row.

Shapes: n rows, S tokens in the cache, D hidden size, H and K query and key heads, E head size, V
vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...models.layers import Decoder, Layer, rms_norm
from ...models.transfers import to_device
from .cache import KVStore


class CacheAttention(Protocol):
    """Attention of the newest token of each row over its row of the cache."""

    def open(self, slots: Tensor) -> None:
        """Let each row see one token more, at *slots* [n K]."""
        ...

    def mix(self, layer: int, query: Tensor) -> Tensor:
        """Compute the attention of queries [n, H, E] in *layer*, [n, H E]."""
        ...


class MaskedAttention:
    """Reads as many tokens of each row as the longest has, and masks those beyond its end."""

    def __init__(self, decoder: Decoder, store: KVStore, lengths: Sequence[int]) -> None:
        self._scaling = decoder.scaling
        self._longest = max(lengths)
        self._groups = groups = len(lengths) * decoder.key_heads
        capacity, device = store.capacity, decoder.device
        # Rows have different lengths: the mask is minus infinity beyond the end of each. A step
        # opens one more place per row instead of building a mask.
        ends = to_device(lengths, device).repeat_interleave(decoder.key_heads)
        ahead = torch.arange(capacity, device=device)[None] >= ends[:, None]
        self._mask = torch.zeros(groups, 1, capacity, dtype=decoder.dtype, device=device)
        self._mask.masked_fill_(ahead[:, None], float("-inf"))
        # The cache is read as n * K rows of S places, one per sequence and key head, without a
        # copy.
        self._halves = [
            [half.view(-1, capacity, decoder.head_dim)[:groups] for half in data]
            for data in store.data
        ]

    def open(self, slots: Tensor) -> None:
        self._longest += 1  # on the host: a maximum over positions would wait for the device
        self._mask.view(-1).index_fill_(0, slots, 0)  # its rows lie as those of the cache

    def mix(self, layer: int, query: Tensor) -> Tensor:
        keys, values = (half[:, : self._longest] for half in self._halves[layer])
        mask = self._mask[:, :, : self._longest]
        # The queries that share a key head become the queries of one row: grouped attention is then
        # a plain product.
        grouped = query.reshape(self._groups, -1, query.shape[-1])
        if keys.dtype.itemsize == 2:
            # The fused kernel keeps scores and weights in float32 inside. It needs four dimensions.
            grouped, keys, values = grouped[:, None], keys[:, None], values[:, None]
            seen = mask[:, None].expand(-1, 1, grouped.shape[2], -1)
            mixed = functional.scaled_dot_product_attention(
                grouped, keys, values, attn_mask=seen, scale=self._scaling
            )[:, 0]
        else:
            # Up to some hundred tokens two products and a softmax are faster than the fused
            # kernel, made for many queries.
            scores = torch.baddbmm(mask, grouped, keys.transpose(1, 2), alpha=self._scaling)
            mixed = torch.bmm(scores.softmax(-1), values)
        return mixed.reshape(len(query), -1)


class LayerSteps:
    """Steps of a fixed set of rows.

    At small sizes the number of operations decides, not their size. So the layer is written out
    here in about 15 of them: norm and rotation act on queries and keys together, residuals are
    added inside the products (`addmm`), and what does not change between steps is computed once.

    Attributes:
        positions: of the next token of each row, [n].
        begins: of each row and key head, its place in the flat memory of a layer, [n, K].
    """

    def __init__(
        self,
        decoder: Decoder,
        store: KVStore,
        tables: tuple[Tensor, Tensor],
        lengths: Sequence[int],
        attention: CacheAttention,
    ) -> None:
        self._decoder, self._store, self._attention = decoder, store, attention
        device = decoder.device
        self.positions = to_device(lengths, device)
        groups = torch.arange(len(lengths) * decoder.key_heads, device=device)
        self.begins = groups.view(-1, decoder.key_heads) * store.capacity
        cos, sin = tables
        half = decoder.head_dim // 2
        # The rotation negates the first half of the turned vector. Negating the sines once saves
        # that in each step.
        self._cos, self._sin = cos, torch.cat((-sin[:, :half], sin[:, half:]), dim=-1)
        self._weights = [_StepWeights(decoder, layer) for layer in decoder.layers]

    def step(self, ids: Tensor) -> Tensor:
        decoder, positions = self._decoder, self.positions
        slots = (self.begins + positions[:, None]).flatten()
        self._attention.open(slots)
        cos, sin = self._cos[positions][:, None], self._sin[positions][:, None]
        hidden = decoder.embed(ids)
        for weights in self._weights:
            hidden = self._layer(weights, hidden, cos, sin, slots)
        positions.add_(1)
        return cast(Tensor, decoder.head(decoder.final_norm(hidden)))

    def _layer(
        self, w: _StepWeights, hidden: Tensor, cos: Tensor, sin: Tensor, slots: Tensor
    ) -> Tensor:
        decoder = self._decoder
        heads, key_heads, head_dim = decoder.heads, decoder.key_heads, decoder.head_dim
        flat = w.qkv(decoder.rms_norm(w.layer.before_attention, hidden)).view(
            len(hidden), heads + 2 * key_heads, head_dim
        )
        # Queries and keys are neighbours in the joined product, so norm and rotation handle both in
        # one operation each.
        both = flat[:, : heads + key_heads]
        if w.head_weight is not None:
            both = rms_norm(both, w.head_weight, w.epsilon)
        # x cos + roll(x) sin with signed sines is the half-split rotation: see
        # `models.layers.rotate`.
        rotated = torch.addcmul(both * cos, both.roll(head_dim // 2, -1), sin)
        data = self._store.data[w.layer.index]
        for half, new in enumerate((rotated[:, heads:], flat[:, heads + key_heads :])):
            data[half].view(-1, head_dim).index_copy_(0, slots, new.reshape(-1, head_dim))
        hidden = w.output(hidden, self._attention.mix(w.layer.index, rotated[:, :heads]))
        gate, up = w.gate_up(decoder.rms_norm(w.layer.before_feedforward, hidden)).chunk(2, dim=-1)
        return w.down(hidden, functional.silu(gate).mul_(up))


class _StepWeights:
    """One layer's weights as its step reads them, looked up once for many steps."""

    def __init__(self, decoder: Decoder, layer: Layer) -> None:
        self.layer = layer
        self.qkv, self.gate_up = layer.qkv.without_gradient(), layer.gate_up.without_gradient()
        self.output = _residual(layer.attention.o_proj)
        self.down = _residual(layer.feedforward.down_proj)
        self.head_weight, self.epsilon = decoder.head_norm(layer)


def _residual(part: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    """Return hidden + part(inner), in one operation where *part* is a linear map without bias or
    adapter.
    """
    if type(part) is not nn.Linear or part.bias is not None:
        return lambda hidden, inner: hidden + cast(Tensor, part(inner))
    weight = part.weight.detach().t()
    return lambda hidden, inner: torch.addmm(hidden, inner, weight)
