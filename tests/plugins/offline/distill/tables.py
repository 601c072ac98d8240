"""A two-layer transformer in float64 as the policy, another one as the teacher, and what both say
after every context: tables from plain forward passes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from quintain import Algorithm
from quintain.learning import Batch, Learner
from quintain_offline.distill import Teacher, TeacherRow, TeacherScore

from ....core.learning.exact.policies import Array, log_softmax
from ....core.learning.exact.test_transformer import (
    OPTIONS,
    TEMPERATURE,
    fresh,
    logits,
    model,
)


class PlainTeacher(Teacher):
    """One forward pass of the whole module for each row."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module

    async def compute(
        self, rows: Sequence[TeacherRow], temperature: float, top: int | None
    ) -> list[TeacherScore]:
        scores = []
        for row in rows:
            with torch.no_grad():
                table = self.module(input_ids=torch.tensor([row.ids])).logits[0] / temperature
            logp = table.log_softmax(-1)[[p - 1 for p in row.positions]]
            own = logp.gather(1, torch.tensor([[row.ids[p]] for p in row.positions]))[:, 0]
            values, ids = logp.topk(top, dim=1) if top else (logp, None)
            scores.append(
                TeacherScore(
                    logp=own,
                    top_logp=None if top is None else values,
                    top_ids=ids,
                )
            )
        return scores


def teacher() -> PlainTeacher:
    """The model number 2."""
    return PlainTeacher(model(2))


def teacher_table() -> Array:
    """Log-probs of the teacher after every context, [places, vocabulary]."""
    with torch.no_grad():
        return log_softmax(np.asarray(logits(model(2))))


def learner_of(algorithm: Algorithm, **options: Any) -> tuple[Learner, list[Array]]:
    """A learner of the model number 0 whose updates' gradients are noted down."""
    learner = Learner(fresh(0), algorithm, **(OPTIONS | options))
    learner.serve({"teacher": teacher()})
    found: list[Array] = []

    def note(optimizer: Any, *_: Any) -> None:
        parts = [p.grad.flatten() for p in learner.module.parameters()]  # type: ignore[union-attr]
        found.append(torch.cat(parts).numpy().copy())

    learner._optimizer.register_step_pre_hook(note)
    return learner, found


def step(learner: Learner, batch: Batch) -> dict[str, float]:
    """One step of the learner, as a run takes it."""
    prepared = learner.prepare(batch)
    advantages = asyncio.run(learner.compute_advantages(prepared))
    return learner.step(prepared, advantages=advantages)


__all__ = [
    "TEMPERATURE",
    "PlainTeacher",
    "learner_of",
    "step",
    "teacher",
    "teacher_table",
]
