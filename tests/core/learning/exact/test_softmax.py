"""Enumeration on a softmax table: the expected update of every row and choice equals the closed form, with theta, prox,
mu and ref all different and clips active.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from quintain.interfaces.pieces import every_piece

from ....lanes import mostly_slow
from ..algorithms import INSTALLED
from .bench import Bench, Package, tables
from .closed_form import Method, gradient
from .methods import CORE, PAIRS
from .policies import Array, Tree

ONE_GROUP = Tree(vocab=3, longest=2)
TWO_TASKS = Tree(vocab=2, longest=2)


@cache
def one_group(prune: float = 0.0) -> Bench:
    """A group of two over seven replies: 28 multisets."""
    return Bench(
        tree=ONE_GROUP, sizes=(2,), logits=tables(ONE_GROUP, 1, apart=0.6, seed=9), prune=prune
    )


@cache
def two_tasks(prune: float = 0.0) -> Bench:
    """Groups of three and of two, of two prompts in two environments, over three replies each: 60 batches."""
    return Bench(tree=TWO_TASKS, sizes=(3, 2), logits=tables(TWO_TASKS, 2, apart=0.6), prune=prune)


def expected_closed_form(method: Method, bench: Bench) -> Array:
    total = np.zeros_like(bench.policies.theta)
    for paths, weight in bench.batches():
        total += weight * gradient(method, bench.policies, paths, bench.tree.longest)
    return total


OTHERS = ("quintain_algorithms.classic.", "quintain_algorithms.tree_search.")
"""Where pieces read a critic or a tree: these have tests of their own."""


def test_every_algorithm_and_every_piece_is_here() -> None:
    assert set(CORE) == set(INSTALLED)
    ours = [
        piece
        for piece in every_piece()
        if piece.origin.startswith("quintain.learning.")
        or (piece.origin.startswith("quintain_algorithms.") and not piece.origin.startswith(OTHERS))
    ]
    for kind in ("advantage", "objective", "correction", "aggregation"):
        here = {getattr(algorithm, kind).name for algorithm, _ in PAIRS.values()}
        assert not {piece.name for piece in ours if piece.kind == kind} - here, kind


CAPS_OUT_OF_REACH = {"cispo", "scalerl"}
"""Their cap of 5 is not met on these tables; ``cispo-cap`` and ``scalerl-cap`` have one that is."""


@pytest.mark.keeps(
    "reinforce", "grpo", "rloo", "dapo", "gspo", "sft", "turn_level", "clip-mu", "importance"
)
@pytest.mark.parametrize("name", PAIRS)
def test_expected_update_of_one_group(name: str) -> None:
    """Each thing that the objective or the correction tells happened to some terms and not to others."""
    algorithm, method = PAIRS[name]
    package = Package(algorithm, one_group(algorithm.prune))
    want = expected_closed_form(method, package.bench)
    assert np.abs(want).max() > 1e-4
    np.testing.assert_allclose(package.expected(), want, rtol=0, atol=1e-12)
    told = package.metrics.mean()
    zero = told.pop("zero")
    assert (0 < zero < 1) == (
        algorithm.correction.masks or algorithm.correction.name in ("icepop", "mis")
    )
    enough = any if algorithm.prune else all  # little is left to move under pruning
    assert (
        name in CAPS_OUT_OF_REACH or not told or enough(0 < share < 1 for share in told.values())
    ), told


OF_BATCHES = """
raw ema greedy group_mean process_norm turn_level turn_level-mean maxrl-success batch_norm batch_norm-environment token
sequence prompt sequence_clip gspo_token dppo_top-2 tis mis sequence_mask-k3-mean dvp-coarse dvp+otb kl-k3 kl-k1-score
kl-k1-reward mask_truncated overlong
""".split()
"""Choices that see more than one sample, or stand for others of their kind."""


@pytest.mark.keeps("rloo", "batch_norm", "kl-k3")
@pytest.mark.parametrize(
    "name", mostly_slow([*CORE, *OF_BATCHES], {*OF_BATCHES, "dr_grpo", "rloo"})
)
def test_expected_update_of_two_groups(name: str) -> None:
    algorithm, method = PAIRS[name]
    package = Package(algorithm, two_tasks(algorithm.prune))
    want = expected_closed_form(method, package.bench)
    np.testing.assert_allclose(package.expected(), want, rtol=0, atol=1e-12)
