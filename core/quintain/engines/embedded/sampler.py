"""From logits to a token and its log-prob, each row with its own temperature and its own stream of random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import torch
from torch import Tensor

from ...types.sampling import Sampling

CHUNK = 256
"""Uniform numbers drawn at a time per request. Fixed, so that the n-th number depends on the seed alone."""


class Stream:
    """The uniform numbers in [0, 1) of one request: a function of its seed alone."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)  # takes in the whole seed; torch's generator keeps 32 bits of it

    def chunk(self) -> Tensor:
        """The next `CHUNK` numbers, float64."""
        return torch.tensor([self._random.random() for _ in range(CHUNK)], dtype=torch.float64)


class Sampler:
    """Samples one token per row; fixed for a batch of requests.

    Attributes:
        temperatures: [n, 1], with 1 for greedy rows, whose log-probs are those of the untempered distribution; ``None``
            where all are 1.
    """

    def __init__(self, hows: Sequence[Sampling], device: torch.device) -> None:
        self.greedy = [i for i, how in enumerate(hows) if how.temperature == 0]
        self.truncated = [i for i, how in enumerate(hows) if how.truncates and how.temperature > 0]
        self._hows = hows
        self._all_greedy = len(self.greedy) == len(hows)
        wanted = [how.temperature or 1.0 for how in hows]
        prunes = [how.prune for how in hows]
        self.prunes = torch.tensor(prunes, device=device)[:, None] if any(prunes) else None
        self.temperatures = None if set(wanted) == {1.0} else torch.tensor(wanted, device=device)[:, None]

    def pick(self, logits: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        """One id and its log-prob per row, each [n]; *logits* [n, V], *uniforms* [n] float64.

        The token is the first whose cumulative probability exceeds the uniform number: the same numbers on the same
        logits give the same token, whatever the other rows are.
        """
        if logits.dtype not in (torch.float32, torch.float64):
            logits = logits.float()
        if self.temperatures is not None:
            logits = logits / self.temperatures.to(logits.dtype)
        probs = logits.softmax(-1)
        if self.prunes is not None:
            probs = probs * (probs >= self.prunes.to(probs.dtype) * probs.amax(-1, keepdim=True))
            probs = probs / probs.sum(-1, keepdim=True)
        ids = logits.argmax(-1) if self._all_greedy else self._draw(probs, logits, uniforms)
        return ids, probs.gather(-1, ids[:, None]).squeeze(-1).log()

    def _draw(self, probs: Tensor, logits: Tensor, uniforms: Tensor) -> Tensor:
        ids = invert(probs, uniforms)
        if self.greedy:
            ids[self.greedy] = logits[self.greedy].argmax(-1)
        for i in self.truncated:
            ids[i] = invert(truncate(probs[i], self._hows[i])[None], uniforms[i : i + 1])[0]
        return ids


def invert(probs: Tensor, uniforms: Tensor) -> Tensor:
    """The quantile function of *probs* [n, V] (need not sum to 1) at *uniforms* [n] in [0, 1) -> [n]."""
    cumulative = probs.cumsum(-1, dtype=torch.float64)
    found = torch.searchsorted(cumulative, uniforms[:, None] * cumulative[:, -1:], right=True)
    return found.squeeze(-1).clamp_(max=probs.shape[-1] - 1)


def truncate(probs: Tensor, how: Sampling) -> Tensor:
    """*probs* [V] with everything outside top-k, top-p and min-p set to 0 (not renormalised).

    Top-k first, then top-p over what is left, as in transformers; min-p is relative to the likeliest token. The
    likeliest always stays.
    """
    sorted_probs, order = probs.sort(descending=True, stable=True)
    keep = torch.ones_like(sorted_probs, dtype=torch.bool)
    if how.top_k:
        keep[how.top_k :] = False
    if how.top_p < 1:
        left = sorted_probs * keep
        before = left.cumsum(0) - left
        keep &= before < how.top_p * left.sum()
    if how.min_p:
        keep &= sorted_probs >= how.min_p * sorted_probs[0]
    keep[0] = True
    return torch.zeros_like(probs).scatter_(0, order, sorted_probs * keep)
