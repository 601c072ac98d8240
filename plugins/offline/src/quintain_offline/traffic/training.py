"""One pass over rated replies: a policy gradient with truncated importance ratios, and imitation of
edited answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean
from typing import Any

from quintain import Algorithm
from quintain.errors import UsageError
from quintain.learning import (
    Batch,
    Learner,
    Sample,
    TrainingSequence,
    advantages,
    aggregation,
    corrections,
    group_filter,
    objectives,
)
from quintain.models import PICTURE, LoadedModel
from quintain.types import derived_seed

from ..sft import end_of_turn
from .records import RatedReply

TRAFFIC = Algorithm(
    name="traffic",
    summary="Score less the mean score; ratios to the sampler per token, cut at 2; no clip.",
    source="Williams 1992; Yao et al. 2025",
    advantage=advantages.batch_mean,
    objective=objectives.policy_gradient,
    correction=corrections.tis,
    aggregation=aggregation.sequence,
    group_filter=group_filter.minimum.configure(samples=1),
)


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What a round trained on.

    Attributes:
        updates: optimizer steps.
        scored, edited: replies with a score, and edited answers.
        too_long: rows that are longer than the context of the model.
        mean_score: of the scored replies; ``None`` without one.
        metrics: means of the learner's metrics over the steps on scored replies.
    """

    updates: int
    scored: int
    edited: int
    too_long: int
    mean_score: float | None
    metrics: dict[str, float]


def train(
    model: LoadedModel,
    rows: Sequence[RatedReply],
    *,
    version: int,
    lr: float,
    batch: int,
    seed: int,
    options: dict[str, Any] | None = None,
    progress: Callable[[int, int, str], None] = lambda number, total, text: None,
) -> tuple[Learner, Trained]:
    """Train *model* in place on *rows*, each once.

    The advantage of a scored reply is its score less the mean score of all. Replies of one
    temperature are in one batch, for it is part of the policy.

    Args:
        version: of the weights of *model*, from which staleness counts.
        batch: replies per update.
        options: further arguments of `Learner`.
        progress: called after each update with its number, the number of all, and a text.

    Raises:
        UsageError: no row fits the context of the model.
        RunError: a gradient is not finite.
    """
    learner = Learner(model.module, TRAFFIC, lr=lr, **(options or {}))
    learner.version = version
    end = end_of_turn(model.tokenizer)
    edits = [_edited(row, model.tokenizer, end) for row in rows if row.edit is not None]
    scored = [row for row in rows if row.score is not None]
    all_rows = len(edits) + len(scored)
    edits = [s for s in edits if len(s.ids) <= model.context]
    scored = [row for row in scored if len(row.prompt) + len(row.ids) <= model.context]
    if not edits and not scored:
        raise UsageError(
            f"none of {all_rows} rated replies fits into the context of {model.context} tokens"
        )
    mean = fmean([row.score or 0.0 for row in scored]) if scored else None
    rng = Random(derived_seed(seed, "traffic", version))
    rng.shuffle(scored)
    rng.shuffle(edits)
    batches = _of_one_temperature(scored, batch)
    parts = [edits[i : i + batch] for i in range(0, len(edits), batch)]
    updates = len(batches) + len(parts)
    steps: list[dict[str, float]] = []
    for number, part in enumerate(batches, 1):
        values = [(row.score or 0.0) - (mean or 0.0) for row in part]
        steps.append(learner.step(_batch(part), advantages=values))
        progress(number, updates, f"score {fmean([row.score or 0.0 for row in part]):.3f}")
    for number, sequences in enumerate(parts, len(batches) + 1):
        loss = learner.supervised_step(sequences)["loss"]
        progress(number, updates, f"edited answers, loss {loss:.4f}")
    names = set.intersection(*map(set, steps)) if steps else set()
    return learner, Trained(
        updates=updates,
        scored=len(scored),
        edited=len(edits),
        too_long=all_rows - len(scored) - len(edits),
        mean_score=mean,
        metrics={name: fmean([step[name] for step in steps]) for name in sorted(names)},
    )


def _of_one_temperature(rows: Sequence[RatedReply], size: int) -> list[list[RatedReply]]:
    batches: list[list[RatedReply]] = []
    for temperature in dict.fromkeys(row.temperature for row in rows):
        same = [row for row in rows if row.temperature == temperature]
        batches += [same[i : i + size] for i in range(0, len(same), size)]
    return batches


def _batch(rows: Sequence[RatedReply]) -> Batch:
    samples = tuple(
        Sample(sequences=(_sampled(row),), outcome=row.score or 0.0, group=i)
        for i, row in enumerate(rows)
    )
    return Batch(samples=samples, temperature=rows[0].temperature)


def _sampled(row: RatedReply) -> TrainingSequence:
    before, after = len(row.prompt), len(row.ids)
    return TrainingSequence(
        ids=row.prompt + row.ids,
        mask=(False,) * before + (True,) * after,
        logps=(0.0,) * before + row.logps,
        versions=(-1,) * before + row.versions,
    )


def _edited(row: RatedReply, tokenizer: Any, end: int) -> TrainingSequence:
    """Return the edited answer behind the exact prompt; nobody sampled it."""
    # what a user spells is text: no end of a turn in the middle, and no picture
    text = tokenizer.literal((row.edit or "").replace(PICTURE, ""))
    answer = (*tokenizer.encode(text), end)
    before = len(row.prompt)
    return TrainingSequence(
        ids=row.prompt + answer,
        mask=(False,) * before + (True,) * len(answer),
        logps=(0.0,) * (before + len(answer)),
        versions=(-1,) * (before + len(answer)),
    )
