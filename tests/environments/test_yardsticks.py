"""Every environment and recipe of the project that trains on a proxy has a yardstick beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from quintain.interfaces.environment import Environment
from quintain.interfaces.reward import Reward
from quintain.recipe.plan import RunPlan
from quintain.recipe.resolve import EnvironmentSpec
from quintain.recipe.tables import Recipe
from quintain.registry.binding import Unstarted
from quintain.registry.lookup import current
from quintain.run.remarks import remarks

ROOT = Path(__file__).resolve().parents[2]
RECIPES = [*(ROOT / "core/quintain/recipes").glob("*.toml"), *(ROOT / "examples").glob("*.toml")]
PROXIES = {
    "quintain-env-chat/evolving_rubric",
    "quintain-env-chat/rubric_score",
    "quintain-env-chat/self_critique",
    "quintain-env-story/plan_nats",
    "quintain-env-story/vr_cli",
    "quintain-env-story/vr_cli_linear",
    "quintain-judge/judge_match",
    "quintain-judge/judge_pairs",
    "quintain-judge/judge_ranking",
    "quintain-judge/judge_score",
    "quintain-rewards/self_certainty",
    "quintain-offline/process_reward",
    "quintain-offline/learned_reward",
    "quintain-offline/picture_reward",
}


def component_names(kind: str) -> list[str]:
    return [
        f"{c.distribution}/{c.name}"
        for c in current().components(kind)
        if c.distribution != "quintain-extension"
    ]


@pytest.mark.more
def test_rewards_that_ask_a_model_or_a_rubric_are_marked() -> None:
    """A new one is either added here or is no proxy."""
    rewards = {name: current().load("reward", name) for name in component_names("reward")}

    assert {
        name for name, found in rewards.items() if isinstance(found, Reward) and found.proxy
    } == PROXIES


@pytest.mark.parametrize("name", component_names("environment"))
def test_environment_with_a_proxy_has_a_yardstick(name: str) -> None:
    component = current().load("environment", name)
    assert issubclass(component, Environment)

    if isinstance(given := getattr(component, "reward", None), Reward) and given.proxy:
        assert component.yardstick is not None
        assert not component.yardstick.proxy


@pytest.mark.parametrize(
    "path", sorted(RECIPES), ids=lambda path: f"{path.parent.name}-{path.stem}"
)
def test_recipe_with_a_proxy_has_a_yardstick(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recipes of the package and those of the repository."""
    monkeypatch.chdir(ROOT)
    recipe = Recipe.load(path)
    specs = [EnvironmentSpec.of(table) for table in recipe.environments]
    made = [spec.make(dict.fromkeys(spec.own_slots, Unstarted())) for spec in specs]

    assert not [note for note in remarks(RunPlan.of(recipe), made) if "yardstick" in note]
