"""Whether the kernels are there on this device, and right: small cases against plain attention,
once for each shape.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional

from ..transfers import to_device
from .runs import TokenRun, attend_cache, calls_of, flash_attend
from .shape import AttentionShape

log = logging.getLogger(__name__)

WORST = 0.02
"""Of the norm of a difference over the norm of the result, in half precision."""


@lru_cache
def flash_works(shape: AttentionShape) -> bool:
    """Return whether runs attend rightly: a small tree is compared with plain attention, gradients
    too.

    The kernel is in every build of torch with CUDA, for half precision on GPUs from 2020 on
    (compute capability 8.0).
    """
    device, dtype, head_dim = shape.device, shape.dtype, shape.head_dim
    heads, key_heads = shape.heads, shape.key_heads
    if dtype.itemsize != 2:
        return False
    sees = torch.zeros(55, 55, dtype=torch.bool)
    for first, last in ((0, 5), (5, 8), (8, 48), (48, 55)):
        sees[first:last, first:last] = True
    sees[5:48, :5] = True
    calls = calls_of([TokenRun(5, -1), TokenRun(3, 0), TokenRun(40, 0), TokenRun(7, -1)], device)
    generator = torch.Generator().manual_seed(0)
    inputs = [
        torch.randn(55, n, head_dim, generator=generator).to(dtype)
        for n in (heads, key_heads, key_heads)
    ]

    def plain(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        key, value = (x.repeat_interleave(heads // key_heads, 1) for x in (key, value))
        query, key, value = (x.transpose(0, 1).unsqueeze(0) for x in (query, key, value))
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=sees.tril())
        return mixed[0].transpose(0, 1)

    def ours(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return flash_attend(query, key, value, calls, head_dim**-0.5)

    try:
        found = _with_gradients(ours, [x.to(device) for x in inputs])
    except (RuntimeError, AttributeError, TypeError, ValueError) as error:
        log.warning("flash attention is not used: %s: %s", type(error).__name__, error)
        return False
    wanted = _with_gradients(plain, [x.float() for x in inputs])
    off = max(float((a.cpu() - b).norm() / b.norm()) for a, b in zip(found, wanted, strict=True))
    if off > WORST:
        log.warning("flash attention is not used: its results are off by %.2g", off)
    return off <= WORST


@lru_cache
def flash_reads_caches(shape: AttentionShape) -> bool:
    """Return whether single tokens read a cache rightly. False where `flash_works` is."""
    if not flash_works(shape):
        return False
    device, dtype, head_dim = shape.device, shape.dtype, shape.head_dim
    heads, key_heads = shape.heads, shape.key_heads
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(3, heads, head_dim, generator=generator).to(dtype)
    cache = torch.randn(2, 4, key_heads, 256, head_dim, generator=generator).to(dtype)
    rows, lengths = [2, 0, 2], [200, 1, 256]
    begins = [row * key_heads * 256 for row in (*rows, 0)]
    ends, starts, used = (to_device(x, device, torch.int32) for x in (range(4), begins, lengths))
    try:
        keys, values = cache.to(device)
        scaling = head_dim**-0.5
        places = (ends, starts, used, max(lengths))
        found = attend_cache(query.to(device), keys, values, *places, scaling).cpu()
    except (RuntimeError, AttributeError, TypeError, ValueError) as error:
        log.warning("flash decoding is not used: %s: %s", type(error).__name__, error)
        return False
    off = 0.0
    for mixed, one, row, length in zip(found, query.float(), rows, lengths, strict=True):
        keys, values = cache[:, row, :, :length].float().repeat_interleave(heads // key_heads, 1)
        scores = (keys @ one.unsqueeze(-1)).squeeze(-1) * scaling
        wanted = (scores.softmax(-1).unsqueeze(1) @ values).squeeze(1)
        off = max(off, float((mixed - wanted).norm() / wanted.norm()))
    if off > WORST:
        log.warning("flash decoding is not used: its results are off by %.2g", off)
    return off <= WORST


def _with_gradients(
    attention: Callable[[Tensor, Tensor, Tensor], Tensor], inputs: Sequence[Tensor]
) -> list[Tensor]:
    """Return the result of *attention*, and the gradients of its sum of squares."""
    with torch.inference_mode(False), torch.enable_grad():
        leaves = [x.clone().requires_grad_() for x in inputs]
        mixed = attention(*leaves)
        return [mixed.detach(), *torch.autograd.grad(mixed.float().square().sum(), leaves)]
