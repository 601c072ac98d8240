"""Supervised fine-tuning: a warm start for reinforcement learning, or the distillation of rollouts.

The loss is that of the algorithm ``sft``: -log theta, averaged over the tokens of an update's
examples. Examples come from `quintain_sft.sources`.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from quintain.errors import StorageError, UsageError
from quintain.learning import Learner, TrainingSequence
from quintain.models import LoadedModel
from quintain.store import free_name, save_model
from quintain.types import derived_seed

from .example import Example, Tokens
from .sources import ExampleSource, examined, mixed, reasons
from .supervised import SupervisedUpdate, supervised_updates

WARMUP = 0.03
"""Share of the updates over which the learning rate rises."""


@dataclass(frozen=True, kw_only=True)
class EpochUpdate(SupervisedUpdate):
    """One of *updates* updates, in epoch *epoch* (from 1) of *epochs*."""

    updates: int
    epoch: int
    epochs: int


@dataclass(frozen=True, kw_only=True)
class SFTReport:
    """The outcome of supervised fine-tuning.

    Attributes:
        examples: token sequences that trained, each once per epoch.
        thinking: how many examples keep a thought; ``None`` where --think was not given.
        left_out: number of examples that did not train, by reason.
        losses: of each epoch, in nats per token, each measured before the update on its tokens.
        finished: false where training was stopped early.
    """

    source: str
    kind: str
    environment: str
    model: str
    examples: int
    thinking: int | None
    left_out: Mapping[str, int]
    epochs: int
    updates: int
    tokens: int
    losses: tuple[float, ...]
    finished: bool
    seed: int
    lr: float
    parameters: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


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
    left_out = Counter(source.left_out)
    rows = list(examined(examples, model.tokenizer, model.context, left_out, dedupe=dedupe))
    if not rows:
        raise UsageError(
            f"nothing in {source.name!r} is fit to train {model.path!r}: {reasons(left_out)}"
        )
    per_epoch = -(-len(rows) // batch)
    planned = epochs * per_epoch
    learner = Learner(
        model.module, lr=lr, **{"warmup_steps": round(WARMUP * planned), **(options or {})}
    )
    updates = supervised_updates(
        learner,
        _batches(rows, epochs=epochs, batch=batch, seed=seed),
        lr=lambda index: lr * (1 - index / planned),
    )
    done, tokens, loss_sums = 0, [0] * epochs, [0.0] * epochs
    while not stop() and (update := next(updates, None)) is not None:
        done = update.number
        epoch = (done - 1) // per_epoch
        tokens[epoch] += update.tokens
        loss_sums[epoch] += update.loss * update.tokens
        progress(EpochUpdate(**vars(update), updates=planned, epoch=epoch + 1, epochs=epochs))
    return learner, SFTReport(
        source=source.name,
        kind=source.kind,
        environment=source.environment,
        model=model.path,
        examples=len(rows),
        thinking=thinking,
        left_out=dict(left_out),
        epochs=epochs,
        updates=done,
        tokens=sum(tokens),
        losses=tuple(
            total / count for total, count in zip(loss_sums, tokens, strict=True) if count
        ),
        finished=done == planned,
        seed=seed,
        lr=lr,
        parameters=model.parameters,
        seconds=time.monotonic() - began,
    )


def _batches(
    rows: Sequence[Tokens], *, epochs: int, batch: int, seed: int
) -> Iterator[list[TrainingSequence]]:
    """Yield all rows once per epoch, in an order that depends on *seed* and the epoch alone."""
    for epoch in range(epochs):
        order = list(range(len(rows)))
        Random(derived_seed(seed, "sft", epoch)).shuffle(order)
        for start in range(0, len(order), batch):
            yield [rows[i].sequence() for i in order[start : start + batch]]


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


def save(folder: Path, learner: Learner, model: LoadedModel, report: SFTReport) -> Path:
    """Write a model *folder* in Hugging Face format; its ``quintain.json`` holds *report*.

    Returns:
        *folder*, or a new folder beside it where another process has filled it meanwhile:
        ``name-2`` for ``name-1``, ``name-1`` for ``name``.

    Raises:
        StorageError: it cannot be written.
    """
    place = folder
    while True:
        try:
            save_model(place, learner, model.tokenizer, {"sft": report.to_json()})
            return place
        except StorageError:
            if not filled(place):
                raise
        place = new_folder(folder.parent, re.sub(r"-\d+\Z", "", folder.name))


def filled(path: Path) -> bool:
    """Return whether *path* is a file or a folder that is not empty, which a model must not
    replace.
    """
    return path.is_file() or (path.is_dir() and any(path.iterdir()))


def new_folder(parent: Path, stem: str) -> Path:
    """Make the first free folder of ``stem-1``, ``stem-2``, ... in *parent*, also where others do
    so at the moment.
    """
    while True:
        path = parent / free_name(parent, stem)
        try:
            path.mkdir()
            return path
        except FileExistsError:
            continue
