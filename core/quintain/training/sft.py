"""Supervised training: a start for reinforcement learning, or the distillation of a teacher's or a policy's rollouts.

The loss is that of the row ``sft``: -log theta, averaged over the tokens of an update's examples. Examples come from
`quintain.training.sft_sources`.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from ..errors import StorageError, UsageError
from ..learning.learner import Learner
from ..models.load import LoadedModel
from ..types.sampling import derived_seed
from ..types.transcript import TrainingSequence
from .checkpoint import save_model
from .runs import free_name
from .sft_sources import Example, Source, Tokens, examined, mixed, reasons

WARMUP = 0.03
"""Share of the updates over which the learning rate rises."""


@dataclass(frozen=True, kw_only=True)
class Update:
    """One update of many: *loss* in nats a token, *tokens* that trained, *lr* that it was made with."""

    number: int
    updates: int
    epoch: int
    epochs: int
    loss: float
    tokens: int
    lr: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """What supervised training came to.

    Attributes:
        examples: rows of tokens that trained, each once an epoch.
        thinking: how many of them keep a thought, where thinking was mixed.
        left_out: why others did not, and how many.
        losses: of each epoch, nats a token, as they were met: before the update on them.
        finished: false where it was stopped early.
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


@dataclass(frozen=True, kw_only=True)
class _Schedule:
    """Which rows an update sees, and at what learning rate."""

    rows: Sequence[Tokens]
    epochs: int
    batch: int
    lr: float
    seed: int

    @property
    def updates(self) -> int:
        return self.epochs * -(-len(self.rows) // self.batch)

    def batches(self) -> Iterator[tuple[int, list[TrainingSequence]]]:
        """Each with the number of its epoch."""
        for epoch in range(self.epochs):
            order = list(range(len(self.rows)))
            Random(derived_seed(self.seed, "sft", epoch)).shuffle(order)
            for at in range(0, len(order), self.batch):
                yield epoch, [self.rows[i].sequence() for i in order[at : at + self.batch]]


@dataclass(kw_only=True)
class _Tally:
    """Sums over the updates of each epoch."""

    loss: Counter[int] = field(default_factory=Counter)
    tokens: Counter[int] = field(default_factory=Counter)
    updates: int = 0

    def add(self, epoch: int, metrics: Mapping[str, float]) -> None:
        self.loss[epoch] += metrics["loss"] * metrics["tokens"]  # type: ignore[assignment]
        self.tokens[epoch] += int(metrics["tokens"])
        self.updates += 1


def tune(
    model: LoadedModel,
    source: Source,
    *,
    epochs: int = 3,
    lr: float = 1e-5,
    batch: int = 32,
    think: float | None = None,
    dedupe: bool = False,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
    progress: Callable[[Update], None] = lambda update: None,
    stop: Callable[[], bool] = lambda: False,
) -> tuple[Learner, Tuned]:
    """Train *model*, in place, to say what the examples of *source* say; the learner that did, and what it came to.

    The learning rate rises over 3 % of the updates and falls linearly to 0 at the end. The order of examples depends
    on *seed* alone.

    Args:
        epochs: passes over the examples.
        lr: the highest learning rate of AdamW.
        batch: rows an update.
        think: share of examples whose question ends in ``/think`` and which keep their thought, where they have one;
            the others get ``/no_think`` and an empty thought. ``None`` leaves all as they are.
        dedupe: of equal rows only the first.
        options: further arguments of `Learner`.
        progress: called after each update.
        stop: asked after each update; yes ends training.

    Raises:
        UsageError: nothing to train on, or thoughts are asked for where there are none.
        RunError: a gradient is not finite.
    """
    if epochs < 1 or batch < 1 or not lr > 0:
        raise UsageError(f"sft: epochs {epochs}, batch {batch}, lr {lr}; expected at least 1, at least 1, above 0")
    began = time.monotonic()
    examples, thinking = with_thoughts(source, think, seed)
    left_out = Counter(source.left_out)
    rows = list(examined(examples, model.codec, model.context, left_out, dedupe=dedupe))
    if not rows:
        raise UsageError(f"nothing in {source.name!r} is fit to train {model.path!r}: {reasons(left_out)}")
    schedule = _Schedule(rows=rows, epochs=epochs, batch=batch, lr=lr, seed=seed)
    given = {"warmup_steps": round(WARMUP * schedule.updates), **(options or {})}
    learner = Learner(model.module, lr=lr, **given)
    tally = _Tally()
    finished = _trained(learner, schedule, tally, progress, stop)
    return learner, Tuned(
        source=source.name,
        kind=source.kind,
        environment=source.environment,
        model=model.path,
        examples=len(rows),
        thinking=thinking,
        left_out=dict(left_out),
        epochs=epochs,
        updates=tally.updates,
        tokens=tally.tokens.total(),
        losses=tuple(tally.loss[e] / tally.tokens[e] for e in sorted(tally.tokens)),
        finished=finished,
        seed=seed,
        lr=lr,
        parameters=model.parameters,
        seconds=time.monotonic() - began,
    )


def with_thoughts(source: Source, share: float | None, seed: int) -> tuple[list[Example], int | None]:
    """The examples, each drawn to think with probability *share* where it has a thought; and how many do.

    Raises:
        UsageError: a share above 0 of examples without a single thought, or no share.
    """
    if share is None:
        return list(source.examples), None
    if not 0 <= share <= 1:
        raise UsageError(f"think is {share}; expected a share from 0 to 1")
    if share and not any(example.thinks for example in source.examples):
        raise UsageError(
            f"--think {share:g} keeps thoughts, but no example of {source.name!r} has one (<think>...</think> before "
            "the answer); use --think 0 for answers with an empty thought, or leave it out"
        )
    chosen = [
        example.thinks and Random(derived_seed(seed, "think", at)).random() < share
        for at, example in enumerate(source.examples)
    ]
    return [mixed(e, keep) for e, keep in zip(source.examples, chosen, strict=True)], sum(chosen)


def _trained(
    learner: Learner,
    schedule: _Schedule,
    tally: _Tally,
    progress: Callable[[Update], None],
    stop: Callable[[], bool],
) -> bool:
    """Whether all epochs were done."""
    for epoch, batch in schedule.batches():
        if stop():
            return False
        learner.lr = schedule.lr * (1 - tally.updates / schedule.updates)
        metrics = learner.supervised_step(batch)
        tally.add(epoch, metrics)
        progress(
            Update(
                number=tally.updates,
                updates=schedule.updates,
                epoch=epoch + 1,
                epochs=schedule.epochs,
                loss=metrics["loss"],
                tokens=int(metrics["tokens"]),
                lr=metrics["lr"],
                seconds=metrics["seconds"],
            )
        )
    return True


def save(folder: Path, learner: Learner, model: LoadedModel, report: Tuned) -> Path:
    """Write *folder* for ``from_pretrained``, `quintain train` and `quintain eval`; ``quintain.json`` holds *report*.

    Returns:
        *folder*; where something else was put there since it was found empty, a new one beside it: ``name-2`` for
        ``name-1``, ``name-1`` for ``name``.

    Raises:
        StorageError: it cannot be written.
    """
    place = folder
    while True:
        try:
            save_model(place, learner, model.codec, {"sft": report.to_json()})
            return place
        except StorageError:
            if not filled(place):
                raise
        place = new_folder(folder.parent, re.sub(r"-\d+\Z", "", folder.name))


def filled(path: Path) -> bool:
    """Whether there is something at *path* that a model must not replace: a file, or a folder that is not empty."""
    return path.is_file() or (path.is_dir() and any(path.iterdir()))


def new_folder(parent: Path, stem: str) -> Path:
    """Make ``stem-1``, ``stem-2``, ... in *parent*: the first that nobody has, nor takes at the same moment."""
    while True:
        path = parent / free_name(parent, stem)
        try:
            path.mkdir()
            return path
        except FileExistsError:
            continue
