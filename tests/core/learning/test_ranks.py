"""Ranks in threads of one process: what the learner shares among them and adds up."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor, nn

from quintain.interfaces.algorithm import KL, Algorithm
from quintain.learning import ALGORITHMS, Batch, Learner, Ranks

from ..models.tiny import tiny_model
from . import batches
from .algorithms import INSTALLED

T = TypeVar("T")
COUNT = 3


class Board:
    """What the ranks of a test write for one another."""

    def __init__(self) -> None:
        self.barrier = Barrier(COUNT)
        self.values: list[Any] = [None] * COUNT


class ThreadRanks(Ranks):
    """A rank that is a thread. All compute on modules of their own."""

    count = COUNT

    def __init__(self, rank: int, board: Board, *, lockstep: bool) -> None:
        self.rank, self.lockstep, self._board = rank, lockstep, board
        self.passes: list[int] = []

    def share(self, costs: Sequence[int]) -> list[list[int]]:
        """The last rank gets nothing, so that it takes part without a sample."""
        places = range(len(costs))
        return [[k for k in places if k % 2 == 0], [k for k in places if k % 2], []]

    def gather(self, value: T) -> list[T]:
        self._board.values[self.rank] = value
        self._board.barrier.wait(timeout=60)
        values = list(self._board.values)
        self._board.barrier.wait(timeout=60)
        return values

    def sum(self, tensor: Tensor) -> Tensor:
        first, *others = self.gather(tensor)
        total = first.clone()
        for other in others:
            total += other
        return total

    def sum_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        for parameter in parameters:
            assert parameter.grad is not None
            parameter.grad = self.sum(parameter.grad)


def learner(algorithm: Algorithm, ranks: Ranks) -> Learner:
    module = tiny_model(
        "qwen3", vocab=24, hidden=16, spread=0.4, dtype=torch.float64, pad_token_id=None
    )
    return Learner(module, algorithm, lr=1e-3, token_budget=25, ranks=ranks)


def batch() -> Batch:
    return batches.batch(groups=4, group_size=3, vocab=24, longest=7, rewards=[0.0, 1.0, 0.3])


def trained(one: Learner) -> tuple[list[dict[str, float]], list[Tensor], Tensor]:
    metrics = [one.step(batch()) for _ in range(2)]
    for values in metrics:
        del values["seconds"]
    supervised = one.supervised_step([s for x in batch().samples for s in x.sequences])
    metrics.append({name: supervised[name] for name in ("loss", "entropy", "grad_norm")})
    return metrics, [p.detach() for p in one.parameters], one.logprobs(batch())


CASES = {"grpo": ALGORITHMS["grpo"].replace(epochs=2, minibatches=2)}
if "dvp" in INSTALLED:  # `quintain-algorithms` is installed
    CASES["pruned"] = INSTALLED["dvp"].replace(
        prune=0.05, kl=KL(where="loss", estimator="k2", coefficient=0.1), epochs=2
    )
    CASES["top"] = INSTALLED["dr_grpo"].replace(
        name="top", objective={"use": "dppo_top", "delta": 0.01, "top": 3}
    )


@pytest.mark.keeps("top-True")
@pytest.mark.parametrize("lockstep", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_ranks_train_as_one(name: str, lockstep: bool) -> None:
    """Weights, metrics and log-probs of three ranks, one of them without a sample, are those of
    one process; all ranks have the same.
    """
    expected = trained(learner(CASES[name], Ranks()))
    board = Board()
    learners = [
        learner(CASES[name], ThreadRanks(rank, board, lockstep=lockstep)) for rank in range(COUNT)
    ]
    with ThreadPoolExecutor(COUNT) as pool:
        for metrics, weights, logps in pool.map(trained, learners):
            for got, want in zip(metrics, expected[0], strict=True):
                assert got == pytest.approx(want, rel=1e-10, abs=1e-12)
            for actual, wanted in zip(weights, expected[1], strict=True):
                torch.testing.assert_close(actual, wanted, rtol=0, atol=1e-10)
            torch.testing.assert_close(logps, expected[2], rtol=0, atol=1e-10)


def test_ranks_in_lockstep_make_as_many_passes() -> None:
    """One with fewer micro-batches repeats the cheapest for nothing; else one without any makes one
    pass.
    """

    def passes(lockstep: bool) -> list[list[bool]]:
        one = learner(ALGORITHMS["dr_grpo"], Ranks())
        prepared = one.prepare(batch())
        found = []
        for rank in range(COUNT):
            one.scorer.ranks = ThreadRanks(rank, Board(), lockstep=lockstep)
            parts = one.scorer.micro_batches(prepared.step.batch, range(len(batch().samples)))
            found.append([micro.padding for micro in parts])
        return found

    first, second, last = passes(lockstep=True)
    assert len(first) == len(second) == len(last) > 1
    assert not all(first)
    assert all(last)
    assert passes(lockstep=False)[2] == [True]
