"""An algorithm's plan, changed from a recipe: nested tables, ``--set``, and words for what TOML
cannot write.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from quintain import Limits
from quintain.errors import BindingError, RecipeError, UsageError
from quintain.interfaces.algorithm import Algorithm
from quintain.interfaces.sampling_plan import SamplingPlan
from quintain.learning.algorithms import DAPO, DR_GRPO
from quintain.recipe.plan import RunPlan
from quintain.recipe.resolve import resolve_algorithm, resolve_schedule
from quintain.recipe.tables import Recipe
from quintain.registry.binding import bind
from quintain.run.remarks import remarks
from quintain.types.sampling import ThinkingBudget

from ..run.everything import Talk

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
        [
            "algorithm.args.plan.resample=dynamic",
            "algorithm.args.plan.thinking_budget={min_tokens=3, max_tokens=4}",
        ],
    )

    for known in (recipe, Recipe.parse(recipe.to_toml())):
        assert (
            SamplingPlan(
                resample="dynamic", thinking_budget=ThinkingBudget(min_tokens=3, max_tokens=4)
            )
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
    assert plan(resample="dynamic").order == "hard_first"
    assert plan(resample="dynamic").drop_solved == 0.9
    assert plan(thinking_budget="none").thinking_budget is None
    assert plan(drop_solved="none").drop_solved is None
    assert plan(drop_solved="none").thinking_budget == base.plan.thinking_budget


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"resampl": "dynamic"}, r"plan has no argument 'resampl'; did you mean 'resample'\?"),
        ({"resample": "always"}, "plan: resample is 'always'"),
        ({"attempts": "3"}, "plan: attempts is '3'; expected int"),
        (
            {"thinking_budget": {"min_tokens": 3}},
            r"plan.thinking_budget needs the argument 'max_tokens' \(int\)",
        ),
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
def test_overlong_punishment_that_the_environment_forestalls_is_noted(
    tokens: int | None, noted: bool
) -> None:
    """The punishment is a share of `sampling.max_tokens`; a smaller limit of the episode ends
    answers before.
    """
    recipe = Recipe.parse(ENVIRONMENT, ["sampling.max_tokens=100"])
    plan = replace(RunPlan.of(recipe), algorithm=DAPO)
    environments = [Talk().overridden(limits=Limits(tokens=tokens)), Talk()]
    found = [note for note in remarks(plan, environments) if "limits.tokens" in note]
    assert found == [
        note for note in found if "more than 80 of 100" in note and "stops episodes at 90" in note
    ]
    assert bool(found) is noted
    assert not remarks(replace(plan, algorithm=DAPO.replace(overlong=0.0)), environments)


STALE = [
    {"schedule": {"use": "one_step_off", "args": {"max_staleness": 2}}},
    {"algorithm": {"args": {"plan": {"staleness": 2}}}},
]


def _stale_recipe(stale: dict[str, Any], use: str, args: dict[str, Any]) -> Recipe:
    own = {"use": use, "args": {**stale.get("algorithm", {}).get("args", {}), **args}}
    return Recipe.of({"environments": [{"use": "arithmetic"}], **stale, "algorithm": own})


@pytest.mark.parametrize("args", [{"max_staleness": 2}, {"in_flight_updates": True}])
def test_a_schedule_without_a_collector_cannot_overlap(args: dict[str, Any]) -> None:
    """The message names what to install; the synchronous schedule is of the package."""
    recipe = Recipe.of({"environments": [{"use": "arithmetic"}], "schedule": {"args": args}})

    with pytest.raises(UsageError, match=r"one that overlaps \(pip install quintain-scale\)"):
        resolve_schedule(recipe)


@pytest.mark.parametrize("stale", STALE)
@pytest.mark.parametrize(
    ("use", "args", "ratio_to", "noted"),
    [
        (
            "dr_grpo",
            {},
            "mu",
            'the ratio is to their sampler, as with algorithm.args.ratio_to = "mu"',
        ),
        ("dr_grpo", {"correction": "none"}, "mu", "the ratio is to their sampler"),
        ("dr_grpo", {"ratio_to": "mu"}, "mu", ""),
        (
            "dr_grpo",
            {"ratio_to": "prox"},
            "prox",
            'which dr_grpo ignores: set algorithm.args.ratio_to = "mu"',
        ),
        (
            "dr_grpo",
            {"correction": "tis"},
            "prox",
            "fell (docs/experiments/async_staleness.md), those with algorithm.args = { correction = "
            '"none", ratio_to = "mu" } did not',
        ),
        (
            "rloo",
            {"ratio_to": "prox"},
            "prox",
            'ratio_to = "mu" with an objective that has a ratio',
        ),
        ("simpo", {}, "prox", ""),
        ("rft", {"ratio_to": "prox"}, "prox", ""),
        ("gspo", {"ratio_to": "mu"}, "mu", ""),
    ],
)
def test_a_ratio_under_staleness_is_to_the_sampler_by_default(
    stale: dict[str, Any], use: str, args: dict[str, Any], ratio_to: str, noted: str
) -> None:
    """Whether a schedule or the plan makes tokens old; what a recipe says explicitly stays, and is
    noted if unsafe.
    """
    recipe = _stale_recipe(stale, use, args)
    plan = RunPlan.of(recipe)
    found = [note for note in plan.notes if "2 weight versions old" in note]
    assert plan.algorithm.ratio_to == ratio_to
    assert bool(found) == bool(noted)
    assert all(noted in note for note in found)


@pytest.mark.parametrize("stale", STALE)
@pytest.mark.parametrize(
    ("use", "args", "objective"),
    [("olmorl", {}, {}), ("rloo", {"correction": "tis"}, {"objective": "ppo_clip"})],
)
def test_what_the_note_on_weights_proposes_has_a_ratio_to_the_sampler(
    stale: dict[str, Any], use: str, args: dict[str, Any], objective: dict[str, Any]
) -> None:
    """And no note is left but that of a schedule in place of the plan's staleness."""
    (note,) = [n for n in RunPlan.of(_stale_recipe(stale, use, args)).notes if "fell" in n]
    changes = {**objective, "correction": "none", "ratio_to": "mu"}
    plan = RunPlan.of(_stale_recipe(stale, use, changes))

    assert ('objective = "ppo_clip"' in note) == bool(objective)
    assert plan.algorithm.ratio_to == "mu"
    assert plan.algorithm.has_ratio
    assert not [n for n in plan.notes if "versions old" in n]


