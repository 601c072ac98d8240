"""Samples of several adapters, decoded together: a step is one pass over the base for the newest
tokens of all, and the products with factors and attention are done for each adapter on its own.

A product of few rows takes the time in which the base's weights are read, so that eight rows cost
little more than one. The bits of a sample do not depend on the others: a row of a product has the
same bits in any product whose number of rows is a multiple of some number, which `rows_in_step` finds
on the machine, and all else has the shape that it has alone.

Shapes: n rows, D hidden size, H query heads, E head size, V vocabulary.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from quintain import Sampled
from quintain.engine import (
    LayerForward,
    MaskedAttention,
    Request,
    Sampler,
    Steps,
    decode_burst,
)
from quintain.models import Decoder, cache_shape

from .adapters import Adapter, Bank

__all__ = ["Together", "rows_in_step"]

STEPS = (4, 8, 16)
"""Numbers that are tried. Products of fewer than 4 rows are computed by other kernels, with other
bits, and several threads share rows so that some may get as few.
"""
TRIED_ROWS = 64
PREFILL_TOKENS = 4096
"""Tokens of a prompt in one pass."""
CACHE_BYTES = 2**32
"""Memory for keys and values, beyond which fewer rows are decoded at once."""


@dataclass(eq=False)
class _Tenant:
    """A request for samples: its rows, of which those without a request have ended.

    Attributes:
        first: logits after the prompt, [1, V].
        waiting: samples that have not begun, with their places in the answer.
        longest: tokens that a row may get.
    """

    name: str
    adapter: Adapter | None
    first: Tensor
    waiting: deque[tuple[int, Request]]
    longest: int
    rows: list[Request | None] = field(default_factory=list)
    places: dict[Request, int] = field(default_factory=dict)
    ended: dict[int, Sampled] = field(default_factory=dict)
    failure: str = ""

    @property
    def live(self) -> int:
        return sum(row is not None for row in self.rows)


class _Blocks:
    """Attention of the rows of each request on their own: the number of keys that a row reads depends
    on the longest row beside it, and its last bits depend on that number.
    """

    def __init__(
        self, decoder: Decoder, store: Any, lengths: Sequence[int], blocks: Sequence[slice]
    ) -> None:
        self._blocks, self._heads, self._capacity = blocks, decoder.key_heads, store.capacity
        self._parts = []
        for rows in blocks:
            own: Any = SimpleNamespace(
                capacity=store.capacity, data=[data[:, rows] for data in store.data]
            )
            self._parts.append(MaskedAttention(decoder, own, lengths[rows]))

    def open(self, slots: Tensor) -> None:
        by_row = slots.view(-1, self._heads)
        for rows, part in zip(self._blocks, self._parts, strict=True):
            part.open(by_row[rows].flatten() - rows.start * self._heads * self._capacity)

    def mix(self, layer: int, query: Tensor) -> Tensor:
        mixed = [
            part.mix(layer, query[rows])
            for rows, part in zip(self._blocks, self._parts, strict=True)
        ]
        return torch.cat(mixed)


class _Forward(LayerForward):
    """Steps of rows in *blocks*, which hold *lengths* tokens, those that have ended as many as a
    neighbour of their own request.
    """

    blocks: Sequence[slice] = ()
    lengths: Sequence[int] = ()

    def steps(self, lengths: Sequence[int], count: int) -> Steps:
        return super().steps(self.lengths, count)

    def attention(self, lengths: Sequence[int]) -> _Blocks:
        return _Blocks(self.decoder, self.store, lengths, self.blocks)


class Together:
    """Decodes samples of several requests at once.

    Args:
        rows: of all requests at once, at most.
        step: number of which the rows of a product are a multiple.
        words: ids of the tokenizer.
    """

    def __init__(
        self, module: Any, bank: Bank, *, rows: int, step: int, context: int, words: int
    ) -> None:
        decoder = Decoder.of(module)
        assert decoder is not None, "an engine that decodes by layers has found them"
        self._forward = _Forward(decoder, context)
        cells = math.prod(cache_shape(module.config.get_text_config()))
        self._bytes = 2 * cells * decoder.dtype.itemsize  # keys and values of a token
        self._bank, self._most, self._step, self._words = bank, rows, step, words
        self._tenants: list[_Tenant] = []

    @property
    def busy(self) -> bool:
        return bool(self._tenants)

    def fits(self, requests: Sequence[Request]) -> bool:
        """Return whether *requests* may begin beside those that run."""
        rows = sum(len(tenant.rows) for tenant in self._tenants)
        longest = max([_longest(requests), *(tenant.longest for tenant in self._tenants)])
        # The cache gives no row back while some are in use, and all have one length.
        taken = max(rows + self._rows_of(requests), self._forward.store.rows)
        return not rows or taken <= self._rows_for(longest)

    def begin(self, name: str, adapter: Adapter | None, requests: Sequence[Request]) -> None:
        """Begin the samples *requests*, which have one prompt; their answer has *name*."""
        if not self._tenants:
            self._forward.store.release()
        begin = sum(len(tenant.rows) for tenant in self._tenants)
        count = self._rows_of(requests)
        ids = requests[0].ids
        self._bank.use(adapter)
        with torch.inference_mode():
            for start in range(0, len(ids), PREFILL_TOKENS):
                piece = ids[start : start + PREFILL_TOKENS]
                logits = self._forward.extend([begin], [piece], [start])
            self._forward.store.reserve(begin + count, len(ids))
            self._forward.store.copy([(begin, begin + k, len(ids)) for k in range(1, count)])
            tenant = _Tenant(name, adapter, logits, deque(enumerate(requests)), _longest(requests))
            tenant.rows = [None] * count
            for row in range(count):
                self._seat(tenant, row)
        self._tenants.append(tenant)

    def step(self) -> list[tuple[str, list[Sampled] | str]]:
        """Decode until a sample may have ended; returns of the requests that have ended the names
        and samples, or why one failed.
        """
        with torch.inference_mode():
            self._close_gaps()
            if any(tenant.live for tenant in self._tenants):
                self._burst()
        over = [t for t in self._tenants if t.failure or not (t.live or t.waiting)]
        return [(t.name, t.failure or [t.ended[i] for i in sorted(t.ended)]) for t in over]

    def drop(self, names: Iterable[str]) -> None:
        """Forget the requests *names*."""
        gone = set(names)
        for tenant in self._tenants:
            if tenant.name in gone:
                tenant.rows = [None] * len(tenant.rows)
                tenant.waiting.clear()
        with torch.inference_mode():
            self._close_gaps()
        self._tenants = [tenant for tenant in self._tenants if tenant.name not in gone]

    def _rows_for(self, longest: int) -> int:
        # Rows of nobody, which fill products up, are in the cache as well.
        room = CACHE_BYTES // (longest * self._bytes) // self._step * self._step
        return max(1, min(self._most, room))

    def _rows_of(self, requests: Sequence[Request]) -> int:
        """Return how many of *requests* are decoded at once: what others do has no part in it."""
        return min(len(requests), self._rows_for(_longest(requests)))

    def _burst(self) -> None:
        requests: list[Request | None] = []
        lengths: list[int] = []
        blocks: list[tuple[slice, Adapter | None]] = []
        for tenant in self._tenants:
            rows = slice(len(requests), len(requests) + len(tenant.rows))
            if tenant.rows:
                blocks.append((rows, tenant.adapter))
            requests += tenant.rows
            held = [len(row.cached) if row else 0 for row in tenant.rows]
            lengths += [length or max(held) for length in held]
        if missing := -len(requests) % self._step:
            blocks.append((slice(len(requests), len(requests) + missing), None))
            requests += [None] * missing
            lengths += [1] * missing
        self._forward.lengths = lengths
        self._forward.blocks = [rows for rows, _ in blocks]
        self._bank.use_by_rows(blocks)
        decoded = decode_burst(self._forward, requests, self._words, Sampler)
        for tenant, (rows, _) in zip([t for t in self._tenants if t.rows], blocks, strict=False):
            for row, tokens, logps in zip(
                range(len(tenant.rows)), decoded[0][rows], decoded[1][rows], strict=True
            ):
                request = tenant.rows[row]
                if request is not None:
                    request.append(tokens, logps, 0)
                    self._settle(tenant, row)
                    self._seat(tenant, row)

    def _seat(self, tenant: _Tenant, row: int) -> None:
        """Let the next sample of *tenant* begin in its *row*, which holds the prompt."""
        while tenant.waiting and tenant.rows[row] is None:
            place, request = tenant.waiting.popleft()
            uniform = torch.tensor([request.random.random()], dtype=torch.float64)
            sampler = Sampler([request.sampling], tenant.first.device, self._words)
            ids, logps = sampler.pick(tenant.first, uniform)
            request.append(ids.tolist(), logps.tolist(), 0)
            tenant.rows[row], tenant.places[request] = request, place
            self._settle(tenant, row)

    def _settle(self, tenant: _Tenant, row: int) -> None:
        request = tenant.rows[row]
        assert request is not None
        if math.isnan(request.logps[-1]):
            tenant.failure = "the model gave NaN logits; its weights have diverged"
        finish = request.finish()
        if finish is not None:
            tenant.ended[tenant.places.pop(request)] = request.sampled(*finish)
            tenant.rows[row] = None

    def _close_gaps(self) -> None:
        """Move rows together where half of those of a request have ended, and where one is over.

        What a request alone decides how many rows its products have, so it alone decides their bits.
        """
        moves: list[tuple[int, int, int]] = []
        source = target = 0
        for tenant in self._tenants:
            kept = [row for row in range(len(tenant.rows)) if tenant.rows[row] is not None]
            if len(kept) > len(tenant.rows) // 2:
                kept = [*range(len(tenant.rows))]
            for row in kept:
                request = tenant.rows[row]
                if source + row != target and request is not None:
                    moves.append((source + row, target, len(request.cached)))
                target += 1
            source += len(tenant.rows)
            tenant.rows = [tenant.rows[row] for row in kept]
        self._forward.store.copy(moves)


def _longest(requests: Sequence[Request]) -> int:
    return max(len(request.ids) + request.limit for request in requests)


@torch.inference_mode()
def rows_in_step(module: Any, bank: Bank, most: int) -> int:
    """Return the number such that a row has the same bits beside any others, as long as the rows of a
    product are a multiple of it, up to *most* rows; 0 where none is found.

    That is tried with shapes of *module* and no proof: libraries choose their kernels.
    """
    draw = torch.Generator().manual_seed(1)
    config = module.config.get_text_config()

    def same(width: int, compute: Callable[[Tensor], Tensor], step: int) -> bool:
        sizes = {*range(step, TRIED_ROWS + 1, step), -(-most // step) * step}
        given = torch.randn(max(sizes) + 1, width, generator=draw).to(bank.head.weight.dtype)
        row, others = given[:1], given[1:]
        found = []
        for size in sizes:
            for place in {0, size - 1}:
                rows = torch.cat([others[:place], row, others[place:]])
                found.append(compute(rows[:size])[place])
        return all(torch.equal(one, found[0]) for one in found)

    def gated(x: Tensor) -> Tensor:
        gate, up = x.chunk(2, dim=-1)
        return functional.silu(gate).mul_(up)

    def normed(x: Tensor) -> Tensor:
        return functional.rms_norm(x, x.shape[-1:], None, 1e-5)

    checks: list[tuple[int, Callable[[Tensor], Tensor]]] = [
        (config.hidden_size, normed),
        (2 * config.intermediate_size, gated),
        (config.vocab_size, partial(torch.softmax, dim=-1)),
    ]

    def one_by_one(x: Tensor, weight: Tensor) -> Tensor:
        """Return the products one by one, as those of factors, which begin anywhere in memory."""
        return torch.cat([functional.linear(x[i : i + 1], weight) for i in range(len(x))])

    for w in bank.weights():
        checks += [
            (w.shape[1], partial(functional.linear, weight=w)),
            (w.shape[1], partial(one_by_one, weight=w[:8])),
        ]
    fitting = (step for step in STEPS if all(same(*check, step) for check in checks))
    return next(fitting, 0)
