"""What a teacher says about the sampled tokens, as advantages and for the objective."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress, count
from typing import Any

import torch
from torch import Tensor

from quintain import Algorithm, advantage, need
from quintain.errors import UsageError
from quintain.interfaces import every_piece
from quintain.learning import Step

from .teacher import Teacher, TeacherRow, TeacherScore

Told = tuple[Tensor, dict[str, Any]]


def rows_of(step: Step) -> list[TeacherRow]:
    """Return the sequences of a step that train, with the places of their trained tokens, in the
    order of the trained tokens.
    """
    return [
        TeacherRow(s.ids, tuple(compress(count(), s.mask)), sample.environment, i)
        for i, sample in enumerate(step.batch.samples)
        for s in sample.sequences
        if any(s.mask)
    ]


@advantage
async def reverse_kl(
    step: Step,
    *,
    weight: float = 1.0,
    reward: float = 0.0,
    task: str = "leave_one_out",
    discount: float = 0.0,
    teacher: Teacher = need(),
) -> Told:
    """weight (log q - log mu) of each sampled token + reward A: minus the estimate of KL(mu || q)
    from the sampled token, q the teacher and mu the sampler, plus the advantage of the task.

    With discount 0 its expected gradient is that of KL(theta || q) at each sampled prefix, with
    discount 1 that of KL(theta || q) of whole samples. Both hold where the sampler is the policy:
    `reverse_kl_of_learner` is exact also where it is behind.

    Args:
        weight: of the teacher.
        reward: of the task; 0 distils alone.
        task: the advantage of the task by its name, one that asks no service and keeps no state.
        discount: of what the later tokens of a sample got: 0 leaves them out, 1 sums to the end.

    Raises:
        UsageError: the discount is not from 0 to 1; conversations of a sample overlap in time and
            the discount is not 0.
    """
    return await _reverse_kl(step, "mu_logp", weight, reward, task, discount, teacher)


@advantage(reads=("ratio",))
async def reverse_kl_of_learner(
    step: Step,
    *,
    weight: float = 1.0,
    reward: float = 0.0,
    task: str = "leave_one_out",
    discount: float = 0.0,
    teacher: Teacher = need(),
) -> Told:
    """`reverse_kl` with prox, the policy before the updates of the batch, in place of mu. Takes one
    pass more of the policy over the batch.

    Args:
        weight, reward, task, discount: as for `reverse_kl`.

    Raises:
        UsageError: as `reverse_kl`.
    """
    return await _reverse_kl(step, "prox_logp", weight, reward, task, discount, teacher)


def _fits_divergence(algorithm: Algorithm) -> str | None:
    if algorithm.objective.name != "divergence":
        raise UsageError(
            f"algorithm {algorithm.name!r}: {algorithm.advantage!r} asks for distributions, which "
            "objective = 'divergence' compares; for other objectives take advantage = 'reverse_kl'"
        )
    if algorithm.prune:
        raise UsageError(
            f"algorithm {algorithm.name!r}: pruning leaves the policy no probability of tokens that "
            "the teacher may give some; set prune = 0"
        )
    if algorithm.advantage.argument("reward") and algorithm.plan.staleness:
        return "the task's part of the loss ignores staleness; the divergence does not depend on it"
    return None


@advantage(imitates=True, fits=_fits_divergence)
async def teacher_tokens(
    step: Step,
    *,
    top: int = 0,
    reward: float = 0.0,
    task: str = "leave_one_out",
    teacher: Teacher = need(),
) -> Told:
    """reward A, and the teacher's distribution at each trained token for the objective
    `divergence`.

    Args:
        top: the teacher's likeliest ids to compare over; 0 compares the whole vocabulary, and then
            a micro-batch of n tokens holds several tables of n times the vocabulary.
        reward: of the task; 0 distils alone.
        task: as for `reverse_kl`.

    Raises:
        UsageError: *top* is negative.
    """
    if top < 0:
        raise UsageError(f"top is {top}; expected 0 for the whole vocabulary, or more")
    rows, (scores, metrics) = rows_of(step), await _asked(step, teacher, top)
    told = [score for score in scores if score is not None]
    values = _task(step, reward, task)
    width = min((_top(score).shape[1] for score in told), default=1)
    complete = bool(told) and all(score.top_ids is None for score in told)
    ids, logp, rest = [], [], []
    for row, score in zip(rows, scores, strict=True):
        n = len(row.positions)
        logp.append(torch.full((n, width), torch.nan) if score is None else _top(score)[:, :width])
        rest.append(torch.full((n,), torch.nan) if score is None else _rest(score, width))
        if not complete:
            top_ids = None if score is None else score.top_ids
            ids.append(_all_ids(n, width) if top_ids is None else top_ids[:, :width])
    metrics["asked_ids"] = _all_ids(len(values), width) if complete else torch.cat(ids)
    metrics["teacher_logp"] = torch.cat(logp)
    metrics["teacher_rest"] = torch.cat(rest)
    if complete:
        metrics["teacher_complete"] = torch.ones(len(values), dtype=torch.bool)
    return values, metrics


async def _reverse_kl(
    step: Step,
    policy: str,
    weight: float,
    reward: float,
    task: str,
    discount: float,
    teacher: Teacher,
) -> Told:
    if not 0 <= discount <= 1:
        raise UsageError(f"discount is {discount}; expected 0 to 1")
    if discount and any(sample.overlapping for sample in step.batch.samples):
        raise UsageError(
            "a discount credits tokens with what comes after them, and conversations of one "
            "rollout overlap in time; set discount = 0"
        )
    scores, metrics = await _asked(step, teacher, None)
    rows = rows_of(step)
    teacher_N = torch.cat(
        [
            torch.full((len(row.positions),), torch.nan, dtype=torch.float64)
            if score is None
            else score.logp.double()
            for row, score in zip(rows, scores, strict=True)
        ]
    )
    ratio_N = teacher_N - step.statistics[policy].double().cpu()
    told_N = ~ratio_N.isnan()
    metrics["teacher.kl"] = -float(ratio_N[told_N].mean()) if bool(told_N.any()) else 0.0
    ratio_N = torch.where(told_N, ratio_N, 0.0)
    if discount:
        counts = [sample.tokens for sample in step.batch.samples]
        ratio_N = torch.cat([_discounted(part, discount) for part in torch.split(ratio_N, counts)])
    return weight * ratio_N + _task(step, reward, task), metrics


async def _asked(
    step: Step, teacher: Teacher, top: int | None
) -> tuple[Sequence[TeacherScore | None], dict[str, Any]]:
    """Return the teacher's score of each row of the step, and what asking took."""
    before = (teacher.seconds, teacher.computed, teacher.reused)
    scores = await teacher.score(rows_of(step), temperature=step.batch.temperature, top=top)
    spent = zip((teacher.seconds, teacher.computed, teacher.reused), before, strict=True)
    names = ("teacher.seconds", "teacher.computed", "teacher.reused")
    metrics: dict[str, Any] = {
        name: float(now - then) for name, (now, then) in zip(names, spent, strict=True)
    }
    metrics["teacher.silent"] = float(sum(score is None for score in scores))
    return scores, metrics


