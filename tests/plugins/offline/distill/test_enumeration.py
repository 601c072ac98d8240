"""The expected update over all replies of a transformer in float64 is the gradient of the quantity
that an algorithm names, computed from tables of all contexts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from quintain import Algorithm, aggregation
from quintain.learning import Batch
from quintain.models.head import statistics
from quintain_offline.distill import GKD, OPD, reverse_kl_of_learner
from quintain_offline.distill.objectives import _log_rest, divergence

from ....core.learning.exact.bench import Bench, sample_of
from ....core.learning.exact.policies import Array, Path
from ....core.learning.exact.test_transformer import PROMPTS, TREE, fresh, logits, table
from .tables import TEMPERATURE, learner_of, step, teacher_table

HELD = Bench(
    tree=TREE,
    sizes=(1, 1),
    logits={name: table(0) for name in ("theta", "prox", "mu", "ref")},
    plain=True,
)
"""Every reply to both prompts, under the policy itself."""
EVERY: list[Path] = [path for paths in HELD.paths for path in paths]
CHANCES = [float(p) for task in (0, 1) for p in HELD.probabilities(task)]


@aggregation
def by_chance(batch: Batch) -> list[float]:
    """The probability of each sample under the policy: the loss is its expectation."""
    return [CHANCES[EVERY_IDS.index(s.sequences[0].ids)] for s in batch.samples]


BATCH = Batch(
    samples=tuple(sample_of(path, HELD.policies.mu, PROMPTS[path.group]) for path in EVERY),
    max_tokens=TREE.longest,
    temperature=TEMPERATURE,
)
EVERY_IDS = [sample.sequences[0].ids for sample in BATCH.samples]


def reached() -> Array:
    """Probability of each context under the policy, [places]."""
    found = np.zeros(len(HELD.policies.theta))
    for path, chance in zip(EVERY, CHANCES, strict=True):
        for at in path.at:
            found[at] += chance
    return found


def at_prefixes(divergence: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """sum over contexts of the probability to get there times D(theta, teacher)."""
    return lambda p: (torch.tensor(reached()) * divergence(p, torch.tensor(teacher_table()))).sum()


def reverse(p: Tensor, q: Tensor) -> Tensor:
    return (p.exp() * (p - q)).sum(1)


def forward(p: Tensor, q: Tensor) -> Tensor:
    return (q.exp() * (q - p)).sum(1)


def jensen_shannon(beta: float) -> Callable[[Tensor, Tensor], Tensor]:
    def of(p: Tensor, q: Tensor) -> Tensor:
        m = (beta * q.exp() + (1 - beta) * p.exp()).log()
        return beta * forward(m, q) + (1 - beta) * forward(m, p)

    return of


def of_samples(p: Tensor) -> Tensor:
    """sum over both prompts of KL(theta || teacher) of whole replies."""
    q = torch.tensor(teacher_table())
    total = p.new_zeros(())
    for path in EVERY:
        at, ids = list(path.at), list(path.ids)
        own, other = p[at, ids].sum(), q[at, ids].sum()
        total = total + own.exp() * (own - other)
    return total


def rewarded(p: Tensor) -> Tensor:
    """Minus 0.7 times the expected reward of both prompts."""
    total = p.new_zeros(())
    for path in EVERY:
        total = total + p[list(path.at), list(path.ids)].sum().exp() * path.outcome
    return -0.7 * total


def part(names: str, size: int) -> Callable[[Tensor, Tensor], Tensor]:
    """The divergence *names* over the teacher's *size* likeliest tokens; the others are one more
    token, or left out and both divided by their sums.
    """
    kind, outside = names.split("/")
    divergences = {"forward": forward, "reverse": reverse, "js": jensen_shannon(0.5)}

    def of(p: Tensor, q: Tensor) -> Tensor:
        chosen = q.argsort(1, descending=True)[:, :size]
        parts = [x.gather(1, chosen) for x in (p, q)]
        if outside == "renormalise":
            parts = [x - x.logsumexp(1, keepdim=True) for x in parts]
        else:
            left = (torch.cat([x, (1 - x.exp().sum(1, keepdim=True)).log()], 1) for x in parts)
            parts = list(left)
        return divergences[kind](*parts)

    return of


def opd(**advantage: object) -> Algorithm:
    return OPD.replace(advantage=advantage)


def gkd(top: int = 0, reward: float = 0.0, **objective: object) -> Algorithm:
    return GKD.replace(advantage={"top": top, "reward": reward, "task": "raw"}, objective=objective)


CASES: dict[str, tuple[Algorithm, Callable[[Tensor], Tensor]]] = {
    "opd": (opd(), at_prefixes(reverse)),
    "opd-learner": (
        OPD.replace(advantage=reverse_kl_of_learner),
        at_prefixes(reverse),
    ),
    "opd-half": (opd(weight=0.5), lambda p: 0.5 * at_prefixes(reverse)(p)),
    "opd-to-the-end": (opd(discount=1.0), of_samples),
    "opd-and-task": (
        opd(reward=0.7, task="raw"),
        lambda p: at_prefixes(reverse)(p) + rewarded(p),
    ),
    "task-alone": (opd(weight=0.0, reward=0.7, task="raw"), rewarded),
    "gkd-reverse": (gkd(kind="reverse"), at_prefixes(reverse)),
    "gkd-forward": (gkd(kind="forward"), at_prefixes(forward)),
    "gkd-js": (gkd(), at_prefixes(jensen_shannon(0.5))),
    "gkd-js-tenth": (gkd(beta=0.1), at_prefixes(jensen_shannon(0.1))),
    "gkd-weight": (gkd(kind="forward", weight=0.3), lambda p: 0.3 * at_prefixes(forward)(p)),
    "gkd-and-task": (
        gkd(reward=0.7, kind="reverse"),
        lambda p: at_prefixes(reverse)(p) + rewarded(p),
    ),
    **{
        f"gkd-top-{size}-{kind}-{outside}": (
            gkd(
                top=size,
                kind="jensen_shannon" if kind == "js" else kind,
                outside=outside,
            ),
            at_prefixes(part(f"{kind}/{outside}", size)),
        )
        for size in (1, 2)
        for kind in ("forward", "reverse", "js")
        for outside in ("bucket", "renormalise")
        if (size, outside) != (1, "renormalise")  # of one token there is nothing to compare
    },
}


@pytest.mark.keeps("opd", "gkd-forward", "gkd-top-1-js-bucket")
@pytest.mark.parametrize("name", CASES)
def test_expected_update_is_the_gradient_of_what_it_names(name: str) -> None:
    algorithm, quantity = CASES[name]
    module = fresh(0)
    loss = quantity(logits(module).log_softmax(1))
    parts = torch.autograd.grad(loss, list(module.parameters()))
    expected = torch.cat([part.flatten() for part in parts]).numpy()

    learner, found = learner_of(algorithm.replace(aggregation=by_chance))
    step(learner, BATCH)

    (actual,) = found
    assert np.abs(expected).max() > 1e-3
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-9)


def test_a_small_rest_that_is_not_told_is_summed_exactly() -> None:
    """Of a server's log-probs. What remains is their rounding."""
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(8, 150_000, generator=draw, dtype=torch.float64)
    log_probs = (logits.log_softmax(1) + math.log1p(-1e-6)).float()

    rest = _log_rest(log_probs, None).exp()

    exact = 1 - log_probs.double().exp().sum(1, keepdim=True)
    assert float(exact.min()) > 1e-8
    torch.testing.assert_close(rest, exact.float(), rtol=1e-5, atol=0.0)


