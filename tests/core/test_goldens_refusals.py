"""All that a row, a KL term, a plan or an interruption refuses, with the reason; the same from a recipe's text."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
import torch
from torch import Tensor

from quintain.errors import BindingError, UnknownNameError, UsageError
from quintain.interfaces.algorithm import KL
from quintain.interfaces.pieces import Piece
from quintain.interfaces.sampling_plan import Plan
from quintain.learning import PRESETS, Terms
from quintain.registry.binding import bind
from quintain.types.sampling import Interrupt

NAN, INF = float("nan"), float("inf")


def _by_group(t: Terms) -> Tensor:
    return t.group_sum(t.sample_sum(t.logp))


def _keeps_state(t: Terms, *, state: Any = None) -> tuple[Tensor, Any]:
    return t.logp, state


def _search(problem: Any) -> dict[str, float]:
    return {}


BY_GROUP = Piece(kind="objective", name="by_group", function=_by_group, level="group")
STATEFUL = Piece(kind="objective", name="stateful", function=_keeps_state)
SEARCH = Piece(kind="update", name="search", function=_search)


@pytest.mark.parametrize(
    "row, changes, reason",
    [
        ("grpo", {"anchor": "mu", "correction": "tis"}, "already holds the mismatch prox / mu"),
        ("rloo", {"update": SEARCH, "epochs": 2}, "is none away from prox"),
        ("rloo", {"update": SEARCH, "minibatches": 2}, "take an objective with a ratio"),
        ("rloo", {"objective": BY_GROUP, "correction": "tis"}, "has one term per group"),
        ("rloo", {"objective": STATEFUL}, "only advantages may"),
        ("rloo", {"objective": PRESETS["rloo"].advantage}, "expected a function decorated with @objective"),
        ("rloo", {"advantage": None}, "advantage is None; expected a function decorated with @advantage"),
        ("rloo", {"update": {"damping": 1}}, "has no update to configure; name one with `use`"),
        ("rloo", {"epochs": 0}, "a whole number of at least 1"),
        ("rloo", {"minibatches": 0}, "a whole number of at least 1"),
        ("rloo", {"overlong": 1.0}, "from 0 to below 1"),
        ("rloo", {"overlong": -0.1}, "from 0 to below 1"),
        ("rloo", {"overlong": NAN}, "from 0 to below 1"),
        ("rloo", {"prune": 1.0}, "from 0 to below 1"),
        ("rloo", {"prune": -0.1}, "from 0 to below 1"),
        ("rloo", {"prune": NAN}, "from 0 to below 1"),
        ("rloo", {"anchor": "ref"}, "expected mu or prox"),
        ("rloo", {"kl": {"where": "loss", "coefficient": 0.1}}, "zero gradient in expectation"),
        ("grpo", {"kl": {"estimator": "k1"}}, "zero gradient in expectation"),
    ],
)
def test_rows_refuse(row: str, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason) as refused:
        PRESETS[row].but(**changes)
    assert "kl" in changes or f"algorithm {row!r}" in str(refused.value)


@pytest.mark.parametrize(
    "row, changes",
    [
        ("rloo", {"anchor": "mu", "correction": "tis"}),  # no ratio: the anchor does nothing
        ("rloo", {"objective": BY_GROUP}),
        ("rloo", {"update": SEARCH}),
        ("dr_grpo", {"update": SEARCH, "epochs": 2}),
        ("grpo", {"kl": {"estimator": "k1", "score_factor": True}}),
        ("grpo", {"kl": {"estimator": "k1", "coefficient": 0.0}}),  # off
    ],
)
def test_pairs_that_look_like_refused_ones_are_fine(row: str, changes: dict[str, Any]) -> None:
    assert PRESETS[row].but(**changes)


@pytest.mark.parametrize(
    "make, settings, reason",
    [
        (KL, {"where": "reword"}, "expected k1, k2 or k3 in none, reward or loss"),
        (KL, {"estimator": "k4"}, "expected k1, k2 or k3"),
        (KL, {"coefficient": -0.1}, "a finite number that is not negative"),
        (KL, {"coefficient": INF}, "a finite number that is not negative"),
        (KL, {"coefficient": NAN}, "a finite number that is not negative"),
        (KL, {"where": "loss", "coefficient": 0.1}, "use k2 in the loss, k1 in the reward, or score_factor = true"),
        (KL, {"where": "reward", "coefficient": 0.1, "score_factor": True}, "kl.score_factor is for the loss: in the"),
        (Interrupt, {"low": 0, "high": 3}, "expected 1 <= low <= high"),
        (Interrupt, {"low": 4, "high": 3}, "low 4, high 3"),
        (Plan, {"refill": "always"}, "plan.refill is 'always'; expected none, rounds, active"),
        (Plan, {"order": "random"}, "plan.order is 'random'; expected shuffled, level, failures"),
        (Plan, {"attempts": 0}, "plan.attempts is 0; expected a whole number from 1"),
        (Plan, {"attempts": True}, "expected a whole number from 1"),
        (Plan, {"probe": -1}, "expected a whole number from 0"),
        (Plan, {"probe": 1.5}, "expected a whole number from 0"),
        (Plan, {"lag": -1}, "expected a whole number from 0"),
        (Plan, {"retire": 0.0}, "above 0, at most 1"),
        (Plan, {"retire": 1.1}, "above 0, at most 1"),
        (Plan, {"keep": (0.9, 0.1)}, "two success rates, the lower first"),
        (Plan, {"keep": (0.1,)}, "two success rates"),
        (Plan, {"keep": (-0.1, 1.0)}, "two success rates"),
        (Plan, {"keep": (0.0, 1.1)}, "two success rates"),
        (Plan, {"interrupt": {"low": 4, "high": 3}}, "expected 1 <= low <= high"),
        (Plan, {"interrupt": {"low": 4, "hihg": 5}}, "did you mean 'high'"),
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
        ("anchor = 'sampler'", BindingError, "anchor is 'sampler'; expected"),
        ("plan = { refil = 'rounds' }", BindingError, "did you mean 'refill'"),
        ("plan = { refill = 'always' }", BindingError, "refill is 'always'; expected"),
        ("plan = { interrupt = { low = 4, high = 3 } }", UsageError, "expected 1 <= low <= high"),
        ("plan = { interrupt = { low = 4, hihg = 3 } }", BindingError, "did you mean 'high'"),
        ("correction = 'tis'\nanchor = 'mu'", UsageError, "already holds the mismatch"),
    ],
)
def test_a_recipe_is_told(text: str, error: type[Exception], reason: str) -> None:
    """As ``[algorithm.args]`` of grpo."""
    with pytest.raises(error) as refused:
        bind(PRESETS["grpo"], tomllib.loads(text), who="[algorithm]")
    assert reason in str(refused.value)


def test_arguments_of_a_piece_that_do_not_fit_together() -> None:
    """When the recipe is read, not at the first step."""
    wrong = "dual is 1.1; expected more than the upper bound of the clip, 1.2"
    with pytest.raises(UsageError) as refused:
        bind(PRESETS["grpo"], {"objective": {"dual": 1.1}}, who="[algorithm]")
    assert wrong == str(refused.value)
    with pytest.raises(UsageError, match="upper bound of the clip, 4"):
        PRESETS["grpo"].but(objective={"dual": 3.0}).but(objective={"high": 3.0})


def test_a_ratio_is_pooled_in_known_ways() -> None:
    one, index = torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.long)
    t = Terms(logp=one, mu_logp=one, prox_logp=one, advantage=one, entropy=one, sample=index, group=index)
    with pytest.raises(UsageError, match="'token', 'product' or 'geometric'"):
        t.ratio("median")  # type: ignore[arg-type]
