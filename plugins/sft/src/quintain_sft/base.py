"""What commands share that train a model on stored examples: its recipe, its folder, its
weights.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quintain.errors import UsageError

if TYPE_CHECKING:
    from quintain.console import Screen
    from quintain.models import LoadedModel
    from quintain.recipe import Recipe

KEYS = ("learner", "model")
REFUSED = {
    "name": "say --model",
    "dtype": "weights train in float32; learner.precision=bf16 computes in less",
    "start": "this is supervised training itself; `quintain start` trains the default model",
}
"""Keys of [model] that have no use here, and what to do instead."""


def base_recipe(
    command: str,
    source: str,
    model: str,
    *,
    folder: str,
    lr: float,
    seed: int,
    args: Sequence[str] = (),
    overrides: Sequence[str] = (),
) -> Recipe:
    """Make the recipe of a *command* that trains *model* on *source* without rollouts.

    Args:
        model: folder, run, hub id, or a component that loads models.
        folder: of the run folders.
        args: ``key=value`` of the environment, where *source* is one.
        overrides: ``a.b=value``, of the keys that have a meaning here.

    Raises:
        UsageError: an override of another key.
    """
    from quintain.recipe import Recipe, is_model_source, override
    from quintain.store import model_named

    for pair in overrides:
        key = override(pair)[0]
        if key[0] not in KEYS or len(key) < 2:
            raise UsageError(
                f"--set {pair!r}: here only keys of learner and model can be set, as in "
                f"learner.betas"
            )
        if key[0] == "model" and key[1] in REFUSED:
            raise UsageError(f"--set {pair!r}: {REFUSED[key[1]]}")
    path = model if is_model_source(model) else model_named(model, folder)[0]
    settings = [f"environments.0.use={json.dumps(source)}", f"run.seed={seed}"]
    settings += [f"model.name={json.dumps(path)}", f"learner.lr={float(lr)!r}"]
    settings += [f"environments.0.args.{pair}" for pair in args]
    return Recipe.parse("", [*settings, *overrides], source=command)


def learner_settings(recipe: Recipe, overrides: Sequence[str]) -> dict[str, Any]:
    """Return what the recipe says to the learner, without the learning rate; the warm-up only where
    it was set.
    """
    from quintain.recipe import override
    from quintain.run import learner_options

    options = learner_options(recipe.learner)
    del options["lr"]
    if ("learner", "warmup_steps") not in {override(pair)[0] for pair in overrides}:
        del options["warmup_steps"]
    return options


@contextmanager
def reserved(out: Path | None, parent: Path, source: str) -> Iterator[Path]:
    """Make an empty folder for a model now, so that nobody else takes its name; it goes where it
    stays empty.

    Args:
        out: the folder; ``None`` for ``SOURCE-N`` in *parent*.

    Raises:
        UsageError: there is something at *out*.
        StorageError: it cannot be made.
    """
    from quintain.store import storing

    from .tuning import filled, new_folder

    if out is not None and filled(out):
        raise UsageError(f"--out {str(out)!r} is there already; name a new folder, or remove it")
    name = source.partition(":")[2] or source.rstrip("/")
    place = (parent if out is None else out).absolute()
    new_folders = [path for path in (place, *place.parents) if not path.exists()]
    with storing(place):
        place.mkdir(parents=True, exist_ok=True)
        if out is None:
            out = new_folder(parent, Path(name).stem.lower() or "model")
            new_folders.insert(0, out)
    try:
        yield out if out.name not in ("", "..") else out.resolve()
    finally:
        for path in new_folders:
            with suppress(OSError):  # it is filled, or gone
                path.rmdir()


def base_model(recipe: Recipe, screen: Screen) -> LoadedModel:
    """Load the model of *recipe*, with its template and format of tool calls."""
    from quintain.recipe import ModelRequest, model_source
    from quintain.run import seed_everything

    seed_everything(recipe.run.seed)
    model = model_source(recipe).load_base(ModelRequest.of(recipe, screen, specs=()))
    model.tokenizer.use_tool_format(recipe.model.tool_format)
    model.tokenizer.use_template(recipe.model.template)
    model.tokenizer.use_history(recipe.model.history)
    return model
