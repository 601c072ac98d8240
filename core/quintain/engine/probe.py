"""The choice of a forward for decoding: each candidate must reproduce the module's own forward on
short prompts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch

from ..errors import UsageError
from ..models.adapters import base_of
from ..models.layers import Decoder, has_windows
from ..models.probe import agree, log_probs, plain_log_probs
from ..models.routers import Routers
from .decoding import NO_ROUTERS, BatchForward, DecodingForward, LayerForward, ModuleForward

_log = logging.getLogger(__name__)


def choose_forward(
    module: Any, context: int, *, graphs: bool = True, routers: Routers = NO_ROUTERS
) -> DecodingForward:
    """Return the fastest forward for *module* that agrees with the module's own: over its layers,
    else its own forward with our cache, else fixed batches.

    Args:
        graphs: replay steps over the layers as CUDA graphs.
        routers: whose choices are recorded, none in a dense model.

    Raises:
        UsageError: none agrees.
    """
    name = type(module).__name__
    decoder = Decoder.of(module)
    # Weights that a loader read without the model's class have no forward to compare with.
    kind = getattr(module, "decodes_by", LayerForward)  # of pictures, whose positions differ
    weights_alone = getattr(type(module), "forward", None) is torch.nn.Module.forward
    if decoder is not None and (
        weights_alone or not disagreement(lambda: kind(decoder, context), module)
    ):
        return kind(decoder, context, graphs=graphs)
    windows = has_windows(module.config.get_text_config())
    if not windows and not disagreement(lambda: ModuleForward(module, context, routers), module):
        return ModuleForward(module, context, routers)
    reason = disagreement(lambda: BatchForward(module, routers), module, rough=True)
    if reason:
        raise UsageError(
            f"the embedded engine cannot sample from {name}: decoded from a left-padded batch and "
            f"the module's cache, {reason}; use an architecture that docs/models.md lists as "
            "supported, or another engine"
        )
    _log.warning(
        "%s takes no cache with rows of different lengths; decoding in fixed batches", name
    )
    return BatchForward(module, routers)


@torch.inference_mode()
def disagreement(make: Callable[[], DecodingForward], module: Any, *, rough: bool = False) -> str:
    """Measure how the log-probs of two prompts of different lengths, prefilled and decoded
    together, differ from those of the plain forward; empty if they agree. An unknown architecture
    may raise anything, which is a difference, too.

    Args:
        rough: in half precision, compare the error of each row with the spread of the log-probs:
            the largest error over a large vocabulary says nothing.
    """
    vocabulary = module.get_input_embeddings().weight.shape[0]
    ids = [
        [(7 * i + 3) % vocabulary for i in range(9)],
        [(5 * i + 1) % vocabulary for i in range(5)],
    ]
    cut = [6, 2]
    try:
        forward = make()
        logits = [
            forward.extend([0, 1], [row[:n] for row, n in zip(ids, cut, strict=True)], [0, 0])
        ]
        steps = forward.steps(cut, 3)
        for i in range(3):
            next_ids = torch.tensor(
                [row[n + i] for row, n in zip(ids, cut, strict=True)], device=forward.device
            )
            logits.append(steps.step(next_ids))
    except Exception as error:  # noqa: BLE001 -- see above
        _log.info("cache with rows of different lengths: %s: %s", type(error).__name__, error)
        return f"it raises {type(error).__name__}: {error}"
    decoded = log_probs(torch.stack(logits, dim=1))
    plain = torch.stack(
        [plain_log_probs(module, row)[n - 1 :] for row, n in zip(ids, cut, strict=True)]
    )
    dtype = next(module.parameters()).dtype
    error_NTV = (decoded - plain).abs()
    if agree(decoded, plain, dtype):
        return ""
    if (
        rough
        and dtype.itemsize == 2
        and bool((error_NTV.square().mean((1, 2)).sqrt() < 0.1 * plain.std()).all())
    ):
        return ""
    return (
        f"its log-probs differ from those of its own forward by {float(error_NTV.max()):.2g} nats"
    )


@torch.inference_mode()
def recordable(module: Any, wanted: bool | None) -> Routers:
    """Return the routers of *module* whose choices can be recorded; none in a dense model, or if they
    are not *wanted*.

    Args:
        wanted: ``None`` is where they can be.

    Raises:
        UsageError: they are wanted and there are none.
    """
    routers = NO_ROUTERS if wanted is False else Routers.of(base_of(module))
    if routers:
        with routers.watched() as choices:
            plain_log_probs(module, [1, 2])
        if all(choice.index is not None for choice in choices):
            return routers
    if wanted:
        raise UsageError(
            f"engine.args.router_replay = true: {type(module).__name__} has no routers of experts "
            "that the embedded engine can record; remove the setting"
        )
    return NO_ROUTERS
