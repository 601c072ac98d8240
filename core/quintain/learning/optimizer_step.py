"""One update as an optimizer sees it: parameters, a loss that is a weighted sum, its gradient.

The learner's own optimizer is AdamW. An algorithm that names an ``optimizer_step`` piece changes
the parameters its own way (a natural gradient, a line search): the piece gets an `OptimizerStep`,
changes the parameters once and returns metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .batch import Batch
from .microbatch import MicroBatch
from .ranks import Ranks


@dataclass(frozen=True, kw_only=True)
class OptimizerStep:
    """A minibatch and the parameters that learn from it.

    Attributes:
        module: the model.
        parameters: those of it that train.
        batch: all samples of the step, hence the temperature.
        parts: the minibatch in micro-batches, those of this rank.
        evaluate: part of the loss of one micro-batch, with gradient, 0 for one that is padding; it
            records metrics if the second argument is true, as it must be exactly once per
            micro-batch, before the parameters change.
        token_budget: tokens of a micro-batch.
        evaluated: called when `backward` has evaluated all parts.
        ranks: the processes that add up the loss and its gradient.
    """

    module: nn.Module
    parameters: Sequence[nn.Parameter]
    batch: Batch
    parts: Sequence[MicroBatch]
    evaluate: Callable[[MicroBatch, bool], Tensor]
    token_budget: int
    evaluated: Callable[[], None]
    ranks: Ranks

    def backward(self) -> float:
        """Compute the loss, and its gradient in each parameter's ``grad``, unclipped. Call it once,
        first.
        """
        return float(self.accumulate(lambda loss: loss))

    def accumulate(self, scale: Callable[[Tensor], Tensor]) -> Tensor:
        """Do what `backward` does, with the gradient of the loss times *scale*, and without waiting
        for the device; the loss is a scalar on it.
        """
        for parameter in self.parameters:
            parameter.grad = None
        total = torch.zeros((), dtype=torch.float64, device=self.parameters[0].device)
        for micro in self.ranks.in_turn(self.parts):
            part = self.evaluate(micro, True)
            scale(part).backward()
            total += part.detach().to(total.device)
        self.evaluated()
        for parameter in self.parameters:
            if parameter.grad is None:  # no term depends on it; momentum still moves it
                parameter.grad = torch.zeros_like(parameter)
        self.ranks.sum_gradients(self.parameters)
        return self.ranks.sum(total)

    @torch.no_grad()
    def loss(self) -> float:
        """Compute the loss at the present parameters, without metrics: for line searches."""
        total = torch.zeros((), dtype=torch.float64, device=self.parameters[0].device)
        for micro in self.parts:
            total += self.evaluate(micro, False).to(total.device)
        return float(self.ranks.sum(total))