@pytest.mark.parametrize("kind", ["forward", "reverse", "js"])
@pytest.mark.parametrize("temperature", [1.0, 0.2])
def test_a_bucket_is_exact_where_the_policy_is_sure(kind: str, temperature: float) -> None:
    """In float32 against float64, by the hidden states: a policy that leaves 1e-20 to the other ids,
    to which the teacher gives some per cent.
    """
    draw = torch.Generator().manual_seed(0)
    weight = torch.randn(500, 16, generator=draw, dtype=torch.float64)
    hidden = torch.randn(40, 16, generator=draw, dtype=torch.float64)
    other = hidden + 0.3 * torch.randn(40, 16, generator=draw, dtype=torch.float64)
    q = (0.6 * other @ weight.t()).log_softmax(1)
    top, ids = q.topk(20, dim=1)
    rest = q.scatter(1, ids, -math.inf).logsumexp(1)

    x = hidden.clone().requires_grad_()
    p = (x @ weight.t() / temperature).log_softmax(1)
    left = p.scatter(1, ids, -math.inf).logsumexp(1)
    parts = [torch.cat([a, b[:, None]], 1) for a, b in ((p.gather(1, ids), left), (top, rest))]
    exact = {"forward": forward, "reverse": reverse, "js": jensen_shannon(0.5)}[kind](*parts)
    (expected,) = torch.autograd.grad(exact.sum(), x)

    narrow = hidden.float().requires_grad_()
    told = statistics(narrow, weight.float(), ids[:, 0], temperature=temperature, asked_NK=ids)
    columns = {
        "asked_logp": told.asked_logp,
        "rest_logp": told.rest_logp,
        "teacher_logp": top.float(),
        "teacher_rest": rest.float(),
    }
    inputs: Any = SimpleNamespace(statistics=columns, advantage=torch.zeros(40), logp=told.logp)
    terms, _ = divergence(inputs, kind="jensen_shannon" if kind == "js" else kind)
    (actual,) = torch.autograd.grad(terms.sum(), narrow)

    assert float(left.detach().min()) < (-40 if temperature < 1 else -6)
    torch.testing.assert_close(terms.double(), exact, rtol=1e-5, atol=1e-5)
    assert float((actual.double() - expected).norm() / expected.norm()) < 1e-4


def test_a_bucket_is_below_the_whole_vocabulary() -> None:
    """Tokens taken together are harder to tell apart, so that the divergence is a lower bound."""
    q = torch.tensor(teacher_table())
    p = torch.tensor(HELD.policies.theta)
    for kind, whole in (("forward", forward), ("reverse", reverse), ("js", jensen_shannon(0.5))):
        one, two, all_ = (
            part(f"{kind}/bucket", 1)(p, q),
            part(f"{kind}/bucket", 2)(p, q),
            whole(p, q),
        )
        assert bool((one <= two + 1e-12).all())
        assert bool((two <= all_ + 1e-12).all())
        assert float((all_ - one).max()) > 1e-4