def _task(step: Step, reward: float, task: str) -> Tensor:
    """Return *reward* times the advantage *task* of each trained token, [N].

    Raises:
        UsageError: there is no such advantage, or it needs more than rewards.
    """
    if not reward:
        return torch.zeros(step.batch.tokens, dtype=torch.float64)
    known = {
        piece.name: piece
        for piece in every_piece()
        if piece.kind == "advantage" and not (piece.needs or piece.stateful or piece.reads)
    }
    if task not in known:
        raise UsageError(
            f"task is {task!r}; expected an advantage that reads the rewards of the batch alone: "
            f"{', '.join(sorted(known))}"
        )
    values = known[task](step)
    if isinstance(values, tuple):
        values = values[0]
    if not isinstance(values, Tensor):
        values = torch.tensor(values, dtype=torch.float64)[step.batch.sample_of_tokens]
    return reward * values.double()


def _discounted(values: Tensor, discount: float) -> Tensor:
    """Sum each value and the discounted ones after it."""
    total, sums = 0.0, []
    for value in reversed(values.tolist()):
        total = value + discount * total
        sums.append(total)
    return torch.tensor(sums[::-1], dtype=values.dtype)


def _top(score: TeacherScore) -> Tensor:
    if score.top_logp is None:
        raise UsageError(
            "the teacher gives log-probs of sampled tokens alone; use advantage = 'reverse_kl'"
        )
    return score.top_logp


def _rest(score: TeacherScore, width: int) -> Tensor:
    """Return the log of what the first *width* ids leave, [n]; NaN where the teacher does not say."""
    logp = _top(score)
    if score.rest_logp is None:
        return torch.full((len(logp),), torch.nan)
    return torch.cat([logp[:, width:], score.rest_logp[:, None]], dim=1).logsumexp(1)


def _all_ids(count: int, size: int) -> Tensor:
    return torch.arange(size).expand(count, size)
