"""What an advantage hands to the objective: a row for each token, in whichever micro-batch."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from quintain import advantage, objective
from quintain.errors import UsageError
from quintain.learning import ALGORITHMS, Learner, LossInputs, Step

from ..models.tiny import tiny_model, with_exact_norms
from . import batches

NUMBERS = 7.0
"""Added to the place of a token, so that each has a number of its own."""


@advantage
def numbered(step: Step, *, missing: int = 0) -> tuple[list[float], dict[str, Any]]:
    """1, the number of each token, and its id and two others to be asked for."""
    ids = step.batch.ids[: step.batch.tokens - missing]
    asked = torch.stack([ids, (ids + 1) % 260, (ids + 2) % 260], dim=1)
    told = {"number": torch.arange(len(ids)) + NUMBERS, "asked_ids": asked, "tokens": len(ids)}
    return [1.0] * len(step.rewards), told


SEEN: list[tuple[Tensor, Tensor, Tensor]] = []


@objective(reads=())
def weighed(t: LossInputs) -> Tensor:
    """The log-probs of the asked ids, weighed by the number of their token."""
    asked, number = t.statistics["asked_logp"], t.statistics["number"]
    SEEN.append((number, t.logp.detach(), asked.detach()))
    return -(number * asked.sum(1)) * t.advantage


def trained(budget: int, minibatches: int = 1) -> Learner:
    algorithm = ALGORITHMS["reinforce"].replace(
        advantage=numbered, objective=weighed, aggregation="token", minibatches=minibatches
    )
    module = copy.deepcopy(with_exact_norms(tiny_model(seed=1, dtype=torch.float64)))
    learner = Learner(module, algorithm, lr=1e-3, token_budget=budget, max_grad_norm=0.0)
    SEEN.clear()
    metrics = learner.step(batches.batch())
    assert metrics["advantage.tokens"] == batches.batch().tokens
    return learner


def gradient(learner: Learner) -> Tensor:
    return torch.cat([p.grad.flatten() for p in learner.parameters if p.grad is not None])


def plain(module: Any, ids: Sequence[int], places: Sequence[int]) -> Tensor:
    """Log-probs of the vocabulary at some places of a sequence."""
    logits = module(input_ids=torch.tensor([ids])).logits[0]
    return logits.log_softmax(-1)[[p - 1 for p in places]]


def test_columns_follow_their_tokens() -> None:
    """Into micro-batches of any size, and minibatches."""
    batch = batches.batch()
    for budget, minibatches in ((4096, 1), (1, 1), (4096, 3)):
        trained(budget, minibatches)
        numbers = torch.cat([number for number, _, _ in SEEN])
        assert sorted(numbers.tolist()) == [NUMBERS + i for i in range(batch.tokens)]
        for _, logp, asked in SEEN:
            torch.testing.assert_close(asked[:, 0], logp, rtol=0, atol=1e-12)


def test_the_gradient_goes_through_the_asked_ids() -> None:
    """As in plain forward passes, whatever the micro-batches."""
    batch = batches.batch()
    module = with_exact_norms(tiny_model(seed=1, dtype=torch.float64))
    loss, token = torch.zeros((), dtype=torch.float64), 0
    for sample in batch.samples:
        (row,) = sample.sequences
        places = [i for i, on in enumerate(row.mask) if on]
        table = plain(module, row.ids, places)
        for place, logp in zip(places, table, strict=True):
            asked = [(row.ids[place] + k) % 260 for k in range(3)]
            loss = loss - (NUMBERS + token) * logp[asked].sum() / batch.tokens
            token += 1
    loss.backward()
    expected = torch.cat([p.grad.flatten() for p in module.parameters()])

    for budget in (4096, 1):
        actual = gradient(trained(budget))
        assert float(expected.abs().max()) > 1e-3
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-9)


def test_a_column_of_another_length_is_refused() -> None:
    algorithm = ALGORITHMS["reinforce"].replace(
        advantage=numbered.configure(missing=1), objective=weighed
    )
    learner = Learner(tiny_model(), algorithm)
    tokens = batches.batch().tokens
    message = (
        rf"gave {tokens - 1} rows of 'number'; expected one per token that trains \({tokens}\)"
    )
    with pytest.raises(UsageError, match=message):
        learner.step(batches.batch())
