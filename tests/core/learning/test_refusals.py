"""All that an algorithm, a KL term, a plan or a thinking budget refuses, with the reason; the same
from a recipe's text.
"""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
import torch
from torch import Tensor

from quintain.errors import BindingError, UnknownNameError, UsageError
from quintain.interfaces.algorithm import KL
from quintain.interfaces.pieces import Piece
from quintain.interfaces.sampling_plan import SamplingPlan
from quintain.learning import ALGORITHMS, LossInputs
from quintain.registry.binding import bind
from quintain.types.sampling import ThinkingBudget

NAN, INF = float("nan"), float("inf")


def _by_group(t: LossInputs) -> Tensor:
    return t.group_sum(t.sample_sum(t.logp))


def _keeps_state(t: LossInputs, *, state: Any = None) -> tuple[Tensor, Any]:
    return t.logp, state


def _search(problem: Any) -> dict[str, float]:
    return {}


BY_GROUP = Piece(kind="objective", name="by_group", function=_by_group, level="group")
STATEFUL = Piece(kind="objective", name="stateful", function=_keeps_state)
SEARCH = Piece(kind="optimizer_step", name="search", function=_search)


@pytest.mark.parametrize(
    "algorithm, changes, reason",
    [
        ("grpo", {"ratio_to": "mu", "correction": "tis"}, "already holds the mismatch prox / mu"),
        ("rloo", {"optimizer_step": SEARCH, "epochs": 2}, "is none away from prox"),
        ("rloo", {"optimizer_step": SEARCH, "minibatches": 2}, "take an objective with a ratio"),
        ("rloo", {"objective": BY_GROUP, "correction": "tis"}, "has one term per group"),
        ("rloo", {"objective": STATEFUL}, "only advantages may"),
        (
            "rloo",
            {"objective": ALGORITHMS["rloo"].advantage},
            "expected a function decorated with @objective",
        ),
        (
            "rloo",
            {"advantage": None},
            "advantage is None; expected a function decorated with @advantage",
        ),
        (
            "rloo",
            {"optimizer_step": {"damping": 1}},
            "has no optimizer_step to configure; name one with `use`",
        ),
        ("rloo", {"epochs": 0}, "a whole number of at least 1"),
        ("rloo", {"minibatches": 0}, "a whole number of at least 1"),
        ("rloo", {"overlong": 1.0}, "from 0 to below 1"),
        ("rloo", {"overlong": -0.1}, "from 0 to below 1"),
        ("rloo", {"overlong": NAN}, "from 0 to below 1"),
        ("rloo", {"prune": 1.0}, "from 0 to below 1"),
        ("rloo", {"prune": -0.1}, "from 0 to below 1"),
        ("rloo", {"prune": NAN}, "from 0 to below 1"),
        ("rloo", {"ratio_to": "ref"}, "expected mu or prox"),
        ("rloo", {"kl": {"where": "loss", "coefficient": 0.1}}, "zero gradient in expectation"),
        ("grpo", {"kl": {"estimator": "k1"}}, "zero gradient in expectation"),
    ],
)
def test_algorithms_refuse(algorithm: str, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason) as refused:
        ALGORITHMS[algorithm].replace(**changes)
    assert "kl" in changes or f"algorithm {algorithm!r}" in str(refused.value)


@pytest.mark.parametrize(
    "algorithm, changes",
    [
        ("rloo", {"ratio_to": "mu", "correction": "tis"}),  # no ratio: the ratio_to does nothing
        ("rloo", {"objective": BY_GROUP}),
        ("rloo", {"optimizer_step": SEARCH}),
        ("dr_grpo", {"optimizer_step": SEARCH, "epochs": 2}),
        ("grpo", {"kl": {"estimator": "k1", "score_factor": True}}),
        ("grpo", {"kl": {"estimator": "k1", "coefficient": 0.0}}),  # off
    ],
)
def test_pairs_that_look_like_refused_ones_are_fine(
    algorithm: str, changes: dict[str, Any]
) -> None:
    assert ALGORITHMS[algorithm].replace(**changes)


