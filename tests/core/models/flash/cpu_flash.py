"""The flash kernel of a CPU behind the interface of that of a GPU: one call of it for each run.

It returns the same log-sum-exp and takes it back in the backward pass, also in float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from quintain.engine import decoding
from quintain.models import forward
from quintain.models.flash import FLASH, caches, checks, runs
from quintain.models.flash.runs import FlashCall

ATEN = torch.ops.aten


def forward_kernel(
    query: Tensor, key: Tensor, value: Tensor, call: FlashCall, scaling: float
) -> tuple[Tensor, Tensor]:
    """As `runs.forward_kernel`."""
    mixed, total = torch.empty_like(query), []
    for q, k in spans(call, query, key):
        part, sums = ATEN._scaled_dot_product_flash_attention_for_cpu(
            *(batch(x) for x in (query[q], key[k], value[k])), 0.0, call.causal, scale=scaling
        )
        mixed[q] = part[0].transpose(0, 1)
        total.append(sums[0])
    return mixed, torch.cat(total, dim=1)


def backward_kernel(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mixed: Tensor,
    total: Tensor,
    call: FlashCall,
    scaling: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """As `runs.backward_kernel`."""
    assert grad.stride(-1) == 1, "as the kernel of a GPU demands"
    grads = tuple(torch.empty_like(x) for x in (query, key, value))
    for q, k in spans(call, query, key):
        parts = ATEN._scaled_dot_product_flash_attention_for_cpu_backward(
            *(batch(x) for x in (grad[q], query[q], key[k], value[k], mixed[q])),
            batch(total[:, q].t().unsqueeze(-1)).squeeze(-1),
            0.0,
            call.causal,
            scale=scaling,
        )
        for whole, part, where in zip(grads, parts, (q, k, k), strict=True):
            whole[where] = part[0].transpose(0, 1)
    return grads[0], grads[1], grads[2]


def spans(call: FlashCall, query: Tensor, key: Tensor) -> Iterator[tuple[slice, slice]]:
    """Yield the places of each run of queries and of its keys, after what the kernel demands of
    them.
    """
    ends = [call.query_ends.tolist(), call.key_ends.tolist()]
    for tensor, found, longest in zip(
        (query, key), ends, (call.longest_query, call.longest_key), strict=True
    ):
        lengths = [b - a for a, b in pairwise(found)]
        assert found[-1] == len(tensor)
        assert min(lengths) > 0
        assert max(lengths) == longest
    assert not call.causal or ends[0] == ends[1], "causality of GPUs and CPUs differs otherwise"
    for (a, b), (c, d) in zip(pairwise(ends[0]), pairwise(ends[1]), strict=True):
        yield slice(a, b), slice(c, d)


def batch(x: Tensor) -> Tensor:
    """[T, H, E] to [1, H, T, E], laid out as the CPU's kernel likes it."""
    return x.transpose(0, 1).unsqueeze(0).contiguous()


def use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the CPU's kernel take part wherever that of a GPU would."""
    monkeypatch.setattr(runs, "forward_kernel", forward_kernel)
    monkeypatch.setattr(runs, "backward_kernel", backward_kernel)
    for module in (caches, checks):
        monkeypatch.setattr(module, "attend_cache", attend_cache)


def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let learner and engine use it for all types."""
    use(monkeypatch)
    for name in ("flash_works", "flash_reads_caches"):
        monkeypatch.setattr(checks, name, lambda shape: True)
    for module in (forward, decoding):
        monkeypatch.setattr(module, "kernels_of", lambda device: FLASH)


def attend_cache(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    ends: Tensor,
    begins: Tensor,
    used: Tensor,
    reach: int,
    scaling: float,
) -> Tensor:
    """As `runs.attend_cache`, by plain products, as one operation."""
    mixed: Tensor = _attend_cache(query, keys, values, ends, begins, used, reach, scaling)
    return mixed


@torch.library.custom_op("quintain_tests::attend_cache", mutates_args=())
def _attend_cache(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    ends: Tensor,
    begins: Tensor,
    used: Tensor,
    reach: int,
    scaling: float,
) -> Tensor:
    _, heads, capacity, _ = keys.shape
    assert ends.numpy().tolist() == list(range(len(query) + 1))
    assert ends.dtype == begins.dtype == used.dtype == torch.int32
    mixed = torch.empty_like(query)
    for i, (begin, length) in enumerate(zip(begins[:-1].numpy(), used.numpy(), strict=True)):
        row, rest = divmod(int(begin), heads * capacity)
        assert rest == 0
        assert 0 < length <= min(capacity, reach)
        group = query.shape[1] // heads
        key, value = (x[row, :, :length].repeat_interleave(group, 0) for x in (keys, values))
        scores = (key @ query[i].unsqueeze(-1)).squeeze(-1) * scaling
        mixed[i] = (scores.softmax(-1).unsqueeze(1) @ value).squeeze(1)
    return mixed
