"""One update as an optimizer sees it: parameters, a loss that is a weighted sum, its gradient.

The learner's own optimizer is AdamW. A row that names an ``update`` piece changes the parameters its own way (a natural
gradient, a line search): the piece gets a `Problem`, changes the parameters once and returns metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .batch import Batch
from .microbatch import MicroBatch

if TYPE_CHECKING:
    from .learner import Learner


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A minibatch, taken up.

    Attributes:
        learner: whose parameters are changed; its module, forward pass and configured sizes are there to use.
        batch: all samples of the step, hence the temperature.
        parts: the minibatch in micro-batches.
        evaluate: part of the loss of one micro-batch, with gradient; metrics are taken down where the second argument
            is true, which must be so exactly once per micro-batch, before the parameters change.
    """

    learner: Learner
    batch: Batch
    parts: Sequence[MicroBatch]
    evaluate: Callable[[MicroBatch, bool], Tensor]

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Those that train."""
        return self.learner.trained

    def backward(self, scale: Callable[[Tensor], Tensor] = lambda loss: loss) -> float:
        """The loss; leaves its gradient in every parameter's ``grad``, unclipped. Call it once, first."""
        for parameter in self.parameters:
            parameter.grad = None
        total = torch.zeros((), dtype=torch.float64, device=self.learner.device)
        for micro in self.parts:
            part = self.evaluate(micro, True)
            scale(part).backward()
            total += part.detach()
        for parameter in self.parameters:
            if parameter.grad is None:  # no term reached it; momentum still moves it
                parameter.grad = torch.zeros_like(parameter)
        return float(total)

    @torch.no_grad()
    def loss(self) -> float:
        """The loss at the parameters as they are now, without metrics: for line searches."""
        return float(sum(self.evaluate(micro, False).double() for micro in self.parts))


Update = Callable[..., dict[str, Any]]
