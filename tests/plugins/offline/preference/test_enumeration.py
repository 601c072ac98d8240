"""Enumeration on a softmax table, as of the other algorithms (`tests/core/learning/exact`): the
expected update over all batches, with theta, prox, mu and ref all different, equals the closed form
in NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from quintain.interfaces.algorithm import Algorithm
from quintain_offline.preference import DPO, DPO_NORM, KTO, RFT, SIMPO

from ....core.learning.exact.bench import Bench, Package, tables
from ....core.learning.exact.policies import Array, Path, Seen, Tree
from .test_preference import closed_form, kto_form

TREE = Tree(vocab=3, longest=2)
GROUP = Bench(tree=TREE, sizes=(2,), logits=tables(TREE, 1, apart=0.6, seed=9))
"""A group of two over seven replies: 28 multisets."""
SMALL = Tree(vocab=2, longest=2)
TASKS = Bench(tree=SMALL, sizes=(3, 2), logits=tables(SMALL, 2, apart=0.6))
"""Groups of three and of two over three replies: 60 batches."""

Slopes = Callable[[Seen], Array]
"""Derivative of the loss of a batch by the log-prob of each sampled token, [N]."""


def by_group(seen: Seen, values: Sequence[float]) -> list[list[float]]:
    return [[values[i] for i in indices] for indices in seen.groups]


def flat(seen: Seen, policy: str) -> Array:
    return np.concatenate([seen.logp(policy, i) for i in range(seen.count)])


def ranked(name: str, pairs: str) -> Slopes:
    def slopes(seen: Seen) -> Array:
        rewards = by_group(seen, [path.outcome + path.shaping for path in seen.paths])
        lengths = [len(path) for path in seen.paths]
        theta, ref = flat(seen, "theta"), flat(seen, "ref")
        return closed_form(name, rewards, theta, ref, lengths, pairs)[1]

    return slopes


def labelled(seen: Seen) -> Array:
    labels = by_group(seen, [1.0 if path.outcome > 1 - 1e-9 else -1.0 for path in seen.paths])
    lengths = [len(path) for path in seen.paths]
    theta, ref = flat(seen, "theta"), flat(seen, "ref")
    return kto_form(labels, theta, ref, lengths, 0.1, np.ones(2))[1]


def of_winners(seen: Seen) -> Array:
    won = np.concatenate([np.full(len(p), float(p.outcome > 1 - 1e-9)) for p in seen.paths])
    return -won / max(1, won.sum())


CASES: dict[str, tuple[Algorithm, Slopes]] = {
    **{a.name: (a, ranked(a.name, "all")) for a in (DPO, DPO_NORM, SIMPO)},
    "dpo-best_worst": (
        DPO.replace(objective={"pairs": "best_worst"}),
        ranked("dpo", "best_worst"),
    ),
    "kto": (KTO, labelled),
    "rft": (RFT, of_winners),
}


def by_logits(bench: Bench, paths: Sequence[Path], slopes: Slopes) -> Array:
    """Gradient of the loss of a batch by the logits of theta, [places, vocabulary]."""
    seen = Seen(paths=paths, policies=bench.policies, longest=bench.tree.longest)
    gradient = np.zeros_like(bench.policies.theta)
    tokens = [(at, token) for path in paths for at, token in zip(path.at, path.ids, strict=True)]
    for (at, token), slope in zip(tokens, slopes(seen), strict=True):
        gradient[at] -= slope * np.exp(bench.policies.theta[at])
        gradient[at, token] += slope
    return gradient


@pytest.mark.keeps("dpo-one group", "simpo-one group", "kto-one group")
@pytest.mark.parametrize("bench", [GROUP, TASKS], ids=["one group", "two groups"])
@pytest.mark.parametrize("name", CASES)
def test_expected_update(name: str, bench: Bench) -> None:
    algorithm, slopes = CASES[name]
    expected = np.zeros_like(bench.policies.theta)
    for paths, weight in bench.batches():
        expected += weight * by_logits(bench, paths, slopes)

    actual = Package(algorithm, bench).expected()

    assert np.abs(expected).max() > 1e-4
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-12)
