"""The training loop on stored examples: one update per batch."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest
import torch
from tests.core.models.tiny import tiny_model

from quintain.learning import Learner, TrainingSequence
from quintain_offline.sft.supervised import EpochUpdate, by_epoch, orders


def sequence(*ids: int) -> TrainingSequence:
    n = len(ids)
    mask = (False,) * (n - 2) + (True,) * 2
    return TrainingSequence(ids=ids, mask=mask, logps=(0.0,) * n, versions=(-1,) * n)


BATCHES = [[sequence(5, 6, 7, 8)], [sequence(1, 2, 3), sequence(4, 5, 6)], [sequence(9, 8, 7)]]


def tuned(learner: Learner, batches: Iterator[list[TrainingSequence]], last: int = 9) -> list[Any]:
    """Train on *batches* in one epoch, until update *last*; return the updates."""
    seen: list[EpochUpdate] = []
    (taken,) = by_epoch(
        learner,
        batches,
        learner.supervised_step,
        lr=lambda index: 1e-2 / (index + 1),
        planned=len(BATCHES),
        epochs=1,
        progress=seen.append,
        stop=lambda: len(seen) == last,
    )
    assert taken == seen
    return taken


def test_each_batch_is_one_step() -> None:
    """The weights are those of the learner's own steps at the same rates; the warm-up scales what
    *lr* says.
    """
    by_loop, by_hand = (Learner(tiny_model(), lr=1e-2, warmup_steps=2) for _ in range(2))

    updates = tuned(by_loop, iter(BATCHES))

    assert [u.number for u in updates] == [1, 2, 3]
    assert [u.tokens for u in updates] == [2, 4, 2]
    assert pytest.approx([u.lr for u in updates]) == [0.5e-2, 1e-2 / 2, 1e-2 / 3]
    for index, (batch, update) in enumerate(zip(BATCHES, updates, strict=True)):
        by_hand.lr = 1e-2 / (index + 1)
        assert by_hand.supervised_step(batch)["loss"] == update.loss
    for one, other in zip(by_loop.module.parameters(), by_hand.module.parameters(), strict=True):
        assert torch.equal(one, other)


def test_stop_ends_between_two_updates() -> None:
    """No update is under way, and none follows."""
    learner = Learner(tiny_model(), lr=1e-2)

    assert len(tuned(learner, iter(BATCHES), last=2)) == 2
    assert learner.updates == 2


def test_updates_are_told_apart_by_epoch() -> None:
    """Of four updates in two epochs, two belong to each."""
    learner, seen = Learner(tiny_model(), lr=1e-2), list[EpochUpdate]()
    taken = by_epoch(
        learner,
        BATCHES[:2] * 2,
        learner.supervised_step,
        lr=lambda index: 1e-2,
        planned=4,
        epochs=2,
        progress=seen.append,
        stop=lambda: False,
    )
    assert [[(u.number, u.epoch) for u in epoch] for epoch in taken] == [
        [(1, 1), (2, 1)],
        [(3, 2), (4, 2)],
    ]


def test_every_row_trains_once_per_epoch_and_the_order_depends_on_the_seed() -> None:
    two = list(orders(5, epochs=2, batch=2, seed=3, purpose="test"))

    assert [len(part) for part in two] == [2, 2, 1] * 2
    assert sorted(chain(*two[:3])) == sorted(chain(*two[3:])) == list(range(5))
    assert two == list(orders(5, epochs=2, batch=2, seed=3, purpose="test"))
    assert two != list(orders(5, epochs=2, batch=2, seed=4, purpose="test"))
    assert two != list(orders(5, epochs=2, batch=2, seed=3, purpose="other"))
