"""Log-probs of existing token sequences, several at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..models.prefix_tree import common_length
from .decoding import DecodingForward, PrefixCache, padded

PASS_TOKENS = 4096
"""Tokens, padding included, of one forward pass."""

COPIED_TOKENS = 32_768
"""Tokens of a pass behind a prefix, which each row reads from a copy of its own in the attention of
a layer.
"""

SHARED = 64
"""Least number of tokens that sequences have in common for these to be computed once."""

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
    """Answer *requests*, those of one prompt behind it, in passes over similar lengths; other tasks
    run in between.
    """
    try:
        for prefix, members in _by_prefix(requests):
            cache = forward.prefix_cache(prefix) if prefix else None
            skipped = len(prefix) if cache else 0
            ordered = sorted(members, key=lambda r: (len(r.ids), r.ids, r.start))
            while ordered:
                take = 1
                while take < len(ordered) and _fits(len(ordered[take].ids), skipped, take + 1):
                    take += 1
                batch = ordered[:take]
                ordered = ordered[take:]
                _score_pass(forward, batch, cache, skipped)
                await asyncio.sleep(0)
    except Exception as error:
        for request in requests:
            if not request.future.done():
                request.future.set_exception(error)
        raise


def _fits(length: int, skipped: int, rows: int) -> bool:
    """Return whether *rows* sequences of up to *length* tokens, *skipped* of them computed before,
    may be one pass.
    """
    return (length - skipped) * rows <= PASS_TOKENS and (
        not skipped or length * rows <= COPIED_TOKENS
    )


def _by_prefix(
    requests: Sequence[ScoreRequest],
) -> list[tuple[tuple[int, ...], list[ScoreRequest]]]:
    """Split *requests* into those that begin with the same tokens, and the others with an empty
    prefix.

    A prefix ends before the first position that is scored, and is at least half of the first
    sequence that begins with it and of each one when it is added.
    """
    groups: list[tuple[int, list[ScoreRequest]]] = []
    for request in sorted(requests, key=lambda r: (r.ids, r.start)):
        if groups:
            common, members = groups[-1]
            common = min(common, request.start - 1, common_length(members[-1].ids, request.ids))
            if common >= max(SHARED, len(request.ids) / 2, len(members[0].ids) / 2):
                groups[-1] = (common, [*members, request])
                continue
        groups.append((request.start - 1, [request]))
    shared = [(members[0].ids[:common], members) for common, members in groups if len(members) > 1]
    alone = [members[0] for _, members in groups if len(members) == 1]
    return [*shared, ((), alone)] if alone else shared


def _score_pass(
    forward: DecodingForward,
    batch: Sequence[ScoreRequest],
    prefix: PrefixCache | None,
    skipped: int,
) -> None:
    """Answer *batch* in one forward pass behind *prefix*, of *skipped* tokens; only scored
    positions reach the head.
    """
    hidden_NTD = forward.hidden(
        padded([r.ids[skipped:-1] or r.ids for r in batch], forward.device), prefix
    )
    # Of each scored token: its row, the place of the state that predicts it, itself, and the
    # temperature of its request.
    rows: list[int] = []
    places: list[int] = []
    ids: list[int] = []
    divisors: list[float] = []
    for row, request in enumerate(batch):
        count = len(request.ids) - request.start
        first = request.start - 1 - skipped
        rows += [row] * count
        places += range(first, first + count)
        ids += request.ids[request.start :]
        divisors += [request.temperature or 1.0] * count
    targets = torch.tensor(ids, device=forward.device, dtype=torch.long)
    temperatures = torch.tensor(divisors, device=forward.device)
    flat = hidden_NTD[rows, places] if rows else hidden_NTD.new_zeros(0, hidden_NTD.shape[-1])
    logps = iter(_log_probs(forward, flat, targets, temperatures))
    for request in batch:
        answer = [next(logps) for _ in request.ids[request.start :]]
        if not request.future.done():
            request.future.set_result(answer)


def _log_probs(
    forward: DecodingForward, hidden: Tensor, targets: Tensor, temperatures: Tensor
) -> list[float]:
    log_probs: list[float] = []
    size = max(1, LOGITS // forward.vocab_size)
    for part, ids, temperature in zip(
        hidden.split(size), targets.split(size), temperatures.split(size), strict=True
    ):
        logits = forward.head(part)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature[
            :, None
        ].to(logits.dtype)
        log_probs += (logits.gather(-1, ids[:, None]).squeeze(-1) - logits.logsumexp(-1)).tolist()
    return log_probs
