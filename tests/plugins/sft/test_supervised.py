"""The supervised training loop: one update per batch, and the caller decides between two."""

from __future__ import annotations

import pytest
import torch
from tests.core.models.tiny import tiny_model

from quintain.learning import Learner, TrainingSequence
from quintain_sft.supervised import supervised_updates


def sequence(*ids: int) -> TrainingSequence:
    n = len(ids)
    mask = (False,) * (n - 2) + (True,) * 2
    return TrainingSequence(ids=ids, mask=mask, logps=(0.0,) * n, versions=(-1,) * n)


BATCHES = [[sequence(5, 6, 7, 8)], [sequence(1, 2, 3), sequence(4, 5, 6)], [sequence(9, 8, 7)]]


def test_each_batch_is_one_supervised_step() -> None:
    """The weights are those of the learner's own steps at the same rates; the warm-up scales what
    *lr* says.
    """
    by_loop, by_hand = (Learner(tiny_model(), lr=1e-2, warmup_steps=2) for _ in range(2))

    updates = list(supervised_updates(by_loop, BATCHES, lr=lambda index: 1e-2 / (index + 1)))

    assert [u.number for u in updates] == [1, 2, 3]
    assert [u.tokens for u in updates] == [2, 4, 2]
    assert pytest.approx([u.lr for u in updates]) == [0.5e-2, 1e-2 / 2, 1e-2 / 3]
    for index, (batch, update) in enumerate(zip(BATCHES, updates, strict=True)):
        by_hand.lr = 1e-2 / (index + 1)
        assert by_hand.supervised_step(batch)["loss"] == update.loss
    for one, other in zip(by_loop.module.parameters(), by_hand.module.parameters(), strict=True):
        assert torch.equal(one, other)


def test_leaving_the_loop_stops_between_two_updates() -> None:
    """No further batch is drawn, and no update is under way."""
    learner, drawn = Learner(tiny_model(), lr=1e-2), iter(BATCHES)

    for update in supervised_updates(learner, drawn, lr=lambda index: 1e-2):
        if update.number == 2:
            break

    assert learner.updates == 2
    assert [BATCHES[2]] == list(drawn)
