"""The precision that this machine computes faster, by a measurement."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache

import torch

from .tables import Recipe

SIZE, ROWS, SAMPLE = 1024, 64, 0.12
"""Of the products that are measured: a square of numbers, the rows of decoding, and the seconds of
each measurement.
"""
HALF_GAIN = 1.3
"""How many times as fast products in half precision must be, since casts and sums take their part."""


@dataclass(frozen=True, kw_only=True)
class Processor:
    """Rates of plain matrix products here, in FLOP/s.

    Attributes:
        float32: of two squares.
        bfloat16: of two squares.
        decoding: of a few rows and a square, in float32.
    """

    float32: float
    bfloat16: float
    decoding: float

    @property
    def half(self) -> bool:
        """Whether half precision is worth it."""
        return self.bfloat16 > HALF_GAIN * self.float32


@cache
def processor() -> Processor:
    """Measure this processor, in less than a second."""
    return Processor(
        float32=_rate(SIZE, torch.float32),
        bfloat16=_rate(SIZE, torch.bfloat16),
        decoding=_rate(ROWS, torch.float32),
    )


def _rate(rows: int, dtype: torch.dtype) -> float:
    """Return the rate of products of *rows* and a square, on all threads. CPU time decides: programs
    beside this one do not change the batch.
    """
    a, b = torch.ones(rows, SIZE, dtype=dtype), torch.ones(SIZE, SIZE, dtype=dtype)
    a @ b  # the first one packs and allocates
    began, products = time.process_time(), 0
    while (seconds := time.process_time() - began) < SAMPLE:
        a @ b
        products += 1
    return 2 * rows * SIZE * SIZE * products * torch.get_num_threads() / seconds


def begins_on_cpu(recipe: Recipe) -> bool:
    """Return whether *recipe* runs on a CPU by default: torch finds no GPU, and none is named."""
    return recipe.model.device == "cpu" or (
        recipe.model.device == "auto" and not torch.cuda.is_available()
    )


def settled(recipe: Recipe) -> Recipe:
    """Return *recipe* with a precision in place of each ``auto``: bfloat16 on a GPU, and on a CPU whose
    products in it are faster by `HALF_GAIN`, else float32.
    """
    values = {"model.dtype": recipe.model.dtype, "learner.precision": recipe.learner.precision}
    open_keys = [key for key, value in values.items() if value == "auto"]
    if not open_keys:
        return recipe
    half = not begins_on_cpu(recipe) or processor().half
    return recipe.replace(dict.fromkeys(open_keys, "bfloat16" if half else "float32"))
