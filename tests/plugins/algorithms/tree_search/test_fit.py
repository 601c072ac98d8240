"""Which algorithms may train on what a search returns, and by enumeration why others may not."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from quintain import Algorithm
from quintain.errors import UsageError
from quintain.learning import ALGORITHMS
from quintain.recipe import Recipe, RunPlan, check_recipe
from quintain.registry import current
from quintain_algorithms.tree_search import BeamEngine, MCTSEngine, TreeEngine

from ....core.learning.exact.policies import Array, Tree, log_softmax, multisets
from .test_advantages import Reply, step_of, trees

LEAVE_ONE_OUT = ALGORITHMS["rloo"].advantage


def algorithm(name: str) -> Algorithm:
    found: Algorithm = current().load("algorithm", name)
    return found


# ------------------------------------------------------------------------------------- enumeration
PROBS = np.array([0.2, 0.5, 0.3])
"""Of three answers of one token."""
REWARDS = (1.0, 0.6, 0.0)
VALUES = (0.9, 0.5, 0.1)
"""What a value model says of the answers: it orders them rightly."""


def best_of(n: int) -> Array:
    """Probabilities of the answers that the best of *n* draws by value is."""
    chosen = np.zeros(3)
    for draws in itertools.product(range(3), repeat=n):
        chosen[max(draws, key=lambda i: VALUES[i])] += math.prod(PROBS[i] for i in draws)
    return chosen


def expected_update(advantage: Any, chances: Array, size: int = 2) -> Array:
    """With respect to the logits, over all groups of *size* answers that come by *chances*."""
    total = np.zeros(3)
    for places, chance in multisets(list(chances), size):
        credit = advantage(step_of([((i,), REWARDS[i]) for i in places]))
        for i, value in zip(places, credit, strict=True):
            total += chance / size * value * ((np.arange(3) == i) - PROBS)
    return total


GRADIENT = PROBS * (np.array(REWARDS) - PROBS @ np.array(REWARDS))
"""Of the expected reward with respect to the logits, in closed form."""


def test_a_baseline_is_right_on_the_policys_own_answers() -> None:
    np.testing.assert_allclose(expected_update(LEAVE_ONE_OUT, PROBS), GRADIENT, rtol=0, atol=1e-12)


@pytest.mark.more
def test_on_chosen_answers_the_policy_gradient_is_another_one() -> None:
    """An answer better than the policy's mean is made rarer; and the better the search, the less is
    learned of the best answer, however rare it is.
    """
    assert GRADIENT[0] > 0.05
    assert GRADIENT[1] > 0.04
    assert expected_update(LEAVE_ONE_OUT, best_of(2))[1] < -0.04
    assert 0 < expected_update(LEAVE_ONE_OUT, best_of(10))[0] < GRADIENT[0] / 2
    assert expected_update(LEAVE_ONE_OUT, np.array([1.0, 0.0, 0.0]))[0] == 0


def test_imitation_moves_the_policy_to_what_the_search_returns() -> None:
    """The gradient of the mean log-prob of its answers: their probabilities less the policy's."""
    imitation = algorithm("sft").advantage
    np.testing.assert_allclose(
        expected_update(imitation, best_of(2)), best_of(2) - PROBS, rtol=0, atol=1e-12
    )


@pytest.mark.more
def test_a_baseline_of_other_leaves_shrinks_the_update_of_shared_steps() -> None:
    """A step with m of n leaves below it keeps 1 - (m - 1) / (n - 1) of its gradient."""
    replies = Tree(vocab=3, longest=3)
    draw = np.random.default_rng(5)
    logp = log_softmax(draw.normal(size=(len(replies.contexts), 3)))
    rewards = {y: float(draw.choice([0.0, 0.2, 1.0])) for y in replies.replies}
    chances = {y: math.exp(logp[list(replies.path(y)), list(y)].sum()) for y in replies.replies}

    def added(total: Array, y: Reply, weight: float) -> None:
        for at, token in zip(replies.path(y), y, strict=True):
            total[at] += weight * ((np.arange(3) == token) - np.exp(logp[at]))

    actual, gradient = np.zeros_like(logp), np.zeros_like(logp)
    for leaves, chance in trees(replies, chances, 2):
        credit = LEAVE_ONE_OUT(step_of([(y, rewards[y]) for y in leaves]))
        for y, value in zip(leaves, credit, strict=True):
            added(actual, y, chance / len(leaves) * value)
    for y, chance in chances.items():
        added(gradient, y, chance * rewards[y])

    first = next(iter(replies.path(next(iter(chances)))))
    gradient[first] *= 1 - (2 - 1) / (4 - 1)
    np.testing.assert_allclose(actual, gradient, rtol=0, atol=1e-12)


