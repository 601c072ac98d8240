"""Trains a reward model on preference pairs, with held-out accuracy and calibration; a stopped
training continues.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import torch

from quintain.errors import RewardFault, RunError, UsageError
from quintain.store import storage_errors
from quintain.types import derived_seed

from .loss import PairMetrics, bradley_terry_loss
from .pairs import PreferencePair
from .scoring_model import ScoreStatistics, ScoringModel

STATE = "training.pt"
"""The file of a stopped training beside its model: the optimizer and the position."""
WARMUP = 0.05
"""Share of the updates over which the learning rate rises."""


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """How a reward model trains.

    Attributes:
        epochs: passes over the pairs.
        lr: highest learning rate of AdamW, which falls linearly to 0.
        batch: pairs per update.
        micro_batch: pairs per forward pass; the gradient does not depend on it.
        margin: added to the margin of each pair.
        centering: factor of (r_c + r_r)^2.
        max_length: longest conversation in tokens; 0 is the context of the model.
        max_grad_norm: bound on the norm of the gradient.
        seed: of the order of pairs.
    """

    epochs: int = 1
    lr: float = 1e-5
    batch: int = 32
    micro_batch: int = 16
    margin: float = 0.0
    centering: float = 0.0
    max_length: int = 0
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if (
            min(self.epochs, self.batch, self.micro_batch) < 1
            or not self.lr > 0
            or self.centering < 0
        ):
            raise UsageError(
                f"epochs {self.epochs}, batch {self.batch}, micro-batch {self.micro_batch}, lr "
                f"{self.lr}, centering {self.centering}; expected at least 1, 1 and 1, above 0, at "
                "least 0"
            )


@dataclass(frozen=True, kw_only=True)
class Update:
    """One of *updates* optimizer steps: the mean *loss* of its pairs before it, and the share
    ranked right.
    """

    number: int
    updates: int
    epoch: int
    loss: float
    accuracy: float
    lr: float


@dataclass(frozen=True, kw_only=True)
class TrainingReport:
    """The outcome of a training.

    Attributes:
        pairs: that trained.
        left_out: pairs with a conversation too long for the model, also of the held-out ones.
        losses: of each complete epoch, in nats per pair, each measured before the update on its
            pairs.
        held_out: metrics of the held-out pairs at the end; ``None`` without any.
        before: the same before the first update.
        finished: false where training was stopped early.
    """

    model: str
    pairs: int
    left_out: int
    updates: int
    losses: tuple[float, ...]
    before: PairMetrics | None
    held_out: PairMetrics | None
    finished: bool
    settings: TrainingSettings
    parameters: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


class EncodedPair(NamedTuple):
    """A pair as token ids."""

    chosen: list[int]
    rejected: list[int]
    margin: float
    prompt: str = ""
    """Hash of the prompt."""


@dataclass(kw_only=True)
class RewardTraining:
    """The training of *model* on *pairs*; `run` takes updates until it is done or stopped, `save`
    writes a folder.

    Raises:
        UsageError: no pair fits the model.
    """

    model: ScoringModel
    pairs: Sequence[PreferencePair]
    held_out: Sequence[PreferencePair]
    settings: TrainingSettings
    done: int = 0
    before: PairMetrics | None = None
    losses: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        everything = len(self.pairs) + len(self.held_out)
        self.rows, self.held_rows = self._encoded(self.pairs), self._encoded(self.held_out)
        self.left_out = everything - len(self.rows) - len(self.held_rows)
        if not self.rows:
            raise UsageError(
                f"none of {len(self.pairs)} pairs fits {self.model.path!r}, whose context is "
                f"{self.model.context} tokens (max_length {self.settings.max_length}); use a model "
                "with a longer one"
            )
        s = self.settings
        parameters = [p for p in self.model.module.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(parameters, lr=s.lr, weight_decay=s.weight_decay)
        self.updates = s.epochs * -(-len(self.rows) // s.batch)
        self.seconds = 0.0

    @property
    def finished(self) -> bool:
        """Whether all updates are done."""
        return self.done >= self.updates

    def run(
        self,
        *,
        progress: Callable[[Update], None] = lambda update: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> TrainingReport:
        """Take the remaining updates.

        Args:
            progress: called after each update.
            stop: called before each update; true ends training.

        Raises:
            RunError: a loss or gradient is not finite.
        """
        began = time.monotonic()
        if self.before is None and self.held_rows:
            self.before = self.metrics()
        per_epoch = -(-len(self.rows) // self.settings.batch)
        order: list[int] = []
        while not self.finished and not stop():
            epoch, batch_index = divmod(self.done, per_epoch)
            if not order or batch_index == 0:
                order = list(range(len(self.rows)))
                Random(derived_seed(self.settings.seed, "pairs", epoch)).shuffle(order)
            rows = [
                self.rows[i]
                for i in order[
                    batch_index * self.settings.batch : (batch_index + 1) * self.settings.batch
                ]
            ]
            progress(self._update(rows, epoch))
        self.seconds += time.monotonic() - began
        complete = [
            self.losses[e * per_epoch : (e + 1) * per_epoch]
            for e in range(len(self.losses) // per_epoch)
        ]
        return TrainingReport(
            model=self.model.path,
            pairs=len(self.rows),
            left_out=self.left_out,
            updates=self.done,
            losses=tuple(math.fsum(epoch_losses) / per_epoch for epoch_losses in complete),
            before=self.before,
            held_out=self.metrics() if self.held_rows else None,
            finished=self.finished,
            settings=self.settings,
            parameters=sum(p.numel() for p in self.model.module.parameters()),
            seconds=self.seconds,
        )

    def _update(self, rows: Sequence[EncodedPair], epoch: int) -> Update:
        s = self.settings
        warmup = max(1, round(WARMUP * self.updates))
        lr = s.lr * min((self.done + 1) / warmup, (self.updates - self.done) / self.updates)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.zero_grad(set_to_none=True)
        loss, right = pair_gradients(
            self.model, rows, micro_batch=s.micro_batch, margin=s.margin, centering=s.centering
        )
        norm = torch.nn.utils.clip_grad_norm_(self.model.module.parameters(), s.max_grad_norm)
        if not (math.isfinite(loss) and bool(torch.isfinite(norm))):
            raise RunError(
                f"update {self.done + 1}: the loss is {loss} and the norm of the gradient "
                f"{float(norm)}; lower --lr"
            )
        self.optimizer.step()
        self.done += 1
        self.losses.append(loss)
        return Update(
            number=self.done,
            updates=self.updates,
            epoch=epoch + 1,
            loss=loss,
            accuracy=right / len(rows),
            lr=lr,
        )

    def metrics(self) -> PairMetrics:
        """Return the metrics of the held-out pairs now.

        Raises:
            RunError: a score is not finite.
        """
        chosen, rejected = self._held_scores()
        if not all(map(math.isfinite, (*chosen, *rejected))):
            raise RunError(
                f"after update {self.done}: scores of held-out pairs are not finite; lower --lr"
            )
        differences = [c - r for c, r in zip(chosen, rejected, strict=True)]
        return PairMetrics.of(differences, [row.prompt for row in self.held_rows or self.rows])

    def _held_scores(self) -> tuple[list[float], list[float]]:
        rows = self.held_rows or self.rows
        scores = self.model.scores([ids for row in rows for ids in (row.chosen, row.rejected)])
        return scores[::2], scores[1::2]

    def _encoded(self, pairs: Sequence[PreferencePair]) -> list[EncodedPair]:
        rows = []
        for pair in pairs:
            try:
                texts = [
                    self.model.encode(text, self.settings.max_length)
                    for text in (pair.chosen, pair.rejected)
                ]
            except RewardFault:  # too long: counted as left out
                continue
            rows.append(EncodedPair(texts[0], texts[1], pair.margin, pair.key))
        return rows

    # ---------------------------------------------------------------- the folder
    @property
    def digest(self) -> str:
        """A hash of what a resumed training must have in common with the first part: the pairs and
        the settings.
        """
        data = [self.rows, self.held_rows, {**asdict(self.settings), "micro_batch": 0}]
        return hashlib.sha256(json.dumps(data).encode()).hexdigest()

    def save(self, folder: Path, report: TrainingReport) -> None:
        """Write the model as a Hugging Face folder, with the statistics of its scores on held-out
        pairs (of the training pairs if none are held out) and the report as ``quintain.json``;
        replaces what a stopped training left.

        A training that is not finished leaves the file `STATE` for `restore`.

        Raises:
            StorageError: it cannot be written; the folder is as it was.
        """
        beside = folder.with_name(f".{folder.name}.{os.getpid()}")
        try:
            with storage_errors(folder):
                beside.mkdir(parents=True)
                self.model.module.save_pretrained(beside)
                self.model.tokenizer.save_pretrained(beside)
                (beside / "quintain.json").write_text(
                    json.dumps({"reward_model": report.to_json()}, indent=1) + "\n",
                    encoding="utf-8",
                )
                chosen, rejected = self._held_scores()
                source = f"{len(chosen)} {'held-out' if self.held_rows else 'training'} pairs"
                if len(set(chosen + rejected)) > 1:
                    ScoreStatistics.of([*chosen, *rejected], source).write(beside)
                if not self.finished:
                    torch.save(self._state(), beside / STATE)
                if folder.is_dir():
                    shutil.rmtree(folder)
                beside.rename(folder)
        finally:
            shutil.rmtree(beside, ignore_errors=True)

    def _state(self) -> dict[str, Any]:
        return {
            "digest": self.digest,
            "done": self.done,
            "losses": self.losses,
            "before": asdict(self.before) if self.before else None,
            "seconds": self.seconds,
            "optimizer": self.optimizer.state_dict(),
        }

    def restore(self, folder: Path) -> None:
        """Continue a stopped training whose model was loaded from *folder*.

        Raises:
            UsageError: the training there is finished, damaged, or was of other pairs or settings.
        """
        path = folder / STATE
        if not path.is_file():
            raise UsageError(
                f"{folder} has no {STATE}: its training is finished, or it is no folder of a "
                f"reward model"
            )
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
            digest = state["digest"]
        except Exception as error:  # pickle, zip and torch each raise their own
            raise UsageError(
                f"{path} is damaged ({error}); train again into a new folder"
            ) from error
        if digest != self.digest:
            raise UsageError(
                f"{folder} was trained on other pairs or with other settings; give those of the "
                "first command, or train again into a new folder"
            )
        self.done = state["done"]
        self.losses = list(state["losses"])
        self.seconds = state["seconds"]
        self.before = PairMetrics(**state["before"]) if state["before"] else None
        self.optimizer.load_state_dict(state["optimizer"])


def pair_gradients(
    model: ScoringModel,
    rows: Sequence[EncodedPair],
    *,
    micro_batch: int = 16,
    margin: float = 0.0,
    centering: float = 0.0,
) -> tuple[float, float]:
    """Add the gradient of the mean loss of *rows* to the parameters; it does not depend on
    *micro_batch*.

    Returns:
        The mean loss in nats, and the number of pairs ranked right, ties as half.
    """
    total, right = 0.0, 0.0
    for start in range(0, len(rows), micro_batch):
        part = rows[start : start + micro_batch]
        scores = model.logits([*(row.chosen for row in part), *(row.rejected for row in part)])
        chosen, rejected = scores[: len(part)], scores[len(part) :]
        margins = torch.tensor(
            [row.margin + margin for row in part], dtype=scores.dtype, device=scores.device
        )
        loss = bradley_terry_loss(chosen, rejected, margins, centering).sum() / len(rows)
        loss.backward()  # type: ignore[no-untyped-call]
        total += float(loss.detach())
        right += float(((chosen > rejected) + 0.5 * (chosen == rejected)).sum())
    return total, right
