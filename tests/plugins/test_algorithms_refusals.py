"""What the algorithms and pieces of `quintain-algorithms` refuse, with the reason; the same from a recipe's text."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
import torch
from torch import Tensor

from quintain.errors import BindingError, UnknownNameError, UsageError
from quintain.interfaces.pieces import Piece
from quintain.interfaces.sampling_plan import Plan
from quintain.learning import PRESETS, Terms
from quintain.registry.binding import bind
from quintain.types.sampling import Interrupt

from ..core.rows import ROWS


def _by_group(t: Terms) -> Tensor:
    return t.group_sum(t.sample_sum(t.logp))


BY_GROUP = Piece(kind="objective", name="by_group", function=_by_group, level="group")


@pytest.mark.parametrize(
    "row, changes, reason",
    [
        ("grpo", {"anchor": "mu", "correction": "icepop"}, "set anchor = 'prox' or correction = 'none'"),
        ("gspo", {"anchor": "mu", "correction": "tis_sequence"}, "already holds the mismatch"),
        ("trm", {"correction": "tis"}, "already holds the mismatch"),
        ("dr_grpo", {"anchor": "mu", "objective": "dppo_top"}, "samplers report the sampled token alone"),
        ("gspo", {"correction": "tis"}, "weighs tokens but .* has one term per sequence"),
        ("kimi", {"correction": "icepop"}, "weighs tokens but .* has one term per sequence"),
        ("rloo", {"objective": BY_GROUP, "correction": "trm"}, "weighs sequences but .* per group"),
    ],
)
def test_rows_refuse(row: str, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason) as refused:
        ROWS[row].but(**changes)
    assert f"algorithm {row!r}" in str(refused.value)


@pytest.mark.parametrize(
    "row, changes",
    [
        ("grpo", {"anchor": "mu", "correction": "sequence_mask"}),  # a mask repairs nothing
        ("grpo", {"anchor": "mu", "correction": "trm"}),
        ("gspo", {"correction": "tis_sequence"}),
        ("grpo", {"correction": "tis_sequence"}),  # a sample's weight on each of its tokens
        ("dr_grpo", {"objective": "dppo_top"}),
    ],
)
def test_pairs_that_look_like_refused_ones_are_fine(row: str, changes: dict[str, Any]) -> None:
    assert ROWS[row].but(**changes)


@pytest.mark.parametrize(
    "text, error, reason",
    [
        ("objective = { use = 'sequence_clp' }", UnknownNameError, "did you mean 'sequence_clip'"),
        ("objective = { use = 'cispo', high = 0.3 }", BindingError, "no argument 'high'"),
        ("correction = { use = 'sequence_mask', estimate = 'k4' }", BindingError, "estimate is 'k4'; expected"),
        ("correction = { use = 'sequence_mask', over = 'median' }", BindingError, "over is 'median'; expected"),
    ],
)
def test_a_recipe_is_told(text: str, error: type[Exception], reason: str) -> None:
    """As ``[algorithm.args]`` of grpo."""
    with pytest.raises(error) as refused:
        bind(PRESETS["grpo"], tomllib.loads(text), who="[algorithm]")
    assert reason in str(refused.value)


def test_a_recipe_sets_everything_that_python_does() -> None:
    text = """
        advantage = { use = "process_norm", ddof = 1 }
        objective = { high = 0.28, dual = 3.0 }
        correction = { use = "sequence_mask", estimate = "k1", over = "sum", limit = 2.0 }
        aggregation = "prompt"
        admission = "varied"
        epochs = 2
        kl = { estimator = "k2" }
        overlong = 0.2
        mask_truncated = true
        plan = { refill = "rounds", keep = [0.1, 0.9], interrupt = { low = 5, high = 8 } }
    """
    row = bind(PRESETS["grpo"], tomllib.loads(text), who="[algorithm]")
    want = PRESETS["grpo"].but(
        advantage={"use": "process_norm", "ddof": 1},
        objective={"high": 0.28, "dual": 3.0},
        correction={"use": "sequence_mask", "estimate": "k1", "over": "sum", "limit": 2.0},
        aggregation="prompt",
        admission="varied",
        epochs=2,
        kl={"estimator": "k2"},
        overlong=0.2,
        mask_truncated=True,
        plan=Plan(refill="rounds", keep=(0.1, 0.9), interrupt=Interrupt(low=5, high=8)),
    )
    assert row == want
    assert (row.kl.coefficient, row.objective.parameters["low"]) == (0.04, 0.2)


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
    t = Terms(logp=one, mu_logp=one, prox_logp=one, advantage=one, entropy=one, sample=index, group=index)
    piece = getattr(PRESETS["dr_grpo"].but(**{kind: changes}), kind)
    with pytest.raises(UsageError, match=reason):
        piece(t)


def test_arguments_of_a_piece_that_do_not_fit_together() -> None:
    """When the recipe is read, not at the first step."""
    wrong = "dual is 1.2; expected more than the upper bound of the clip, 1.2"
    with pytest.raises(UsageError) as refused:
        bind(PRESETS["grpo"], {"objective": {"use": "sequence_clip", "dual": 1.2}}, who="[algorithm]")
    assert wrong == str(refused.value)
