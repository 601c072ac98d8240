"""From a recipe to a finished run: load the model, make learner and engine, start services, take up a checkpoint."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from ..interfaces.algorithm import Row
from ..interfaces.engine import SuggestsSlots, TokenEngine
from ..interfaces.environment import Environment
from ..interfaces.learner import PolicyLearner
from ..models.load import LoadedModel
from ..models.snapshot import Snapshot
from ..registry.binding import bind
from ..registry.lookup import current
from ..rollouts.runner import Setting
from ..services.manager import opened
from ..types.sampling import derived_seed
from .checkpoint import Checkpoint, Keeper, latest
from .collect import Collector
from .hooks import Hooks
from .interrupts import stop_on_signal
from .loop import train
from .metrics import distinct
from .recipe.tables import Recipe
from .replays import Replays, named
from .resolve import Casting, algorithm, cast_table, chosen, curriculum_kind, engine_kind, shares
from .run import Run, RunState
from .run_folder import RunFolder
from .screen import Screen
from .sources import ModelRequest, model_source
from .tasks import Curriculum
from .weight_sync import Publisher

PROMPT = 512
"""Tokens that a prompt is taken to have, for how much is decoded at once."""


def conduct(recipe: Recipe, folder: RunFolder, screen: Screen) -> dict[str, Any]:
    """Start a run, or continue it from its last checkpoint; return its summary.

    Raises:
        Interrupted: the user asked to stop; every complete step is saved.
        UsageError: the recipe does not fit what is installed.
        RunError: the run cannot continue.
    """
    castings = [cast_table(table) for table in recipe.environments]
    row = algorithm(recipe)
    checkpoint = latest(folder)
    began = time.monotonic()
    seed_everything(recipe.run.seed)
    model = model_for(recipe, castings, checkpoint, screen, folder.doing)
    make_learner: Any = current().load("learner", recipe.learner.use)
    learner: PolicyLearner = make_learner(model.module, row, **learner_options(recipe))
    seconds = {"model": time.monotonic() - began}
    return asyncio.run(_conduct(recipe, folder, screen, castings, row, checkpoint, model, learner, seconds))


async def _conduct(
    recipe: Recipe,
    folder: RunFolder,
    screen: Screen,
    castings: Sequence[Casting],
    row: Row,
    checkpoint: Checkpoint | None,
    model: LoadedModel,
    learner: PolicyLearner,
    seconds: dict[str, float],
) -> dict[str, Any]:
    mirror = mirror_for(recipe, row, model)
    engine = engine_for(recipe, model if mirror is None else replace(model, module=mirror.module))
    slots = {slot for casting in castings for slot in casting.slots} | row.slots
    state = checkpoint.state if checkpoint else None
    replays = Replays()
    own = {"policy": engine, "learner": learner, "replay": replays}
    async with engine, opened(chosen(recipe, row), slots, own, state and state["services"]) as services:
        learner.serve(services)
        row = learner.row or row
        for note in remarks(recipe, row):
            screen.note(note)
        environments = [casting.make(services) for casting in castings]
        replays.environments = named(distinct(casting.name for casting in castings), environments)
        run = Run(
            recipe=recipe,
            folder=folder,
            learner=learner,
            engine=engine,
            collector=Collector(
                row=row,
                curriculum=curriculum_for(recipe, environments, row),
                environments=environments,
                names=distinct(table.use for table in recipe.environments),
                setting=setting_for(recipe, row, engine, services),
                groups=recipe.batch.groups,
                members=recipe.batch.members,
                min_members=recipe.batch.min_members or 1,
                screen=screen,
                replays=replays,
            ),
            services=services,
            hooks=Hooks.installed(),
            screen=screen,
            checkpoints=Keeper(folder, codec=model.codec, keep=recipe.checkpoint.keep, best=recipe.checkpoint.best),
            weight_sync=Publisher(engine, lag=row.plan.lag, mirror=mirror),
        )
        if checkpoint is not None:
            run.restore(checkpoint)
            screen.note(f"going on after step {run.state.step} of {recipe.run.steps}")
        else:
            folder.truncate_after(-1)  # not even the line of before training
            run.state = RunState(seconds=seconds)
        await run.weight_sync.publish(learner.weights())
        loop = asyncio.get_running_loop()
        with stop_on_signal(
            screen,
            "stopping and saving; once more to stop at once",
            on_stop=lambda: loop.call_soon_threadsafe(run.stop.set),
        ):
            return await train(run)


def remarks(recipe: Recipe, row: Row) -> list[str]:
    """What of the row has no effect with this recipe, in plain words."""
    notes = []
    interrupt, longest = row.plan.interrupt, recipe.sampling.max_tokens
    if interrupt is not None and interrupt.low >= longest:
        notes.append(
            f"{row.name} interrupts a turn after {interrupt.low:,} to {interrupt.high:,} tokens, and "
            f"sampling.max_tokens is {longest:,}: it never will; set algorithm.args.plan.interrupt for such turns"
        )
    if row.float32_head and recipe.model.dtype not in ("float32", "float64"):
        notes.append(
            f"{row.name} wants a float32 head on both sides, and the engine decodes in {recipe.model.dtype}: set "
            'model.dtype = "float32"'
        )
    return notes


def seed_everything(seed: int) -> None:
    """Seed the process's own generators, for adapters' first weights and for authors' code that draws from them."""
    import numpy
    import torch

    random.seed(derived_seed(seed, "python"))
    numpy.random.seed(derived_seed(seed, "numpy") % 2**32)
    torch.manual_seed(derived_seed(seed, "torch"))


