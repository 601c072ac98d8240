"""An algorithm's plan, changed from a recipe: nested tables, ``--set``, and words for what TOML cannot write."""

from __future__ import annotations

from typing import Any

import pytest

from quintain import Limits
from quintain.errors import BindingError
from quintain.interfaces.algorithm import Algorithm
from quintain.interfaces.sampling_plan import SamplingPlan
from quintain.learning.algorithms import DAPO, DR_GRPO
from quintain.registry.binding import bind
from quintain.training.build import remarks
from quintain.training.recipe.tables import Recipe
from quintain.training.resolve import resolve_algorithm
from quintain.types.sampling import ThinkingBudget

from .everything import Talk

ENVIRONMENT = '[[environments]]\nuse = "arithmetic"\n'


def algorithm_of(text: str = "", *overrides: str) -> Algorithm:
    return resolve_algorithm(Recipe.parse(ENVIRONMENT + text, overrides))


def test_a_plan_from_a_recipe() -> None:
    """Tables, nested ones too, with types as everywhere: an int is a float, a list a tuple."""
    plan = algorithm_of(
        """
        [algorithm.args.plan]
        resample = "active"
        drop_solved = 1
        difficulty_samples = 4
        difficulty_range = [0.1, 0.9]
        staleness = 2
        [algorithm.args.plan.thinking_budget]
        min_tokens = 5
        max_tokens = 9
        text = "now"
        """
    ).plan

    assert (
        SamplingPlan(
            resample="active",
            drop_solved=1.0,
            difficulty_samples=4,
            difficulty_range=(0.1, 0.9),
            staleness=2,
            thinking_budget=ThinkingBudget(min_tokens=5, max_tokens=9, text="now"),
        )
        == plan
    )


def test_a_plan_from_the_command_line() -> None:
    """``--set`` reaches into the plan, and survives the recipe that is saved in the run folder."""
    recipe = Recipe.parse(
        ENVIRONMENT,
        ["algorithm.args.plan.resample=dynamic", "algorithm.args.plan.thinking_budget={min_tokens=3, max_tokens=4}"],
    )

    for known in (recipe, Recipe.parse(recipe.to_toml())):
        assert (
            SamplingPlan(resample="dynamic", thinking_budget=ThinkingBudget(min_tokens=3, max_tokens=4))
            == resolve_algorithm(known).plan
        )


def test_a_table_changes_what_the_algorithm_has() -> None:
    """What is not said stays as the algorithm has it; ``none`` takes it away."""
    base = DR_GRPO.replace(
        plan=SamplingPlan(
            drop_solved=0.9,
            order="hard_first",
            thinking_budget=ThinkingBudget(min_tokens=10, max_tokens=12, text="stop"),
        )
    )

    def plan(**changes: Any) -> SamplingPlan:
        bound: Algorithm = bind(base, {"plan": changes}, who="algorithm 'x'")
        return bound.plan

    assert (
        ThinkingBudget(min_tokens=10, max_tokens=20, text="stop")
        == plan(thinking_budget={"max_tokens": 20}).thinking_budget
    )
    assert ("hard_first", 0.9) == (plan(resample="dynamic").order, plan(resample="dynamic").drop_solved)
    assert (None, None) == (plan(thinking_budget="none").thinking_budget, plan(drop_solved="none").drop_solved)
    assert plan(drop_solved="none").thinking_budget == base.plan.thinking_budget


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"resampl": "dynamic"}, r"plan has no argument 'resampl'; did you mean 'resample'\?"),
        ({"resample": "always"}, "plan: resample is 'always'"),
        ({"attempts": "3"}, "plan: attempts is '3'; expected int"),
        ({"thinking_budget": {"min_tokens": 3}}, r"plan.thinking_budget needs the argument 'max_tokens' \(int\)"),
        (
            {"thinking_budget": {"min_tokens": 3, "max_tokens": 4, "untill": "x"}},
            "plan.thinking_budget has no argument 'untill'; did you mean",
        ),
        (
            {"thinking_budget": {"min_tokens": "3", "max_tokens": 4}},
            "plan.thinking_budget: min_tokens is '3'; expected int",
        ),
        ({"thinking_budget": 3}, "plan: thinking_budget is 3"),
        ({"resample": "none", "staleness": "none"}, "plan: staleness is 'none'; expected int"),
    ],
)
def test_mistakes_in_a_plan_are_named(changes: dict[str, Any], words: str) -> None:
    """Where, what was given and what was expected."""
    with pytest.raises(BindingError, match=words):
        bind(DR_GRPO, {"plan": changes}, who="algorithm 'dr_grpo'")


def test_ranges_are_checked_where_the_plan_is_made() -> None:
    """A thinking budget that ends before it begins, a rate above one."""
    for changes, words in (
        ({"thinking_budget": {"min_tokens": 5, "max_tokens": 4}}, "1 <= min_tokens <= max_tokens"),
        ({"drop_solved": 1.5}, "plan.drop_solved is 1.5"),
        ({"attempts": 0}, "plan.attempts is 0"),
    ):
        with pytest.raises(ValueError, match=words):
            bind(DR_GRPO, {"plan": changes}, who="algorithm 'dr_grpo'")


@pytest.mark.parametrize(("tokens", "noted"), [(None, False), (90, True), (100, False)])
def test_overlong_punishment_that_the_environment_forestalls_is_noted(tokens: int | None, noted: bool) -> None:
    """The punishment is a share of `sampling.max_tokens`; a smaller limit of the episode ends answers before."""
    recipe = Recipe.of({"sampling": {"max_tokens": 100}, "environments": [{"use": "x"}]})
    environments = [Talk().overridden(limits=Limits(tokens=tokens)), Talk()]
    found = [note for note in remarks(recipe, DAPO, environments) if "limits.tokens" in note]
    assert found == [note for note in found if "more than 80 of 100" in note and "stops episodes at 90" in note]
    assert bool(found) is noted
    assert not remarks(recipe, DAPO.replace(overlong=0.0), environments)


@pytest.mark.parametrize(
    ("changes", "noted"),
    [({}, True), ({"ratio_to": "mu"}, False), ({"correction": "tis"}, False), ({"objective": "policy_gradient"}, True)],
)
def test_an_algorithm_that_ignores_the_age_of_tokens_is_noted(changes: dict[str, Any], noted: bool) -> None:
    """Only where tokens may be older than the learner: no ratio and no correction then has the sampler's log-probs."""
    recipe = Recipe.of({"schedule": {"args": {"max_staleness": 2}}, "environments": [{"use": "x"}]})
    found = [note for note in remarks(recipe, DR_GRPO.replace(**changes), []) if "falls behind" in note]
    assert bool(found) is noted and all("ratio_to = 'mu'" in note for note in found)
    assert not remarks(recipe.replace({"schedule.args": {}}), DR_GRPO.replace(**changes), [])
