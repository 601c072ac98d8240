"""The model that commands train on stored examples."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quintain.console import Screen
    from quintain.models import LoadedModel
    from quintain.recipe import Recipe


def base_model(recipe: Recipe, screen: Screen) -> LoadedModel:
    """Load the model of *recipe*, with its template and format of tool calls."""
    from quintain.recipe import ModelRequest, ModelSource
    from quintain.run import seed_everything

    seed_everything(recipe.run.seed)
    model = ModelSource.of(recipe).load_base(ModelRequest.of(recipe, screen, specs=()))
    model.tokenizer.use_tool_format(recipe.model.tool_format)
    model.tokenizer.use_template(recipe.model.template)
    model.tokenizer.use_history(recipe.model.history)
    return model