@pytest.mark.parametrize("stale", STALE)
def test_an_objective_without_a_ratio_to_the_sampler_is_refused_under_staleness(
    stale: dict[str, Any],
) -> None:
    """The message has the lines to write, and each of them is accepted."""
    top = {"objective": {"use": "dppo_top"}}
    safe = {"objective": "ppo_clip", "ratio_to": "mu"}
    for use, args, line, changes in (
        ("grpo", top, 'algorithm.args.correction = "tis"', {"correction": "tis"}),
        ("grpo", top, 'algorithm.args.ratio_to = "prox"', {"ratio_to": "prox"}),
        ("rloo", {}, 'algorithm.args = { objective = "ppo_clip", ratio_to = "mu" }', safe),
        ("rloo", {}, 'algorithm.args.ratio_to = "prox"', {"ratio_to": "prox"}),
        (
            "rloo",
            {"ratio_to": "mu"},
            'algorithm.args = { objective = "ppo_clip", ratio_to = "mu" }',
            safe,
        ),
        (
            "rft",
            {},
            "ignores: objective 'policy_gradient' has no ratio to their sampler. Set "
            'algorithm.args.ratio_to = "prox" to imitate',
            {"ratio_to": "prox"},
        ),
        (
            "sft",
            {"ratio_to": "mu"},
            'Set algorithm.args.ratio_to = "prox" to imitate',
            {"ratio_to": "prox"},
        ),
    ):
        with pytest.raises(RecipeError, match=re.escape(line)) as refused:
            resolve_algorithm(_stale_recipe(stale, use, args))
        assert ("(plan.staleness)" if "algorithm" in stale else "(one_step_off)") in str(
            refused.value
        )
        assert "ppo_clip" not in str(refused.value) or use == "rloo"
        assert resolve_algorithm(_stale_recipe(stale, use, {**args, **changes}))


@pytest.mark.parametrize("stale", STALE)
def test_a_clip_narrower_than_staleness_is_refused_until_the_recipe_says_what_to_do(
    stale: dict[str, Any],
) -> None:
    """GSPO's bounds are for a ratio to prox; of one to the sampler they clip 87 % of the
    samples.
    """
    for use, args in (
        ("gspo", {}),
        ("dr_grpo", {"objective": "gspo_token"}),
        ("scalerl", {"objective": "gspo_token"}),
    ):
        wide = {"use": args.get("objective", "gspo"), "low": 0.02, "high": 0.02}
        line = (
            f'objective = {{ use = "{wide["use"]}", low = 0.02, high = 0.02 }}, ratio_to = "mu" }}'
        )
        with pytest.raises(RecipeError, match=re.escape(line)):
            resolve_algorithm(_stale_recipe(stale, use, args))
        for ratio_to in ("mu", "prox"):
            explicit = _stale_recipe(stale, use, {**args, "ratio_to": ratio_to})
            assert resolve_algorithm(explicit).ratio_to == ratio_to
        changed = resolve_algorithm(
            _stale_recipe(stale, use, {"objective": wide, "ratio_to": "mu"})
        )
        assert changed.objective.argument("low") == 0.02
    assert resolve_algorithm(_stale_recipe({}, "gspo", {})).ratio_to == "prox"


def test_without_staleness_nothing_about_the_ratio_changes() -> None:
    """Synchronous runs keep the ratio of the paper, and no remark speaks of versions."""
    recipe = _stale_recipe({}, "dr_grpo", {})
    assert resolve_algorithm(recipe).ratio_to == "prox"
    assert not RunPlan.of(recipe).notes
