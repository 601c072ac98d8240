"""What the algorithms and pieces of `quintain-algorithms` refuse, with the reason; the same from a
recipe's text.
"""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
import torch
from torch import Tensor

from quintain.errors import BindingError, UnknownNameError, UsageError
from quintain.interfaces.pieces import Piece
from quintain.interfaces.sampling_plan import SamplingPlan
from quintain.learning import ALGORITHMS, LossInputs
from quintain.registry.binding import bind
from quintain.types.sampling import ThinkingBudget

from ...core.learning.algorithms import INSTALLED


def _by_group(t: LossInputs) -> Tensor:
    return t.group_sum(t.sample_sum(t.logp))


BY_GROUP = Piece(kind="objective", name="by_group", function=_by_group, level="group")


@pytest.mark.parametrize(
    "algorithm, changes, reason",
    [
        (
            "grpo",
            {"ratio_to": "mu", "correction": "icepop"},
            "set ratio_to = 'prox' or correction = 'none'",
        ),
        ("gspo", {"ratio_to": "mu", "correction": "tis_sequence"}, "already holds the mismatch"),
        ("trm", {"correction": "tis"}, "already holds the mismatch"),
        (
            "dr_grpo",
            {"ratio_to": "mu", "objective": "dppo_top"},
            "samplers report the sampled token alone",
        ),
        ("gspo", {"correction": "tis"}, "weighs tokens but .* has one term per sequence"),
        ("kimi", {"correction": "icepop"}, "weighs tokens but .* has one term per sequence"),
        ("rloo", {"objective": BY_GROUP, "correction": "trm"}, "weighs sequences but .* per group"),
    ],
)
def test_algorithms_refuse(algorithm: str, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason) as refused:
        INSTALLED[algorithm].replace(**changes)
    assert f"algorithm {algorithm!r}" in str(refused.value)


@pytest.mark.parametrize(
    "algorithm, changes",
    [
        ("grpo", {"ratio_to": "mu", "correction": "sequence_mask"}),  # a mask repairs nothing
        ("grpo", {"ratio_to": "mu", "correction": "trm"}),
        ("gspo", {"correction": "tis_sequence"}),
        ("grpo", {"correction": "tis_sequence"}),  # a sample's weight on each of its tokens
        ("dr_grpo", {"objective": "dppo_top"}),
    ],
)
def test_pairs_that_look_like_refused_ones_are_fine(
    algorithm: str, changes: dict[str, Any]
) -> None:
    assert INSTALLED[algorithm].replace(**changes)


@pytest.mark.parametrize(
    "text, error, reason",
    [
        ("objective = { use = 'sequence_clp' }", UnknownNameError, "did you mean 'sequence_clip'"),
        ("objective = { use = 'cispo', high = 0.3 }", BindingError, "no argument 'high'"),
        (
            "correction = { use = 'sequence_mask', estimate = 'k4' }",
            BindingError,
            "estimate is 'k4'; expected",
        ),
        (
            "correction = { use = 'sequence_mask', over = 'median' }",
            BindingError,
            "over is 'median'; expected",
        ),
    ],
)
def test_a_recipe_is_refused_with_the_reason(
    text: str, error: type[Exception], reason: str
) -> None:
    """As ``[algorithm.args]`` of grpo."""
    with pytest.raises(error) as refused:
        bind(ALGORITHMS["grpo"], tomllib.loads(text), who="[algorithm]")
    assert reason in str(refused.value)


def test_a_recipe_sets_everything_that_python_does() -> None:
    text = """
        advantage = { use = "process_norm", ddof = 1 }
        objective = { high = 0.28, dual = 3.0 }
        correction = { use = "sequence_mask", estimate = "k1", over = "sum", limit = 2.0 }
        aggregation = "prompt"
        group_filter = "varied"
        epochs = 2
        kl = { estimator = "k2" }
        overlong = 0.2
        mask_truncated = true
        plan.resample = "dynamic"
        plan.difficulty_range = [0.1, 0.9]
        plan.thinking_budget = { min_tokens = 5, max_tokens = 8 }
    """
    algorithm = bind(ALGORITHMS["grpo"], tomllib.loads(text), who="[algorithm]")
    want = ALGORITHMS["grpo"].replace(
        advantage={"use": "process_norm", "ddof": 1},
        objective={"high": 0.28, "dual": 3.0},
        correction={"use": "sequence_mask", "estimate": "k1", "over": "sum", "limit": 2.0},
        aggregation="prompt",
        group_filter="varied",
        epochs=2,
        kl={"estimator": "k2"},
        overlong=0.2,
        mask_truncated=True,
        plan=SamplingPlan(
            resample="dynamic",
            difficulty_range=(0.1, 0.9),
            thinking_budget=ThinkingBudget(min_tokens=5, max_tokens=8),
        ),
    )
    assert algorithm == want
    assert algorithm.kl.coefficient == 0.04
    assert algorithm.objective.parameters["low"] == 0.2


@pytest.mark.parametrize(
    "kind, changes, reason",
    [
        ("correction", {"use": "sequence_mask", "estimate": "k4"}, "expected k1, k2 or k3"),
        ("correction", {"use": "sequence_mask", "over": "median"}, "expected sum, mean or max"),
        ("correction", {"use": "trm", "over": "median"}, "expected sum, mean or max"),
    ],
)
def test_what_a_piece_refuses_at_work(kind: str, changes: dict[str, Any], reason: str) -> None:
    """Arguments from Python are checked by nobody before."""
    one, index = torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.long)
    t = LossInputs(
        logp=one, mu_logp=one, prox_logp=one, advantage=one, entropy=one, sample=index, group=index
    )
    piece = getattr(ALGORITHMS["dr_grpo"].replace(**{kind: changes}), kind)
    with pytest.raises(UsageError, match=reason):
        piece(t)


def test_arguments_of_a_piece_that_do_not_fit_together() -> None:
    """When the recipe is read, not at the first step."""
    wrong = "dual is 1.2; expected more than the upper bound of the clip, 1.2"
    with pytest.raises(UsageError) as refused:
        bind(
            ALGORITHMS["grpo"],
            {"objective": {"use": "sequence_clip", "dual": 1.2}},
            who="[algorithm]",
        )
    assert wrong == str(refused.value)
