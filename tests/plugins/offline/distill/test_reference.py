"""Several updates away from the sampler against formulas in NumPy: ragged groups, mu, prox and theta
all different, two epochs of two minibatches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from quintain import Algorithm
from quintain.learning import Learner
from quintain_offline.distill import GKD, OPD, TeacherRow, TeacherScore, reverse_kl_of_learner

from ....core.learning.exact.policies import Array, Path, log_softmax
from ....core.learning.exact.test_transformer import drawn, fresh, logits, model, table
from .tables import PlainTeacher, learner_of, step, teacher_table

PATHS, BATCH = drawn()
MU, PROX, TEACHER = log_softmax(table(1)), log_softmax(table(0)), teacher_table()

ByLogits = Callable[[Array, Sequence[int]], Array]
"""Gradient by the logits of theta [places, vocabulary] of the loss of some samples."""


def along(path: Path, values: Array) -> Array:
    return values[list(path.at), list(path.ids)]


def less_others(samples: Sequence[int]) -> dict[int, float]:
    """Leave-one-out advantages of the groups of *samples*."""
    found = {}
    for i in samples:
        others = [
            PATHS[j].outcome + PATHS[j].shaping
            for j in range(len(PATHS))
            if j != i and PATHS[j].group == PATHS[i].group
        ]
        found[i] = PATHS[i].outcome + PATHS[i].shaping - sum(others) / len(others)
    return found


def by_policy_gradient(
    *,
    weight: float = 1.0,
    reward: float = 0.0,
    discount: float = 0.0,
    policy: Array = MU,
    denominator: Array = PROX,
) -> ByLogits:
    """-ratio A per token, averaged over all tokens of the minibatch."""

    def gradient(theta: Array, samples: Sequence[int]) -> Array:
        out = np.zeros_like(theta)
        tokens = sum(len(PATHS[i]) for i in samples)
        task = less_others(samples)
        for i in samples:
            path = PATHS[i]
            own = along(path, TEACHER) - along(path, policy)
            to_end = np.array(
                [
                    sum(discount ** (s - t) * own[s] for s in range(t, len(own)))
                    for t in range(len(own))
                ]
            )
            ratio = np.exp(along(path, theta) - along(path, denominator))
            slope = -ratio * (weight * to_end + reward * task[i]) / tokens
            for at, token, value in zip(path.at, path.ids, slope, strict=True):
                out[at] -= value * np.exp(theta[at])
                out[at, token] += value
        return out

    return gradient


def events(row: Array, chosen: Array, outside: str) -> Array:
    """Probabilities of the chosen ids and what is left, or of the chosen ids alone."""
    kept = np.exp(row[chosen])
    if len(chosen) == len(row):
        return kept
    return np.append(kept, 1 - kept.sum()) if outside == "bucket" else kept / kept.sum()


def by_divergence(
    kind: str,
    *,
    beta: float = 0.5,
    top: int = 0,
    outside: str = "bucket",
    weight: float = 1.0,
    reward: float = 0.0,
) -> ByLogits:
    """weight D - A log theta per token, averaged over all tokens of the minibatch."""

    def slope_by_events(p: Array, q: Array) -> Array:
        """Derivative of D by the probability of each event."""
        if kind == "forward":
            return -q / p
        if kind == "reverse":
            return np.log(p) - np.log(q) + 1
        m = beta * q + (1 - beta) * p
        return -(1 - beta) * beta * q / m + (1 - beta) * (
            np.log(p) - np.log(m) + 1 - (1 - beta) * p / m
        )

    def gradient(theta: Array, samples: Sequence[int]) -> Array:
        out = np.zeros_like(theta)
        tokens = sum(len(PATHS[i]) for i in samples)
        task = less_others(samples)
        for i in samples:
            for at, token in zip(PATHS[i].at, PATHS[i].ids, strict=True):
                chosen = np.argsort(-TEACHER[at])[: top or None]
                p, q = (events(x[at], chosen, outside) for x in (theta, TEACHER))
                by_event = slope_by_events(p, q)
                whole = np.exp(theta[at])
                by_logit = np.zeros_like(whole)
                for v in range(len(whole)):  # each event's probability by the logit of v
                    if outside == "renormalise" and len(chosen) < len(whole):
                        if v in chosen:
                            k = int(np.flatnonzero(chosen == v)[0])
                            by_logit[v] = (by_event * p * ((np.arange(len(p)) == k) - p[k])).sum()
                        continue
                    member = np.append(chosen == v, v not in chosen)[: len(p)]
                    by_logit[v] = (by_event * whole[v] * (member - p)).sum()
                out[at] += weight * by_logit / tokens
                slope = -reward * task[i] / tokens
                out[at] -= slope * whole
                out[at, token] += slope
        return out

    return gradient


CASES: dict[str, tuple[Algorithm, ByLogits]] = {
    "opd": (OPD, by_policy_gradient()),
    "opd-mu": (OPD.replace(ratio_to="mu"), by_policy_gradient(denominator=MU)),
    "opd-learner": (
        OPD.replace(advantage=reverse_kl_of_learner, ratio_to="mu"),
        by_policy_gradient(policy=PROX, denominator=MU),
    ),
    "opd-discount": (
        OPD.replace(advantage={"discount": 0.6}),
        by_policy_gradient(discount=0.6),
    ),
    "opd-mixed": (
        OPD.replace(advantage={"weight": 0.4, "reward": 1.3}),
        by_policy_gradient(weight=0.4, reward=1.3),
    ),
    "gkd": (GKD, by_divergence("js")),
    "gkd-beta": (GKD.replace(objective={"beta": 0.2}), by_divergence("js", beta=0.2)),
    "gkd-forward": (GKD.replace(objective={"kind": "forward"}), by_divergence("forward")),
    "gkd-reverse": (GKD.replace(objective={"kind": "reverse"}), by_divergence("reverse")),
    "gkd-mixed": (
        GKD.replace(objective={"weight": 0.4}, advantage={"reward": 1.3}),
        by_divergence("js", weight=0.4, reward=1.3),
    ),
    **{
        f"gkd-top-{kind}-{top}-{outside}": (
            GKD.replace(
                objective={
                    "kind": "jensen_shannon" if kind == "js" else kind,
                    "outside": outside,
                },
                advantage={"top": top},
            ),
            by_divergence(kind, top=top, outside=outside),
        )
        for kind in ("forward", "reverse", "js")
        for top, outside in ((1, "bucket"), (2, "bucket"), (2, "renormalise"), (3, "bucket"))
    },
}


def wanted(learner: Learner, by_logits: ByLogits, samples: Sequence[int]) -> Array:
    """By the parameters of *learner* as they are now."""
    module = fresh(0)
    module.load_state_dict(learner.module.state_dict())
    now = logits(module)
    slopes = torch.tensor(by_logits(log_softmax(np.asarray(now.detach())), samples))
    parts = torch.autograd.grad((now * slopes).sum(), list(module.parameters()))
    return torch.cat([part.flatten() for part in parts]).numpy()


@pytest.mark.keeps("opd", "gkd-top-forward-2-bucket")
@pytest.mark.parametrize("name", CASES)
def test_every_update_of_two_epochs_of_two_minibatches(name: str) -> None:
    algorithm, by_logits = CASES[name]
    learner, found = learner_of(algorithm.replace(epochs=2, minibatches=2))
    groups = [[i for i, path in enumerate(PATHS) if path.group == task] for task in (0, 1)]
    expected: list[list[Array]] = []
    learner._optimizer.register_step_pre_hook(
        lambda *_: expected.append([wanted(learner, by_logits, group) for group in groups])
    )

    step(learner, BATCH)

    assert len(found) == 4
    for number, group in ((0, 0), (1, 1)):
        np.testing.assert_allclose(found[number], expected[number][group], rtol=0, atol=1e-9)
    # the second epoch takes the groups in either order
    order = [g for g in (0, 1) if np.allclose(found[2], expected[2][g], rtol=0, atol=1e-9)]
    assert len(order) == 1
    np.testing.assert_allclose(found[3], expected[3][1 - order[0]], rtol=0, atol=1e-9)


class Silent(PlainTeacher):
    """Says nothing about some samples."""

    def __init__(self, samples: set[int]) -> None:
        super().__init__(model(2))
        self.samples = samples

    async def score(self, rows: Sequence[TeacherRow], **asked: Any) -> list[TeacherScore | None]:
        scores = await super().score(rows, **asked)
        return [
            None if row.sample in self.samples else score
            for row, score in zip(rows, scores, strict=True)
        ]


@pytest.mark.parametrize("name", ["opd", "gkd", "gkd-top-js-2-bucket"])
@pytest.mark.parametrize("silent", [{1, 4}, set(range(len(PATHS)))])
def test_samples_without_a_teacher_add_nothing(name: str, silent: set[int]) -> None:
    """They count among the tokens that the loss is divided by."""
    algorithm, by_logits = CASES[name]
    learner, found = learner_of(algorithm)
    learner.serve({"teacher": Silent(silent)})
    told = [i for i in range(len(PATHS)) if i not in silent]
    share = sum(len(PATHS[i]) for i in told) / sum(map(len, PATHS))
    expected = share * wanted(learner, by_logits, told) if told else np.zeros(1)

    metrics = step(learner, BATCH)

    assert metrics["teacher.silent"] == len(silent)
    if told:
        np.testing.assert_allclose(found[0], expected, rtol=0, atol=1e-9)
    else:
        assert all(np.abs(gradient).max() == 0 for gradient in found)


def test_micro_batches_change_nothing() -> None:
    """The columns of the teacher follow their tokens into any micro-batch."""
    gradients = []
    for budget in (1, 12, 4096):
        learner, found = learner_of(GKD.replace(advantage={"top": 2}), token_budget=budget)
        step(learner, BATCH)
        gradients += found
    np.testing.assert_allclose(gradients[0], gradients[2], rtol=0, atol=1e-12)
    np.testing.assert_allclose(gradients[1], gradients[2], rtol=0, atol=1e-12)