def learner_options(recipe: Recipe) -> dict[str, Any]:
    """The keyword arguments of `Learner` that the recipe sets."""
    options = recipe.learner.model_dump(exclude_none=True)
    del options["use"]
    options["activation_checkpointing"] = options.pop("checkpoint_activations")
    return options


def model_for(
    recipe: Recipe,
    castings: Sequence[Casting],
    checkpoint: Checkpoint | None,
    screen: Screen,
    doing: Callable[[str], AbstractContextManager[None]],
) -> LoadedModel:
    """The model to train: that of the checkpoint, or what the recipe's model source brings.

    Raises:
        UsageError: it cannot be loaded.
    """
    request = ModelRequest.of(recipe, screen, castings)
    # With adapters the checkpoint's model has them merged, and the model below them is needed again.
    if checkpoint is not None and request.lora is None:
        return request.load_model(checkpoint.model)
    with doing("preparing"):
        return model_source(recipe).load(request)


def embedded_engine(model: LoadedModel, *, slots: int) -> TokenEngine:
    """An engine that decodes the live module of *model*, whoever trains it; `TokenEngine.update` publishes new weights.

    Args:
        slots: sequences decoded at once at most.
    """
    engine: TokenEngine = current().load("engine", "embedded").sharing(model.module, model.codec, slots=slots)
    return engine


def engine_for(recipe: Recipe, model: LoadedModel) -> Any:
    """The engine that samples for the learner.

    Raises:
        UsageError: the engine cannot train.
    """
    kind = engine_kind(recipe)
    if not shares(kind):
        return bind(kind, recipe.engine.args, {}, who="[engine]")
    args = {"dtype": recipe.model.dtype, **recipe.engine.args}
    if "slots" not in args and isinstance(kind, SuggestsSlots):
        samples, tokens = recipe.batch.groups * recipe.batch.members, 2 * recipe.sampling.max_tokens + PROMPT
        args["slots"] = kind.slots_for(model.module, samples=samples, tokens=tokens)
    return bind(kind.sharing, args, who="[engine]")(model.module, model.codec)


def mirror_for(recipe: Recipe, row: Row, model: LoadedModel) -> Snapshot | None:
    """What an engine that decodes a live module decodes in place of the learner's, where the row's plan has a lag."""
    if not (row.plan.lag and shares(engine_kind(recipe))):
        return None
    return Snapshot.apart(model.module)


def curriculum_for(recipe: Recipe, environments: Sequence[Environment[Any, Any]], row: Row) -> Curriculum:
    """Which tasks come when."""
    return curriculum_kind(row.plan)(
        environments,
        weights=[row.weight for row in recipe.environments],
        names=[row.use for row in recipe.environments],
        seed=recipe.run.seed,
        plan=row.plan,
        horizon=recipe.run.steps * recipe.batch.groups,
    )


def setting_for(recipe: Recipe, row: Row, engine: TokenEngine, services: Mapping[str, Any]) -> Setting:
    """What the episodes of all steps share."""
    return Setting(
        engine=engine,
        how=recipe.sampling.how().but(prune=row.prune, interrupt=row.plan.interrupt),
        services=services,
        run_seed=recipe.run.seed,
        concurrency=recipe.batch.concurrency or engine.concurrency or Setting.concurrency,
        retries=recipe.batch.retries,
    )
