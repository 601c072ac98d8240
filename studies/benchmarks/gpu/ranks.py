"""Part 7: the learner `fsdp` on one card, with one rank by NCCL and with two that share the card by
gloo, against the default learner.

Two ranks on a card gain nothing: the step shows that sums, shards and weights are right where
tensors are on a GPU. The first update is compared with that of the default learner: its loss, the
norm of its gradient, and the largest difference of a weight after it, over the largest change.
"""

from __future__ import annotations

import copy
import statistics
from typing import Any

from quintain.learning import Learner
from quintain_learners.fsdp import FsdpLearner

from . import card
from .part import Part, start
from .work import algorithm, module_of, random_batch

WAYS: dict[str, dict[str, Any]] = {
    "1 rank, replicated": {"ranks": 1, "sharding": "replicated"},
    "1 rank, sharded": {"ranks": 1, "sharding": "sharded"},
    "2 ranks, replicated": {"ranks": 2, "sharding": "replicated"},
    "2 ranks, sharded": {"ranks": 2, "sharding": "sharded"},
}
LIMIT = 1e-2
"""Largest difference of loss and gradient, relative."""


def updated(part: Part, size: str, way: dict[str, Any], tokens: int) -> dict[str, Any]:
    """Make one update by the default learner and one by ranks, from the same weights; time two more."""
    device = part.device
    module = module_of(size, device)
    prompt = tokens // 4
    batch = random_batch(
        module, groups=4, group_size=2, prompt=prompt, lengths=[tokens + 1 - prompt]
    )
    values = [1.0 if i % 2 else -1.0 for i in range(8)]
    before = [p.detach().cpu().clone() for p in module.parameters()]
    settings = {"lr": 1e-4, "token_budget": 4 * tokens}
    one = Learner(copy.deepcopy(module), algorithm(), **settings)
    expected = one.step(batch, advantages=values)
    wanted = [p.detach().cpu() for p in one.module.parameters()]
    del one
    many = FsdpLearner(
        module, algorithm(), share_gpu=way["ranks"] > 1, silence=300.0, **way, **settings
    )
    try:
        actual = many.step(batch, advantages=values)
        weights = [p.detach().cpu().clone() for p in many.module.parameters()]
        times = card.seconds(
            lambda: many.step(batch, advantages=values), device, warm_up=0, repeats=2
        )
    finally:
        many.close()
    moved = max(float((w - b).abs().max()) for w, b in zip(wanted, before, strict=True))
    apart = max(float((w - a).abs().max()) for w, a in zip(wanted, weights, strict=True))
    relative = max(
        abs(actual[name] - expected[name]) / max(abs(expected[name]), 1e-3)
        for name in ("loss", "grad_norm")
    )
    return {
        "seconds": statistics.median(times),
        "tokens_per_second": 8 * tokens / statistics.median(times),
        "relative_error": relative,
        "weights_over_change": apart / moved,
        "ok": relative < LIMIT,
    }


def run(part: Part) -> None:
    size, tokens = ("0.1M", 16) if part.rehearse else ("0.6B", 1024)
    for name, way in WAYS.items():
        part.measure(f"{size} {name}", lambda w=way: updated(part, size, w, tokens), expected=50)


if __name__ == "__main__":
    start(run, __doc__, "7-ranks")
