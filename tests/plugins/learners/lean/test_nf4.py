"""NF4 against an implementation in NumPy from the papers: levels, blocks, double quantisation,
products. Needs bitsandbytes.
"""

from __future__ import annotations

from functools import cache
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

pytest.importorskip("bitsandbytes", reason="nf4 needs quintain-learners[nf4]")

from quintain_learners.lean.quantised import FORMATS, QuantisedWeight

Array = NDArray[np.float64]
BLOCK, SCALES = 64, 256
"""Numbers with one scale, and scales with one scale of their own (QLoRA, section 3)."""


@cache
def levels() -> Array:
    """The 16 levels: quantiles of the normal distribution, 8 of its positive half and 7 of its
    negative half beside 0, over the largest (Dettmers et al. 2023, 2305.14314, equation 4; the tail
    that is left out is the mean of 1/30 and 1/32).
    """
    end = 1 - (1 / 30 + 1 / 32) / 2
    upper = [NormalDist().inv_cdf(p) for p in np.linspace(end, 0.5, 9)[:-1]]
    lower = [-NormalDist().inv_cdf(p) for p in np.linspace(end, 0.5, 8)[:-1]]
    return np.sort([*upper, 0.0, *lower]) / max(upper)


@cache
def dynamic() -> Array:
    """The 256 numbers of the dynamic 8-bit type (Dettmers et al. 2022, 2110.02861, section 1.3): in
    each of seven decades the middles of 2^i equal parts of [0.1, 1], with both signs; 0 and 1.
    """
    found = [0.0, 1.0]
    for i in range(7):
        edges = np.linspace(0.1, 1, 2**i + 1)
        middles = 10.0 ** (i - 6) * (edges[:-1] + edges[1:]) / 2
        found += [*middles, *-middles]
    return np.sort(found)


def nearest(x: Array, table: Array) -> Array:
    return table[np.abs(x[..., None] - table).argmin(-1)]


def blocks(x: Array, size: int) -> Array:
    """[blocks, size], filled up with zeros."""
    return np.pad(x, (0, -len(x) % size)).reshape(-1, size)


def rounded(weight: Tensor) -> Array:
    """*weight* as NF4 with double quantisation keeps it."""
    numbers = blocks(weight.double().numpy().ravel(), BLOCK)
    scales = np.abs(numbers).max(1)
    chosen = nearest(numbers / scales[:, None], levels())
    mean = scales.mean()
    parts = blocks(scales - mean, SCALES)
    largest = np.abs(parts).max(1, keepdims=True)
    kept = (nearest(parts / largest, dynamic()) * largest).ravel()[: len(scales)] + mean
    return (chosen * kept[:, None]).ravel()[: weight.numel()].reshape(tuple(weight.shape))


def stored(weight: Tensor) -> Any:
    return FORMATS["nf4"](weight)


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    draw = torch.Generator().manual_seed(sum(shape))
    rows = torch.linspace(0.2, 3, shape[0])[:, None]  # scales differ
    return (0.02 * rows * torch.randn(*shape, generator=draw)).to(dtype)


@pytest.mark.parametrize("shape", [(96, 192), (7, 100), (640, 64)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_numbers_are_those_of_the_papers(shape: tuple[int, int], dtype: torch.dtype) -> None:
    """Also where the last block is not full. bitsandbytes takes the other neighbour where a number
    or a scale lies in the middle of two to 1e-4 of the largest; a scale then differs by 0.3 %.
    """
    weight = drawn(*shape, dtype=dtype)
    expected = rounded(weight)
    actual = stored(weight).values(torch.float32).double().numpy()
    assert actual.shape == expected.shape
    size = np.abs(expected).max()
    apart = np.abs(actual - expected) > (1e-6 if dtype == torch.float32 else 2**-8) * size
    assert apart.mean() < 0.01
    error = np.linalg.norm(actual - weight.double().numpy()) / np.linalg.norm(weight.double())
    assert 0.07 < error < 0.11  # of a normal weight in blocks of 64


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_products_and_their_gradients_are_those_of_the_numbers(
    rows: int, dtype: torch.dtype
) -> None:
    """With and without a gradient, which takes other kernels for a single row."""
    weight = drawn(96, 192)
    linear = nn.Linear(192, 96)
    bias = linear.bias.detach().double()
    linear.weight = nn.Parameter(QuantisedWeight(stored(weight), weight), requires_grad=False)
    x = torch.randn(rows, 192, generator=torch.Generator().manual_seed(1)).to(dtype)
    linear.bias.data = linear.bias.data.to(dtype)
    numbers = torch.tensor(rounded(weight))
    expected = x.double() @ numbers.t() + bias
    by_x = torch.ones(rows, 96, dtype=torch.float64) @ numbers
    close = 3e-5 if dtype == torch.float32 else 2**-6
    with torch.no_grad():
        assert relative(linear(x), expected) < close
    x.requires_grad_()
    out = linear(x)
    out.sum().backward()
    assert relative(out, expected) < close
    assert x.grad is not None
    assert relative(x.grad, by_x) < close


def relative(actual: Tensor, expected: Tensor) -> float:
    return float((actual.detach().double() - expected).norm() / expected.norm())
