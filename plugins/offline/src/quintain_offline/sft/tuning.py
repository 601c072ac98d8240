"""Supervised fine-tuning: a warm start for reinforcement learning, or the distillation of rollouts.

The loss is that of the algorithm ``sft``: -log theta, averaged over the tokens of an update's
examples. Examples come from `quintain_offline.sft.sources`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from quintain.errors import UsageError
from quintain.learning import Learner
from quintain.models import LoadedModel
from quintain.types import derived_seed

from .example import Example
from .report import TuningReport
from .sources import ExampleSource, fit_rows, mixed
from .supervised import WARMUP, EpochUpdate, by_epoch, losses_of, orders


@dataclass(frozen=True, kw_only=True)
class SFTReport(TuningReport):
    """The outcome of supervised fine-tuning; its losses are in nats per token.

    Attributes:
        examples: token sequences that trained, each once per epoch.
        thinking: how many examples keep a thought; ``None`` where --think was not given.
        left_out: number of examples that did not train, by reason.
        tokens: that trained, each once per epoch.
    """

    source: str
    kind: str
    environment: str
    examples: int
    thinking: int | None
    left_out: Mapping[str, int]
    epochs: int
    tokens: int


def tune(
    model: LoadedModel,
    source: ExampleSource,
    *,
    epochs: int = 3,
    lr: float = 1e-5,
    batch: int = 32,
    think: float | None = None,
    dedupe: bool = False,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
    progress: Callable[[EpochUpdate], None] = lambda update: None,
    stop: Callable[[], bool] = lambda: False,
) -> tuple[Learner, SFTReport]:
    """Train *model* in place on the examples of *source*; return the learner and the report.

    The learning rate rises over 3 % of the updates and falls linearly to 0 at the end. The order of
    examples depends on *seed* alone.

    Args:
        epochs: passes over the examples.
        lr: the highest learning rate of AdamW.
        batch: token sequences per update.
        think: share of examples whose question ends in ``/think`` and which keep their thought,
            where they have one; the others get ``/no_think`` and an empty thought. ``None`` leaves
            all as they are.
        dedupe: train on the first of equal sequences only.
        options: further arguments of `Learner`.
        progress: called after each update.
        stop: called before each update; true ends training.

    Raises:
        UsageError: there is nothing to train on, or *think* keeps thoughts and no example has one.
        RunError: a gradient is not finite.
    """
    if epochs < 1 or batch < 1 or not lr > 0:
        raise UsageError(
            f"sft: epochs {epochs}, batch {batch}, lr {lr}; expected at least 1, at least 1, above "
            f"0"
        )
    began = time.monotonic()
    examples, thinking = with_thoughts(source, think, seed)
    rows, left_out = fit_rows(replace(source, examples=tuple(examples)), model, dedupe=dedupe)
    planned = epochs * -(-len(rows) // batch)
    learner = Learner(
        model.module, lr=lr, **{"warmup_steps": round(WARMUP * planned), **(options or {})}
    )
    taken = by_epoch(
        learner,
        (
            [rows[i].sequence() for i in part]
            for part in orders(len(rows), epochs=epochs, batch=batch, seed=seed, purpose="sft")
        ),
        learner.supervised_step,
        lr=lambda index: lr * (1 - index / planned),
        planned=planned,
        epochs=epochs,
        progress=progress,
        stop=stop,
    )
    done = sum(map(len, taken))
    return learner, SFTReport(
        source=source.name,
        kind=source.kind,
        environment=source.environment,
        model=model.path,
        examples=len(rows),
        thinking=thinking,
        left_out=left_out,
        epochs=epochs,
        updates=done,
        tokens=sum(update.tokens for epoch in taken for update in epoch),
        losses=losses_of(taken),
        finished=done == planned,
        seed=seed,
        lr=lr,
        parameters=model.parameters,
        seconds=time.monotonic() - began,
    )


def with_thoughts(
    source: ExampleSource, share: float | None, seed: int
) -> tuple[list[Example], int | None]:
    """Draw which examples keep their thought, each with probability *share*; return the examples
    and the number.

    Raises:
        UsageError: *share* is above 0 and no example has a thought, or it is not between 0 and 1.
    """
    if share is None:
        return list(source.examples), None
    if not 0 <= share <= 1:
        raise UsageError(f"think is {share}; expected a share from 0 to 1")
    if share and not any(example.thinks for example in source.examples):
        raise UsageError(
            f"--think {share:g} keeps thoughts, but no example of {source.name!r} has one "
            "(<think>...</think> before the answer); use --think 0 for answers with an empty "
            "thought, or leave it out"
        )
    chosen = [
        example.thinks and Random(derived_seed(seed, "think", index)).random() < share
        for index, example in enumerate(source.examples)
    ]
    return [mixed(e, keep) for e, keep in zip(source.examples, chosen, strict=True)], sum(chosen)
