"""How often an update makes the host wait for its device: at one point, however many micro-batches
there are. On a GPU each wait leaves the device idle until the next kernels arrive.

On a CPU nothing waits, so what would wait is counted: reading a number of a tensor, and copies that
block.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from quintain.learning import ALGORITHMS, Learner
from quintain.learning.optimizer_step import OptimizerStep

from ..models.tiny import tiny_model
from .batches import batch


class Reads(TorchDispatchMode):
    """Counts the operations that return a number to the host, or a shape that depends on numbers,
    and lists of numbers.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        tolist = Tensor.tolist

        def counted(x: Tensor) -> Any:
            self.counts["tolist"] += 1
            return tolist(x)

        monkeypatch.setattr(Tensor, "tolist", counted)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in ("_local_scalar_dense", "equal", "masked_select", "_unique2"):
            self.counts[name] += 1
        return func(*args, **(kwargs or {}))


def test_an_update_waits_once_however_many_micro_batches_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Over our own layers; the masks of transformers read a number in each forward pass."""
    inside: list[int] = []
    accumulate = OptimizerStep.accumulate
    reads = Reads(monkeypatch)

    def watched(step: OptimizerStep, *args: Any) -> Tensor:
        before = reads.counts.total()
        loss = accumulate(step, *args)
        inside.append(reads.counts.total() - before)
        return loss

    monkeypatch.setattr(OptimizerStep, "accumulate", watched)
    counts = []
    for budget in (1000, 20):
        learner = Learner(tiny_model("qwen3"), ALGORITHMS["grpo"], token_budget=budget)
        prepared = learner.prepare(batch())
        reads.counts.clear()
        with reads:
            learner.step(prepared)
        counts.append(dict(reads.counts))
    assert inside == [0, 0]
    assert counts[0] == counts[1]
    assert counts[0]["tolist"] == 2, "the loss with the norm of its gradient, and all ratios"
