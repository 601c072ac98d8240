"""Training of a value model on rollouts and what became of them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from quintain import Rollout
from quintain.errors import RunError, UsageError
from quintain.models import load_pretrained
from quintain.store import RunFolder, find_run, read_table, steps_in
from quintain.types import reaches

from .value import newline_of, padded, with_newline

WARMUP = 0.03
"""Share of the updates over which the learning rate rises."""


@dataclass(frozen=True, kw_only=True)
class ScoredRow:
    """The tokens of one answer, without the stop token.

    Attributes:
        first: position of the first token of the answer.
        success: whether the rollout reached the reward that counts as success.
    """

    ids: tuple[int, ...]
    first: int
    success: bool


@dataclass(frozen=True, kw_only=True)
class ValueReport:
    """What training a value model took and gave.

    Attributes:
        loss: mean cross-entropy of the last tenth of the updates, in nats per token.
        held_out_loss: that of a tenth of the prompts, which did not train.
        base_rate_loss: the same for a model that knows the share of successes alone.
    """

    rows: int
    successes: int
    updates: int
    loss: float
    held_out_loss: float
    base_rate_loss: float
    seconds: float


def rollouts_of(source: str, *, folder: str = "runs") -> Iterator[Rollout[Any, Any]]:
    """Yield the rollouts of a run, or of a Parquet file of `quintain eval --out`.

    Raises:
        UnknownNameError: there is no such run.
        UsageError: the file holds no rollouts.
    """
    if Path(source).suffix == ".parquet":
        try:
            rows = read_table(Path(source), ["rollout"]).to_pylist()
        except RunError as e:
            raise UsageError(f"{source} holds no rollouts of `quintain eval --out`: {e}") from e
    else:
        run = RunFolder(find_run(source, folder), lock=False)
        rows = [row for step, _ in steps_in(run.rollouts) for row in run.read_rollouts(step)]
    for row in rows:
        yield Rollout.from_json(json.loads(row["rollout"]))


def rows_of(
    rollouts: Sequence[Rollout[Any, Any]], stop_ids: Sequence[int], *, success: float = 1.0
) -> list[ScoredRow]:
    """Return the answers of *rollouts* that were scored, of those with a single one.

    Args:
        stop_ids: of the tokenizer; one at the end of an answer is left out.
        success: the least outcome that counts as one.
    """
    rows = []
    for rollout in rollouts:
        transcript = rollout.transcripts.get("")
        branches = transcript.sequences() if transcript else ()
        if not rollout.valid or rollout.outcome is None or len(branches) != 1:
            continue
        ids, mask = branches[0].ids, branches[0].mask
        if not any(mask):
            continue
        end = len(ids) - (ids[-1] in stop_ids)
        reached = reaches(rollout.outcome.of_player(""), success)
        rows.append(ScoredRow(ids=tuple(ids[:end]), first=mask.index(True), success=reached))
    return rows


def fit_value(
    model: str,
    rows: Sequence[ScoredRow],
    out: Path,
    *,
    epochs: int = 1,
    lr: float = 1e-4,
    batch: int = 32,
    seed: int = 0,
    progress: Callable[[int, int, float], None] = lambda update, planned, loss: None,
) -> ValueReport:
    """Train a copy of *model* to say after each token of an answer how probable success is, and
    save it to *out*.

    The label of each token is what became of its answer: an unbiased sample of the policy's value
    there, without further samples. (Math-Shepherd, 2312.08935, takes several continuations of each
    step.) A tenth of the prompts is held out. Weights are those of the policy with a new head.

    Args:
        model: a folder or hub id.
        rows: answers and their success.
        epochs: passes over the rows.
        lr: the highest learning rate of AdamW; it rises over 3 % of the updates and falls to 0.
        batch: answers per update.
        progress: called after each update with its number, the planned one and the loss.

    Raises:
        UsageError: all answers succeeded, or none; or a setting is out of range.
    """
    from transformers import AutoModelForTokenClassification, AutoTokenizer
    from transformers.utils import logging as transformers_logging

    if epochs < 1 or batch < 1 or not lr > 0:
        raise UsageError(f"value: epochs {epochs}, batch {batch}, lr {lr}; expected above 0")
    successes = sum(row.success for row in rows)
    if not 0 < successes < len(rows):
        raise UsageError(
            f"{successes:,} of {len(rows):,} answers succeeded; a value model needs both, right "
            "and wrong ones"
        )
    began = time.monotonic()
    torch.manual_seed(seed)
    level = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()  # the head is new, which would be a warning
    try:
        module = load_pretrained(AutoModelForTokenClassification, model, num_labels=1)
    finally:
        transformers_logging.set_verbosity(level)
    tokenizer = load_pretrained(AutoTokenizer, model)
    torch.nn.init.zeros_(module.score.weight)
    newline = newline_of(tokenizer)
    training, held_out = _split(rows, seed)
    module.train()
    for part in module.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    optimizer = torch.optim.AdamW(module.parameters(), lr=lr, weight_decay=0.0)
    planned = epochs * -(-len(training) // batch)
    losses: list[float] = []
    for epoch in range(epochs):
        order = list(range(len(training)))
        Random(f"value/{seed}/{epoch}").shuffle(order)
        for start in range(0, len(order), batch):
            done = len(losses)
            for group in optimizer.param_groups:
                warm = min(1.0, (done + 1) / max(1, round(WARMUP * planned)))
                group["lr"] = lr * warm * (1 - done / planned)
            part = [training[i] for i in order[start : start + batch]]
            optimizer.zero_grad()
            terms = _terms(module, part, newline)
            loss = terms.mean()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()
            losses.append(float(loss.detach()))
            progress(len(losses), planned, losses[-1])
    module.eval()
    module.save_pretrained(out)
    tokenizer.save_pretrained(out)
    tail = losses[-max(1, len(losses) // 10) :]
    report = ValueReport(
        rows=len(training),
        successes=successes,
        updates=len(losses),
        loss=sum(tail) / len(tail),
        held_out_loss=_mean_loss(module, held_out, newline, batch),
        base_rate_loss=_base_rate_loss(training, held_out),
        seconds=time.monotonic() - began,
    )
    (out / "quintain.json").write_text(json.dumps({"value": asdict(report)}, indent=1) + "\n")
    return report


def _split(rows: Sequence[ScoredRow], seed: int) -> tuple[list[ScoredRow], list[ScoredRow]]:
    """Return the rows that train, and those of a tenth of the prompts."""
    prompts = list({row.ids[: row.first]: None for row in rows})
    Random(f"value/{seed}/held-out").shuffle(prompts)
    apart = set(prompts[: len(prompts) // 10])
    training = [row for row in rows if row.ids[: row.first] not in apart]
    return training, [row for row in rows if row.ids[: row.first] in apart]


def _terms(module: Any, rows: Sequence[ScoredRow], newline: int | None) -> Tensor:
    """Return the cross-entropy after each token of the answers, [N]; the end of the prompt and a
    line break at the end of an answer are among the places.
    """
    ended = [with_newline(row.ids, newline) for row in rows]
    ids, mask = padded(ended, max(map(len, ended)))
    places_RT = mask.bool()
    for k, row in enumerate(rows):
        places_RT[k, : row.first - 1] = False
    logits_RT = module(input_ids=ids, attention_mask=mask).logits[..., 0]
    label_RT = torch.tensor([float(row.success) for row in rows])[:, None].expand_as(logits_RT)
    return functional.binary_cross_entropy_with_logits(
        logits_RT[places_RT].float(), label_RT[places_RT], reduction="none"
    )


@torch.no_grad()
def _mean_loss(module: Any, rows: Sequence[ScoredRow], newline: int | None, batch: int) -> float:
    if not rows:
        return float("nan")
    parts = [rows[i : i + batch] for i in range(0, len(rows), batch)]
    terms = torch.cat([_terms(module, part, newline) for part in parts])
    return float(terms.mean())


def _base_rate_loss(training: Sequence[ScoredRow], held_out: Sequence[ScoredRow]) -> float:
    if not held_out:
        return float("nan")
    counts: Mapping[bool, int] = {
        kind: sum(len(r.ids) - r.first + 1 for r in training if r.success is kind)
        for kind in (True, False)
    }
    rate = torch.tensor(counts[True] / sum(counts.values()), dtype=torch.float64)
    weights = torch.tensor([float(len(r.ids) - r.first + 1) for r in held_out])
    labels = torch.tensor([float(r.success) for r in held_out], dtype=torch.float64)
    terms = functional.binary_cross_entropy(rate.expand_as(labels), labels, reduction="none")
    return float((terms * weights).sum() / weights.sum())
