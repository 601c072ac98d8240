"""Off-policy distillation: a teacher's distributions over stored tokens, which nobody samples
again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quintain import Algorithm
from quintain.learning import Batch, Learner, Sample
from quintain.models import LoadedModel

from ..sft import (
    WARMUP,
    EpochUpdate,
    ExampleSource,
    TuningReport,
    by_epoch,
    fit_rows,
    losses_of,
    orders,
)
from .algorithms import GKD
from .teacher import Teacher


@dataclass(frozen=True, kw_only=True)
class DistillReport(TuningReport):
    """The outcome of distillation on stored tokens; its losses are divergences in nats per token.

    Attributes:
        rows: token sequences that trained, each once per epoch.
        left_out: number of examples that did not train, by reason.
        computed, reused: rows that the teacher scored, and that it had scored before.
        teacher_seconds: that this took.
    """

    source: str
    rows: int
    left_out: Mapping[str, int]
    computed: int
    reused: int
    teacher_seconds: float


def tune(
    model: LoadedModel,
    source: ExampleSource,
    teacher: Teacher,
    *,
    algorithm: Algorithm = GKD,
    epochs: int = 1,
    lr: float = 1e-5,
    batch: int = 32,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
    progress: Callable[[EpochUpdate], None] = lambda update: None,
    stop: Callable[[], bool] = lambda: False,
) -> tuple[Learner, DistillReport]:
    """Train *model* in place to the distributions of *teacher* at the reply tokens of *source*.

    The learning rate rises over 3 % of the updates and falls linearly to 0. In later epochs the
    teacher's cache answers, as far as it reaches.

    Args:
        teacher: not started yet; it is started and stopped here.
        algorithm: `GKD` with its settings.
        epochs: passes over the rows.
        lr: the highest learning rate of AdamW.
        batch: rows per update.
        options: further arguments of `Learner`.
        progress: called after each update.
        stop: called before each update; true ends training.

    Raises:
        UsageError: there is nothing to train on, or the teacher does not fit the model.
    """
    began = time.monotonic()
    rows, left_out = fit_rows(source, model)
    planned = epochs * -(-len(rows) // batch)
    settings = {"warmup_steps": round(WARMUP * planned), **(options or {})}
    learner = Learner(model.module, algorithm, lr=lr, **settings)
    with asyncio.Runner() as runner:  # one loop, which the connections of a server belong to
        started = runner.run(teacher.__aenter__())
        try:
            learner.serve({"teacher": started})

            def step(part: Sequence[int]) -> Mapping[str, float]:
                samples = tuple(
                    Sample(sequences=(rows[i].sequence(),), outcome=0.0, group=i) for i in part
                )
                prepared = learner.prepare(Batch(samples=samples))
                advantages = runner.run(learner.compute_advantages(prepared))
                return learner.step(prepared, advantages=advantages)

            taken = by_epoch(
                learner,
                orders(len(rows), epochs=epochs, batch=batch, seed=seed, purpose="distill"),
                step,
                lr=lambda index: lr * (1 - index / planned),
                planned=planned,
                epochs=epochs,
                progress=progress,
                stop=stop,
            )
        finally:
            runner.run(teacher.__aexit__(None, None, None))
    done = sum(map(len, taken))
    return learner, DistillReport(
        source=source.name,
        model=model.path,
        rows=len(rows),
        left_out=left_out,
        computed=teacher.computed,
        reused=teacher.reused,
        teacher_seconds=teacher.seconds,
        updates=done,
        losses=losses_of(taken),
        finished=done == planned,
        seed=seed,
        lr=lr,
        parameters=model.parameters,
        seconds=time.monotonic() - began,
    )
