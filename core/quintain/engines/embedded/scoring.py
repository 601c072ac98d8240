"""Log-probs of existing token sequences, several at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .decoding import DecodingForward, padded

PASS_TOKENS = 4096
"""Tokens, padding included, of one forward pass."""

LOGITS = 16_000_000
"""Logits in memory at a time."""


@dataclass(eq=False, slots=True, kw_only=True)
class ScoreRequest:
    """One call of ``score`` that waits for its answer."""

    ids: tuple[int, ...]
    start: int
    temperature: float
    future: asyncio.Future[list[float]]


async def score_all(forward: DecodingForward, requests: Sequence[ScoreRequest]) -> None:
    """Answer *requests* in passes over sequences of similar length; other tasks run between two passes."""
    ordered = sorted(requests, key=lambda r: (len(r.ids), r.ids, r.start))
    try:
        while ordered:
            take = 1
            while take < len(ordered) and len(ordered[take].ids) * (take + 1) <= PASS_TOKENS:
                take += 1
            batch, ordered = ordered[:take], ordered[take:]
            _score_pass(forward, batch)
            await asyncio.sleep(0)
    except Exception as error:
        for request in requests:
            if not request.future.done():
                request.future.set_exception(error)
        raise


def _score_pass(forward: DecodingForward, batch: Sequence[ScoreRequest]) -> None:
    """Answer *batch* in one forward pass; only scored positions reach the output layer."""
    hidden_NTD = forward.hidden(padded([r.ids[:-1] or r.ids for r in batch], forward.device))
    rows = [i for i, r in enumerate(batch) for _ in r.ids[r.start :]]
    places = [t for r in batch for t in range(r.start - 1, len(r.ids) - 1)]
    ids = [token for r in batch for token in r.ids[r.start :]]
    targets = torch.tensor(ids, device=forward.device, dtype=torch.long)
    temperatures = torch.tensor([r.temperature or 1.0 for r in batch for _ in r.ids[r.start :]], device=forward.device)
    flat = hidden_NTD[rows, places] if rows else hidden_NTD.new_zeros(0, hidden_NTD.shape[-1])
    logps = iter(_log_probs(forward, flat, targets, temperatures))
    for request in batch:
        answer = [next(logps) for _ in request.ids[request.start :]]
        if not request.future.done():
            request.future.set_result(answer)


def _log_probs(forward: DecodingForward, hidden: Tensor, targets: Tensor, temperatures: Tensor) -> list[float]:
    log_probs: list[float] = []
    size = max(1, LOGITS // forward.vocab_size)
    for part, ids, temperature in zip(hidden.split(size), targets.split(size), temperatures.split(size), strict=True):
        logits = forward.head(part)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature[:, None].to(logits.dtype)
        log_probs += (logits.gather(-1, ids[:, None]).squeeze(-1) - logits.logsumexp(-1)).tolist()
    return log_probs
