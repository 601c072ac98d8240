"""Divergences between the next-token distributions of policy and teacher, one per trained token."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from quintain import objective
from quintain.errors import UsageError
from quintain.learning import LossInputs

Divergence = Literal["forward", "reverse", "jensen_shannon"]
Outside = Literal["bucket", "renormalise"]


def _check(*, beta: float, **others: object) -> None:
    if not 0 < beta < 1:
        raise UsageError(
            f"beta is {beta}; expected a number between 0 and 1: the limits are forward and reverse"
        )


@objective(reads=(), check=_check)
def divergence(
    t: LossInputs,
    *,
    kind: Divergence = "jensen_shannon",
    beta: float = 0.5,
    outside: Outside = "bucket",
    weight: float = 1.0,
) -> tuple[Tensor, dict[str, Tensor]]:
    """weight D(q, p) - A log theta per token: p is the policy's next-token distribution, q the
    teacher's, over the ids that the advantage `teacher_tokens` asked the teacher for.

    forward: KL(q || p) = sum q (log q - log p). reverse: KL(p || q). jensen_shannon: beta KL(q || m)
    + (1 - beta) KL(p || m) with m = beta q + (1 - beta) p (GKD, 2306.13649, equation 1). The
    gradient goes through p alone: that of the prefix, which the policy sampled, is left out.

    Args:
        kind, beta: of the divergence.
        outside: what becomes of the ids that the teacher was not asked for. ``bucket`` takes them
            for one more token, so that D is a lower bound of that over the vocabulary.
            ``renormalise`` divides both distributions by their sums over the asked ids. Over the
            whole vocabulary there are none, and both are the same.
        weight: of D. The task's advantage A has a weight of its own.

    Raises:
        UsageError: the advantage asked no teacher.
    """
    if "asked_logp" not in t.statistics:
        raise UsageError("objective divergence compares with a teacher: advantage = teacher_tokens")
    logp_NK = t.statistics["asked_logp"]
    teacher_NK = t.statistics["teacher_logp"].to(logp_NK)
    told_N = ~teacher_NK.isnan().any(1)  # a self-teacher has no hint for some samples
    teacher_NK = torch.where(told_N[:, None], teacher_NK, logp_NK.detach())
    covered_N = teacher_NK.exp().sum(1)
    if "teacher_complete" not in t.statistics:
        if outside == "renormalise":
            logp_NK = logp_NK - logp_NK.logsumexp(1, keepdim=True)
            teacher_NK = teacher_NK - teacher_NK.logsumexp(1, keepdim=True)
        else:
            rests = (t.statistics.get(name) for name in ("rest_logp", "teacher_rest"))
            logp_NK, teacher_NK = (
                torch.cat([x, _log_rest(x, rest)], dim=1)
                for x, rest in zip((logp_NK, teacher_NK), rests, strict=True)
            )
    terms = torch.where(told_N, _divergence(logp_NK, teacher_NK, kind, beta), 0.0)
    measured = {"divergence": terms.detach(), "covered": covered_N}
    return weight * terms - t.advantage * t.logp, measured


def _log_rest(logp_NK: Tensor, rest_N: Tensor | None) -> Tensor:
    """Return the log of what the listed ids leave, [N, 1]: *rest_N* where it is a number.

    Elsewhere it is 1 less their sum, in float64, and at least what the rounding of log-probs hides.
    A policy needs the number: its gradient depends on the inverse of the rest.
    """
    rest = 1 - logp_NK.double().exp().sum(1)
    kind = torch.finfo(logp_NK.dtype)
    found_N = rest.clamp(min=kind.eps / 100).log().to(logp_NK.dtype)
    if rest_N is not None:
        known_N = rest_N.to(logp_NK)
        # A teacher that leaves nothing: infinity times 0 is no number.
        known_N = torch.where(known_N.isneginf(), math.log(kind.tiny), known_N)
        found_N = torch.where(known_N.isnan(), found_N, known_N)
    return found_N.unsqueeze(1)


def _divergence(p: Tensor, q: Tensor, kind: Divergence, beta: float) -> Tensor:
    """Return D of log-probs *p* and *q*, [N]."""
    if kind == "forward":
        return _kl(q, p)
    if kind == "reverse":
        return _kl(p, q)
    if kind != "jensen_shannon":
        raise UsageError(f"kind is {kind!r}; expected forward, reverse or jensen_shannon")
    log_beta = torch.tensor(beta, dtype=p.dtype, device=p.device)
    m = torch.logaddexp(q + log_beta.log(), p + torch.log1p(-log_beta))
    return beta * _kl(q, m) + (1 - beta) * _kl(p, m)


def _kl(a: Tensor, b: Tensor) -> Tensor:
    return (a.exp() * (a - b)).sum(1)
