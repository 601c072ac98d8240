"""Names of a recipe become components."""

from __future__ import annotations

from pathlib import Path

import pytest

from quintain.errors import UnknownNameError, UsageError
from quintain.recipe import Recipe
from quintain.recipe.plan import RunPlan
from quintain.recipe.resolve import with_model


@pytest.mark.parametrize("engine", ["openai", "openai-tokens", "vllm-server"])
def test_a_model_that_a_server_knows_is_no_run(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that asks a server takes the server's name of a model."""
    monkeypatch.chdir(tmp_path)

    assert with_model(engine, {"model": "served"}).args == {"model": "served"}


def test_a_model_of_this_machine_is_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(UnknownNameError, match="no run 'served'"):
        with_model("embedded", {"model": "served"})


def test_a_plan_names_a_curriculum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(
        "from quintain.tasks import Mixture\nclass Own(Mixture): ...\nclass Other: ...\n"
    )
    recipe = "environments=[{use='arithmetic'}]\nalgorithm.args.plan.curriculum='own.py:%s'\n"

    assert RunPlan.of(Recipe.parse(recipe % "Own")).tasks.curriculum.__name__ == "Own"
    with pytest.raises(UsageError, match=r"'own\.py:Other' is no subclass of .*Curriculum"):
        RunPlan.of(Recipe.parse(recipe % "Other"))
    with pytest.raises(UsageError, match="curriculum"):
        RunPlan.of(Recipe.parse(recipe.replace("own.py:%s", "weekest")))
