"""From logits to tokens and their log-probs, each row with its own temperature and its own random
numbers.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from ..models.transfers import to_device
from ..types.sampling import Sampling
from .decoding import DecodingForward
from .slots import Request

BURST_SECONDS = 0.04
"""Longest time the event loop is kept waiting between steps."""

BURST_STEPS = 64

PLAIN_SIZE, BLOCK = 4096, 128
"""Tokens of a vocabulary up to which the running sum of all is taken; of a block in a larger one."""


def decode_burst(
    forward: DecodingForward,
    requests: Sequence[Request | None],
    words: int,
    kind: type[Sampler],
) -> tuple[list[list[int]], list[list[float]]]:
    """Step all rows together until one may have ended; per row its tokens and log-probs, one of
    each per step.

    Rows without a request are stepped along in a fixed batch, and their tokens dropped. *words* is
    the number of ids of the tokenizer, *kind* what draws.
    """
    live = [r for r in requests if r is not None]
    # No further than to the end of the first, so that its row goes to a waiting request at once.
    count = min(BURST_STEPS, min(r.limit - len(r.tokens) for r in live))
    stop_ids = frozenset().union(*(r.stop_ids for r in live))
    with_stop_strings = [(row, r) for row, r in enumerate(requests) if r is not None and r.stops]
    rows = [r or live[0] for r in requests]  # an idle row samples like any other, for nobody
    sampler = kind([r.sampling for r in rows], forward.device, words)
    steps = forward.steps([len(r.cached) for r in rows], count)
    ids = to_device([r.tokens[-1] for r in rows], forward.device)
    tokens: list[list[int]] = []
    logps: list[Tensor] = []
    deadline = time.perf_counter() + BURST_SECONDS
    for _ in range(count):
        # One number per token of its own generator: what a request draws does not depend on which
        # others are decoded beside it.
        drawn = [r.random.random() if r else 0.0 for r in requests]
        # before the step is begun, so that nothing of the draw waits for its end
        uniforms = to_device(drawn, forward.device, torch.float64)
        ids, step_logps = sampler.pick(steps.step(ids), uniforms)
        newest = ids.tolist()  # the one point per step at which the host waits for the device
        tokens.append(newest)
        logps.append(step_logps)
        if not stop_ids.isdisjoint(newest) or time.perf_counter() > deadline:
            break
        if any(r.stops.may_end(newest[row]) for row, r in with_stop_strings):
            break
    return [list(row) for row in zip(*tokens, strict=True)], torch.stack(logps, dim=1).tolist()


class Sampler:
    """Samples one token per row, for a fixed list of requests.

    Args:
        words: number of ids of the tokenizer. A model may have padded rows beyond them, which no
            text has and no prompt may hold: they are never drawn, as what is truncated is not.

    Attributes:
        temperatures: [n, 1], with 1 for greedy rows, whose log-probs are those of the untempered
            distribution; ``None`` where all are 1.
    """

    def __init__(self, samplings: Sequence[Sampling], device: torch.device, words: int) -> None:
        self.words = words
        self.greedy = [i for i, sampling in enumerate(samplings) if sampling.temperature == 0]
        self.truncated = [
            i
            for i, sampling in enumerate(samplings)
            if sampling.truncates and sampling.temperature > 0
        ]
        self._samplings = samplings
        self._all_greedy = len(self.greedy) == len(samplings)
        temperatures = [sampling.temperature or 1.0 for sampling in samplings]
        prunes = [sampling.prune for sampling in samplings]
        # Most batches need neither, and each would cost an operation per step.
        self.prunes: Tensor | None = None
        if any(prunes):
            self.prunes = torch.tensor(prunes, device=device)[:, None]
        self.temperatures: Tensor | None = None
        if set(temperatures) != {1.0}:
            self.temperatures = torch.tensor(temperatures, device=device)[:, None]

    def pick(self, logits: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        """Sample one id per row of *logits* [n, V] with *uniforms* [n] in float64; returns ids and
        log-probs, each [n].

        The token is the first whose cumulative probability exceeds the uniform number. So equal
        numbers and logits give the same token, independent of other rows.
        """
        if logits.dtype not in (torch.float32, torch.float64):
            logits = logits.float()
        probs = self.distribution(logits)
        known = logits[:, : self.words]
        if self._all_greedy:
            ids = known.argmax(-1)
        else:
            ids = self._draw(probs[:, : self.words], known, uniforms)
        return ids, probs.gather(-1, ids[:, None]).squeeze(-1).log()

    def distribution(self, logits: Tensor) -> Tensor:
        """Return what the next tokens are drawn from, and what their log-probs are of, [n, V] like
        *logits*. An engine with a sampler of its own draws from another one (docs/write-a-plugin.md).
        """
        if self.temperatures is not None:
            logits = logits / self.temperatures.to(logits.dtype)
        probs = logits.softmax(-1)
        if self.prunes is not None:
            probs = probs * (probs >= self.prunes.to(probs.dtype) * probs.amax(-1, keepdim=True))
            probs = probs / probs.sum(-1, keepdim=True)
        return probs

    def _draw(self, probs: Tensor, logits: Tensor, uniforms: Tensor) -> Tensor:
        ids = invert(probs, uniforms)
        if self.greedy:
            ids[self.greedy] = logits[self.greedy].argmax(-1)
        for i in self.truncated:
            ids[i] = invert(truncate(probs[i], self._samplings[i])[None], uniforms[i : i + 1])[0]
        return ids


def invert(probs: Tensor, uniforms: Tensor) -> Tensor:
    """Invert the cumulative distribution: return the quantile function of *probs* [n, V], which
    need not sum to 1, at *uniforms* [n] in [0, 1); returns ids [n].
    """
    size = probs.shape[-1]
    if size <= PLAIN_SIZE:
        # in float32 the sum of a large vocabulary drifts
        cumulative = probs.cumsum(-1, dtype=torch.float64)
        ids = torch.searchsorted(cumulative, uniforms[:, None] * cumulative[:, -1:], right=True)
        return ids.squeeze(-1).clamp_(max=size - 1)
    # A running sum is slow. So first the block, by the sums of all, and then the token in it.
    if missing := -size % BLOCK:
        probs = functional.pad(probs, (0, missing))
    blocks_NBT = probs.unflatten(-1, (-1, BLOCK))
    sums_NB = blocks_NBT.sum(-1).double()
    ends_NB = sums_NB.cumsum(-1)
    goals_N1 = uniforms[:, None] * ends_NB[:, -1:]
    block_N1 = torch.searchsorted(ends_NB, goals_N1, right=True).clamp_(max=ends_NB.shape[-1] - 1)
    goals_N1 = goals_N1 - (ends_NB - sums_NB).gather(-1, block_N1)
    chosen_NT = blocks_NBT.gather(1, block_N1[..., None].expand(-1, 1, BLOCK))[:, 0]
    inside_NT = chosen_NT.cumsum(-1, dtype=torch.float64)
    # The two sums of a block may differ in their last digits. A goal between them would give its
    # last token, which may have been truncated.
    last_N1 = inside_NT[:, -1:]
    below_N1 = torch.nextafter(last_N1, torch.zeros_like(last_N1))
    inner_N1 = torch.searchsorted(inside_NT, goals_N1.clamp(min=0).minimum(below_N1), right=True)
    # beyond the end only where a row is not finite, which the caller reports
    return (block_N1 * BLOCK + inner_N1).squeeze(-1).clamp_(max=size - 1)


def truncate(probs: Tensor, sampling: Sampling) -> Tensor:
    """Set all of *probs* [V] outside top-k, top-p and min-p to 0, without renormalising.

    Top-k comes first, then top-p over the rest, as in transformers; min-p is relative to the
    likeliest token, which always stays.
    """
    sorted_probs, order = probs.sort(descending=True, stable=True)
    keep = torch.ones_like(sorted_probs, dtype=torch.bool)
    if sampling.top_k:
        keep[sampling.top_k :] = False
    if sampling.top_p < 1:
        left = sorted_probs * keep
        keep &= left.cumsum(0) - left < sampling.top_p * left.sum()
    if sampling.min_p:
        keep &= sorted_probs >= sampling.min_p * sorted_probs[0]
    keep[0] = True
    return torch.zeros_like(probs).scatter_(0, order, sorted_probs * keep)
