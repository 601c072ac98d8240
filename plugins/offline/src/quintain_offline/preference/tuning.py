"""Training on stored preferences: the losses of `dpo`, `dpo_norm`, `simpo` and `kto`, without
sampling.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from quintain import Algorithm
from quintain.errors import UsageError
from quintain.evaluation import proportion
from quintain.learning import Learner
from quintain.models import LoadedModel

from ..sft import EpochUpdate, TuningReport, by_epoch, orders
from .algorithms import DPO, KTO
from .stored import (
    EncodedPreference,
    Preference,
    by_prompt,
    encoded,
    label_batch,
    pair_batch,
)

WARMUP = 0.1
"""Share of the updates over which the learning rate rises, as in the published recipes of DPO."""
SHARING = 8
"""Rows of KTO that share a reference point. With their mismatched replies they are computed in one
pass, so a larger number, whose reference point is less biased (`kto`), needs more memory.
"""


@dataclass(frozen=True, kw_only=True)
class PreferenceReport(TuningReport):
    """The outcome of training on stored preferences.

    Attributes:
        loss: the algorithm whose loss was minimised.
        rows: that trained, each once per epoch; *left_out* are longer than the model's context.
        held_out: rows that did not train; no prompt of theirs did.
        measure: what the loss compares, in words with the unit.
        accuracy: share of the held-out pairs whose chosen reply has more of it, with its 95 %
            interval over prompts; ``None`` without pairs.
        separation: mean of it over wanted less unwanted held-out replies.
    """

    loss: str
    rows: int
    left_out: int
    held_out: int
    measure: str
    accuracy: tuple[float, float, float] | None
    separation: float | None


def tune(
    model: LoadedModel,
    rows: Sequence[Preference],
    algorithm: Algorithm,
    *,
    epochs: int = 1,
    lr: float = 1e-6,
    batch: int = 32,
    held_out: float = 0.1,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
    progress: Callable[[EpochUpdate], None] = lambda update: None,
    stop: Callable[[], bool] = lambda: False,
) -> tuple[Learner, PreferenceReport]:
    """Train *model* in place on *rows*; return the learner and the report.

    The learning rate rises over a tenth of the updates and falls linearly to 0. The reference is
    the model as it is before. Which rows are held out, and the order of the others, depend on
    *seed* alone.

    Args:
        algorithm: with an objective of whole groups; `kto` takes pairs as two labelled replies.
        batch: rows per update.
        held_out: share of the prompts that is not trained on.
        options: further arguments of `Learner`.
        progress: called after each update.
        stop: called before each update; true ends training.

    Raises:
        UsageError: there is nothing to train on, or a row without a pair for an algorithm of pairs.
    """
    began = time.monotonic()
    labels = algorithm.objective.name == KTO.objective.name
    single = sum(not row.pair for row in rows)
    if single and not labels:
        raise UsageError(
            f"{single} of {len(rows)} rows are no pairs, which {algorithm.name} compares; use "
            f"--loss kto"
        )
    kept, left_out = encoded(rows, model.tokenizer, model.context)
    training, apart = by_prompt(kept, held_out, seed)
    trained, tested = [kept[i] for i in training], [kept[i] for i in apart]
    prompts = list(dict.fromkeys(row.row.prompt for row in trained))
    if not trained:
        raise UsageError(
            f"none of {len(rows)} rows fits into the context of {model.context} tokens"
        )
    planned = epochs * -(-len(trained) // batch)
    settings = {"warmup_steps": round(WARMUP * planned), **(options or {})}
    learner = Learner(model.module, algorithm, lr=lr, **settings)
    rising = min(settings["warmup_steps"], planned - 1)

    def step(part: Sequence[int]) -> Mapping[str, float]:
        chosen = [trained[i] for i in part]
        if not labels:
            return learner.step(pair_batch(chosen))
        samples, values = label_batch(
            chosen, prompts, model.tokenizer, model.context, share=SHARING
        )
        return learner.step(samples, advantages=values)

    taken = by_epoch(
        learner,
        orders(len(trained), epochs=epochs, batch=batch, seed=seed, purpose="preference"),
        step,
        lr=lambda index: lr * min(1.0, (planned - index) / (planned - rising)),
        planned=planned,
        epochs=epochs,
        progress=progress,
        stop=stop,
    )
    done = sum(map(len, taken))
    accuracy, separation = gains(learner, tested)
    return learner, PreferenceReport(
        loss=algorithm.name,
        model=model.path,
        rows=len(trained),
        left_out=left_out,
        held_out=len(tested),
        updates=done,
        losses=tuple(fmean(update.loss for update in epoch) for epoch in taken if epoch),
        measure=measure_of(algorithm).text,
        accuracy=accuracy,
        separation=separation,
        finished=done == planned,
        seed=seed,
        lr=lr,
        parameters=model.parameters,
        seconds=time.monotonic() - began,
    )


def gains(
    learner: Learner, rows: Sequence[EncodedPreference]
) -> tuple[tuple[float, float, float] | None, float | None]:
    """Compare wanted and unwanted replies by what the loss of *learner* compares (`measure_of`).

    Returns:
        the share of pairs whose chosen reply has more, with its 95 % interval over prompts, and the
        mean of wanted less that of unwanted replies; ``None`` where there is nothing to compare.
    """
    if not rows:
        return None, None
    assert learner.algorithm is not None
    batch, measure = pair_batch(rows), measure_of(learner.algorithm)
    logp_N = learner.logprobs(batch)
    if measure.against_reference:
        logp_N = logp_N - learner.logprobs(batch, policy="ref")
    parts = logp_N.split([sample.tokens for sample in batch.samples])
    value = [float(part.mean() if measure.per_token else part.sum()) for part in parts]
    wanted = [v for v, sample in zip(value, batch.samples, strict=True) if sample.outcome]
    unwanted = [v for v, sample in zip(value, batch.samples, strict=True) if not sample.outcome]
    separation = (
        sum(wanted) / len(wanted) - sum(unwanted) / len(unwanted) if wanted and unwanted else None
    )
    right: dict[object, list[float]] = {}
    for indices, row in zip(batch.groups, rows, strict=True):
        if len(indices) == 2:
            right.setdefault(row.row.prompt, []).append(
                float(value[indices[0]] > value[indices[1]])
            )
    if not right:
        return None, separation
    share = proportion(
        [sum(verdicts) / len(verdicts) for verdicts in right.values()],
        [len(verdicts) for verdicts in right.values()],
    )
    return (share.value, share.low, share.high), separation


@dataclass(frozen=True)
class Measure:
    """What a loss compares: log-probs, less those under the reference or not, per token or summed
    over a reply.
    """

    against_reference: bool
    per_token: bool

    @property
    def text(self) -> str:
        """The measure and its unit in words."""
        what = "log-prob gained over the reference" if self.against_reference else "log-prob"
        return f"{what}, nats per token" if self.per_token else f"{what}, nats"


def measure_of(algorithm: Algorithm) -> Measure:
    """Return what the loss of *algorithm* compares."""
    summed = algorithm.objective.name in (DPO.objective.name, KTO.objective.name)
    return Measure(against_reference=algorithm.uses_reference, per_token=not summed)
