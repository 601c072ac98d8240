"""A row's plan, changed from a recipe: nested tables, ``--set``, and words for what TOML cannot write."""

from __future__ import annotations

from typing import Any

import pytest

from quintain.errors import BindingError
from quintain.interfaces.algorithm import Row
from quintain.interfaces.sampling_plan import Plan
from quintain.learning.algorithms import DR_GRPO
from quintain.registry.binding import bind
from quintain.training.recipe.tables import Recipe
from quintain.training.resolve import algorithm
from quintain.types.sampling import Interrupt

ENVIRONMENT = '[[environments]]\nuse = "arithmetic"\n'


def row(text: str = "", *overrides: str) -> Row:
    return algorithm(Recipe.parse(ENVIRONMENT + text, overrides))


def test_a_plan_from_a_recipe() -> None:
    """Tables, nested ones too, with types as everywhere: an int is a float, a list a tuple."""
    plan = row(
        """
        [algorithm.args.plan]
        refill = "active"
        retire = 1
        probe = 4
        keep = [0.1, 0.9]
        lag = 2
        [algorithm.args.plan.interrupt]
        low = 5
        high = 9
        text = "now"
        """
    ).plan

    assert (
        Plan(
            refill="active",
            retire=1.0,
            probe=4,
            keep=(0.1, 0.9),
            lag=2,
            interrupt=Interrupt(low=5, high=9, text="now"),
        )
        == plan
    )


def test_a_plan_from_the_command_line() -> None:
    """``--set`` reaches into the plan, and survives the recipe that is saved in the run folder."""
    recipe = Recipe.parse(
        ENVIRONMENT,
        ["algorithm.args.plan.refill=rounds", "algorithm.args.plan.interrupt={low=3, high=4}"],
    )

    for known in (recipe, Recipe.parse(recipe.to_toml())):
        assert Plan(refill="rounds", interrupt=Interrupt(low=3, high=4)) == algorithm(known).plan


def test_a_table_changes_what_the_row_has() -> None:
    """What is not said stays as the method has it; ``none`` takes it away."""
    base = DR_GRPO.but(plan=Plan(retire=0.9, order="failures", interrupt=Interrupt(low=10, high=12, text="stop")))

    def plan(**changes: Any) -> Plan:
        bound: Row = bind(base, {"plan": changes}, who="algorithm 'x'")
        return bound.plan

    assert Interrupt(low=10, high=20, text="stop") == plan(interrupt={"high": 20}).interrupt
    assert ("failures", 0.9) == (plan(refill="rounds").order, plan(refill="rounds").retire)
    assert (None, None) == (plan(interrupt="none").interrupt, plan(retire="none").retire)
    assert plan(retire="none").interrupt == base.plan.interrupt


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"refil": "rounds"}, r"plan has no argument 'refil'; did you mean 'refill'\?"),
        ({"refill": "always"}, "plan: refill is 'always'"),
        ({"attempts": "3"}, "plan: attempts is '3'; expected int"),
        ({"interrupt": {"low": 3}}, r"plan.interrupt needs the argument 'high' \(int\)"),
        ({"interrupt": {"low": 3, "high": 4, "untill": "x"}}, "plan.interrupt has no argument 'untill'; did you mean"),
        ({"interrupt": {"low": "3", "high": 4}}, "plan.interrupt: low is '3'; expected int"),
        ({"interrupt": 3}, "plan: interrupt is 3"),
        ({"refill": "none", "lag": "none"}, "plan: lag is 'none'; expected int"),
    ],
)
def test_mistakes_in_a_plan_are_named(changes: dict[str, Any], words: str) -> None:
    """Where, what was given and what was expected."""
    with pytest.raises(BindingError, match=words):
        bind(DR_GRPO, {"plan": changes}, who="algorithm 'dr_grpo'")


def test_ranges_are_checked_where_the_plan_is_made() -> None:
    """An interruption that ends before it begins, a rate above one."""
    for changes, words in (
        ({"interrupt": {"low": 5, "high": 4}}, "1 <= low <= high"),
        ({"retire": 1.5}, "plan.retire is 1.5"),
        ({"attempts": 0}, "plan.attempts is 0"),
    ):
        with pytest.raises(ValueError, match=words):
            bind(DR_GRPO, {"plan": changes}, who="algorithm 'dr_grpo'")