# ----------------------------------------------------------------------------------------- what fits
SEARCHES = [BeamEngine, MCTSEngine]
WHOLE = {"group_size": 4, "concurrency": None}


@pytest.mark.parametrize("engine", SEARCHES)
@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "reinforce", "rloo", "opd", "tree_credit"])
def test_a_policy_gradient_on_chosen_answers_is_refused(engine: Any, name: str) -> None:
    with pytest.raises(UsageError, match="not the policy's samples: .*'rft' or 'sft'"):
        engine.check_algorithm(algorithm(name), {}, **WHOLE)


@pytest.mark.parametrize("engine", [*SEARCHES, TreeEngine])
@pytest.mark.parametrize("name", ["sft", "rft", "gkd", "dpo"])
def test_imitation_and_pairs_take_any_answers(engine: Any, name: str) -> None:
    assert engine.check_algorithm(algorithm(name), {}, **WHOLE) is None


@pytest.mark.parametrize("engine", SEARCHES)
def test_a_kl_term_over_chosen_answers_is_refused(engine: Any) -> None:
    near = algorithm("rft").replace(kl={"where": "loss", "estimator": "k2", "coefficient": 0.1})
    with pytest.raises(UsageError, match="the KL term"):
        engine.check_algorithm(near, {}, **WHOLE)


@pytest.mark.parametrize("name", ["tree_credit", "tree_rl", "value_steps"])
def test_trees_fit_the_algorithms_that_know_them(name: str) -> None:
    assert TreeEngine.check_algorithm(algorithm(name), {}, **WHOLE) is None


def without_baseline(name: str) -> Algorithm:
    return ALGORITHMS["reinforce"].replace(advantage=name)


@pytest.mark.parametrize("name", ["raw", "ema"])
def test_baselines_from_elsewhere_fit_trees(name: str) -> None:
    assert TreeEngine.check_algorithm(without_baseline(name), {}, **WHOLE) is None


@pytest.mark.parametrize("name", ["grpo", "rloo"])
def test_a_baseline_of_a_group_on_trees_is_remarked_on(name: str) -> None:
    remark = TreeEngine.check_algorithm(algorithm(name), {}, **WHOLE)
    assert remark is not None
    assert "'tree_credit'" in remark


@pytest.mark.parametrize("name", ["tree_credit", "tree_rl"])
@pytest.mark.parametrize(
    ("settings", "group_size", "concurrency", "why"),
    [
        ({}, 2, None, "no multiple of its 4 leaves .*set batch.group_size = 4"),
        ({}, 6, None, "set batch.group_size = 8"),
        ({"branches": 3, "depth": 2}, 4, None, "no multiple of its 9 leaves"),
        ({}, 8, 1, "set batch.concurrency = 8"),
        ({}, 4, 3, "not sampled together"),
    ],
)
def test_credit_for_steps_of_half_a_tree_is_refused(
    name: str, settings: dict[str, int], group_size: int, concurrency: int | None, why: str
) -> None:
    with pytest.raises(UsageError, match=why):
        TreeEngine.check_algorithm(
            algorithm(name), settings, group_size=group_size, concurrency=concurrency
        )


@pytest.mark.parametrize(
    ("settings", "group_size"), [({}, 8), ({"depth": 1}, 2), ({"depth": 3}, 8)]
)
def test_groups_of_whole_trees_fit(settings: dict[str, int], group_size: int) -> None:
    remark = TreeEngine.check_algorithm(
        algorithm("tree_credit"), settings, group_size=group_size, concurrency=group_size
    )
    assert remark is None


def test_replicas_of_a_search_are_searches() -> None:
    pool = current().load("engine", "pool")
    with pytest.raises(UsageError, match="engine 'mcts' chooses its answers"):
        pool.check_algorithm(algorithm("dr_grpo"), {"engine": "mcts", "replicas": 2}, **WHOLE)
    assert pool.check_algorithm(algorithm("dr_grpo"), {"replicas": 2}, **WHOLE) is None


def recipe(engine: str, name: str) -> Recipe:
    return Recipe.load("quickstart", [f"engine.use={engine}", f"algorithm.use={name}"])


@pytest.mark.parametrize("ask", [check_recipe, RunPlan.of])
def test_recipes_are_refused_before_anything_is_loaded(ask: Callable[[Recipe], Any]) -> None:
    with pytest.raises(UsageError, match="engine 'beam' .* not the policy's samples"):
        ask(recipe("beam", "dr_grpo"))


def test_the_remark_is_shown_at_the_start_of_a_run() -> None:
    assert any("'tree_credit'" in note for note in RunPlan.of(recipe("tree", "dr_grpo")).notes)
    assert not any("'tree_credit'" in note for note in RunPlan.of(recipe("embedded", "grpo")).notes)