@pytest.mark.parametrize(
    "make, settings, reason",
    [
        (KL, {"where": "reword"}, "expected k1, k2 or k3 in none, reward or loss"),
        (KL, {"estimator": "k4"}, "expected k1, k2 or k3"),
        (KL, {"coefficient": -0.1}, "a finite number that is not negative"),
        (KL, {"coefficient": INF}, "a finite number that is not negative"),
        (KL, {"coefficient": NAN}, "a finite number that is not negative"),
        (
            KL,
            {"where": "loss", "coefficient": 0.1},
            "use k2 in the loss, k1 in the reward, or score_factor = true",
        ),
        (
            KL,
            {"where": "reward", "coefficient": 0.1, "score_factor": True},
            "kl.score_factor is for the loss: in the",
        ),
        (
            ThinkingBudget,
            {"min_tokens": 0, "max_tokens": 3},
            "expected 1 <= min_tokens <= max_tokens",
        ),
        (ThinkingBudget, {"min_tokens": 4, "max_tokens": 3}, "min_tokens 4, max_tokens 3"),
        (
            SamplingPlan,
            {"resample": "always"},
            "plan.resample is 'always'; expected none, dynamic, active",
        ),
        (
            SamplingPlan,
            {"order": "random"},
            "plan.order is 'random'; expected shuffled, easy_to_hard, hard_first",
        ),
        (SamplingPlan, {"attempts": 0}, "plan.attempts is 0; expected a whole number from 1"),
        (SamplingPlan, {"attempts": True}, "expected a whole number from 1"),
        (SamplingPlan, {"difficulty_samples": -1}, "expected a whole number from 0"),
        (SamplingPlan, {"difficulty_samples": 1.5}, "expected a whole number from 0"),
        (SamplingPlan, {"staleness": -1}, "expected a whole number from 0"),
        (SamplingPlan, {"drop_solved": 0.0}, "above 0, at most 1"),
        (SamplingPlan, {"drop_solved": 1.1}, "above 0, at most 1"),
        (SamplingPlan, {"difficulty_range": (0.9, 0.1)}, "two success rates, the lower first"),
        (SamplingPlan, {"difficulty_range": (0.1,)}, "two success rates"),
        (SamplingPlan, {"difficulty_range": (-0.1, 1.0)}, "two success rates"),
        (SamplingPlan, {"difficulty_range": (0.0, 1.1)}, "two success rates"),
        (
            SamplingPlan,
            {"thinking_budget": {"min_tokens": 4, "max_tokens": 3}},
            "expected 1 <= min_tokens <= max_tokens",
        ),
        (
            SamplingPlan,
            {"thinking_budget": {"min_tokens": 4, "max_tokns": 5}},
            "did you mean 'max_tokens'",
        ),
    ],
)
def test_settings_refuse(make: Any, settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        make(**settings)


@pytest.mark.parametrize(
    "text, error, reason",
    [
        ("epoch = 2", BindingError, "no argument 'epoch'; did you mean 'epochs'"),
        ("epochs = '2'", BindingError, "epochs is '2'; expected int"),
        ("objective = 'ppo_clp'", UnknownNameError, "did you mean 'ppo_clip'"),
        ("objective = { hihg = 0.3 }", BindingError, "no argument 'hihg'; did you mean 'high'"),
        ("objective = { high = 'much' }", BindingError, "high is 'much'; expected float | None"),
        ("advantage = 3", BindingError, "advantage is 3; expected a name"),
        ("kl = 0.1", BindingError, "kl is 0.1; expected a table"),
        ("kl = { coeficient = 0.1 }", BindingError, "did you mean 'coefficient'"),
        ("kl = { estimator = 'k1' }", UsageError, "zero gradient in expectation"),
        ("ratio_to = 'sampler'", BindingError, "ratio_to is 'sampler'; expected"),
        ("plan = { resampl = 'rounds' }", BindingError, "did you mean 'resample'"),
        ("plan = { resample = 'always' }", BindingError, "resample is 'always'; expected"),
        (
            "plan = { thinking_budget = { min_tokens = 4, max_tokens = 3 } }",
            UsageError,
            "expected 1 <= min_tokens <= max_tokens",
        ),
        (
            "plan = { thinking_budget = { min_tokens = 4, max_tokns = 3 } }",
            BindingError,
            "did you mean 'max_tokens'",
        ),
        ("correction = 'tis'\nratio_to = 'mu'", UsageError, "already holds the mismatch"),
    ],
)
def test_a_recipe_is_refused_with_the_reason(
    text: str, error: type[Exception], reason: str
) -> None:
    """As ``[algorithm.args]`` of grpo."""
    with pytest.raises(error) as refused:
        bind(ALGORITHMS["grpo"], tomllib.loads(text), who="[algorithm]")
    assert reason in str(refused.value)


def test_arguments_of_a_piece_that_do_not_fit_together() -> None:
    """When the recipe is read, not at the first step."""
    wrong = "dual is 1.1; expected more than the upper bound of the clip, 1.2"
    with pytest.raises(UsageError) as refused:
        bind(ALGORITHMS["grpo"], {"objective": {"dual": 1.1}}, who="[algorithm]")
    assert wrong == str(refused.value)
    with pytest.raises(UsageError, match="upper bound of the clip, 4"):
        ALGORITHMS["grpo"].replace(objective={"dual": 3.0}).replace(objective={"high": 3.0})


def test_a_ratio_is_pooled_in_known_ways() -> None:
    one, index = torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.long)
    t = LossInputs(
        logp=one, mu_logp=one, prox_logp=one, advantage=one, entropy=one, sample=index, group=index
    )
    with pytest.raises(UsageError, match="'token', 'product' or 'geometric'"):
        t.ratio("median")  # type: ignore[arg-type]
