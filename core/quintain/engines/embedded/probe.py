"""The choice of a forward for decoding: each candidate must reproduce the module's own forward on short prompts."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch

from ...models.layers import Decoder, has_windows
from ...models.probe import agree, log_probs, plain_log_probs
from .decoding import BatchForward, DecodingForward, LayerForward, ModuleForward

_log = logging.getLogger(__name__)


def choose_forward(module: Any, context: int) -> DecodingForward:
    """Return the fastest forward for *module* that agrees with the module's own: over its layers, else its own forward
    with our cache, else fixed batches.
    """
    decoder = Decoder.of(module)
    if decoder is not None and agrees(LayerForward(decoder, context), module):
        return LayerForward(decoder, context)
    windows = has_windows(module.config.get_text_config())
    if not windows and _tries(lambda: agrees(ModuleForward(module, context), module)):
        return ModuleForward(module, context)
    _log.warning("%s takes no cache with rows of different lengths; decoding in fixed batches", type(module).__name__)
    return BatchForward(module)


@torch.inference_mode()
def agrees(forward: DecodingForward, module: Any) -> bool:
    """Whether two prompts of different lengths, prefilled and decoded together, get the plain forward's log-probs."""
    vocabulary = module.get_input_embeddings().weight.shape[0]
    ids = [[(7 * i + 3) % vocabulary for i in range(9)], [(5 * i + 1) % vocabulary for i in range(5)]]
    cut = [6, 2]
    logits = [forward.extend([0, 1], [row[:n] for row, n in zip(ids, cut, strict=True)], [0, 0])]
    steps = forward.steps(cut, 3)
    for i in range(3):
        next_ids = torch.tensor([row[n + i] for row, n in zip(ids, cut, strict=True)], device=forward.device)
        logits.append(steps.step(next_ids))
    decoded = log_probs(torch.stack(logits, dim=1))
    plain = torch.stack([plain_log_probs(module, row)[n - 1 :] for row, n in zip(ids, cut, strict=True)])
    store = forward.store
    if store is not None:
        store.release()
    return agree(decoded, plain, next(module.parameters()).dtype)


def _tries(attempt: Callable[[], bool]) -> bool:
    """Run *attempt*. An unknown architecture may raise anything on our cache; then it does not agree."""
    try:
        return attempt()
    except Exception as error:  # noqa: BLE001 -- see above
        _log.info("cache with rows of different lengths: %s: %s", type(error).__name__, error)
        return False
