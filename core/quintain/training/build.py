"""From a recipe to a finished run: models loaded or grown, services started, signals heard, checkpoints taken up."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

from ..errors import NoTasksError, PluginError, UsageError
from ..evaluation.evaluate import tasks_of
from ..interfaces.algorithm import Candidate, Row
from ..interfaces.engine import SharesModule, SuggestsSlots, TokenEngine
from ..interfaces.environment import Environment
from ..learning.learner import Learner
from ..models.load import LoadedModel, as_device, load_model
from ..models.snapshot import Snapshot
from ..registry.binding import bind, check_args
from ..registry.hooks import Hooks
from ..registry.lookup import current
from ..rollouts.replay import Replays, named
from ..services.manager import opened, plan
from ..types.sampling import derived_seed
from .checkpoint import Checkpoint, Keeper, latest
from .loop import train
from .metrics import distinct
from .recipe.tables import Component, Recipe
from .resolve import Casting, cast_table
from .run import Run, Standing
from .run_folder import RunFolder
from .screen import Screen
from .task_order import level_of
from .tasks import Curriculum
from .weight_sync import Publisher

PROMPT = 512
"""Tokens that a prompt is taken to have, for how much is decoded at once."""
GIVEN = ("policy", "learner", "replay")
"""Service slots that every run fills itself: its engine, its learner, its episodes played again."""


def conduct(recipe: Recipe, folder: RunFolder, screen: Screen) -> dict[str, Any]:
    """Start a run, or go on from its last checkpoint; its summary.

    Raises:
        Interrupted: the user asked to stop; what was complete is saved.
        UsageError: the recipe does not fit what is installed.
        RunError: the run cannot go on.
    """
    castings = [cast_table(table) for table in recipe.environments]
    row = algorithm(recipe)
    checkpoint = latest(folder)
    began = time.monotonic()
    seed_everything(recipe.run.seed)
    model = model_for(recipe, castings, checkpoint, screen, folder.doing)
    learner = Learner(model.module, row, **learner_options(recipe))
    return asyncio.run(
        _conduct(recipe, folder, screen, castings, row, checkpoint, model, learner, time.monotonic() - began)
    )


async def _conduct(
    recipe: Recipe,
    folder: RunFolder,
    screen: Screen,
    castings: Sequence[Casting],
    row: Row,
    checkpoint: Checkpoint | None,
    model: LoadedModel,
    learner: Learner,
    preparing: float,
) -> dict[str, Any]:
    mirror = mirror_for(recipe, row, model)
    engine = engine_for(recipe, model if mirror is None else replace(model, module=mirror.module))
    wanted = {slot for casting in castings for slot in casting.slots} | row.slots
    state = checkpoint.state if checkpoint else None
    replays = Replays()
    given = {"policy": engine, "learner": learner, "replay": replays}
    async with engine, opened(chosen(recipe, row), wanted, given, state and state["services"]) as services:
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
            row=row,
            curriculum=curriculum_for(recipe, environments, row),
            environments=environments,
            services=services,
            hooks=Hooks.installed(),
            screen=screen,
            keeper=Keeper(folder, codec=model.codec, keep=recipe.checkpoint.keep, best=recipe.checkpoint.best),
            publisher=Publisher(engine, lag=row.plan.lag, mirror=mirror),
            replays=replays,
        )
        if checkpoint is not None:
            run.restore(checkpoint)
            screen.note(f"going on after step {run.at.step} of {recipe.run.steps}")
        else:
            folder.truncate_after(-1)  # not even the line of before training
            run.at = Standing(seconds={"model": preparing})
        await run.publish()
        with stopping(run):
            return await train(run)


def check(recipe: Recipe) -> None:
    """Find out what can be known without loading a model: names, arguments, service slots, tasks.

    Raises:
        UsageError: something in the recipe does not fit what is installed.
        NoTasksError: an environment has no tasks in a split that is used.
        PluginError: a component cannot be loaded.
    """
    row = algorithm(recipe)
    check_members(recipe, row)
    as_device(recipe.model.device)
    check_engine(recipe)
    if recipe.model.starts_supervised:
        from .starter import grow

        check_args(grow, recipe.model.start.args, who="[model.start]")
    castings = [cast_table(table) for table in recipe.environments]
    wanted = {slot for casting in castings for slot in casting.slots} | row.slots
    for slot, component, args in plan(chosen(recipe, row), wanted, dict.fromkeys(GIVEN)):
        check_args(component, args, who=f"[services.{slot}]")
    for casting in castings:
        check_args(casting.component, casting.args, who=f"environment {casting.name!r}")
        if not casting.slots:  # the tasks of one with services are seen when they run
            check_tasks(recipe, casting, row)


def check_members(recipe: Recipe, row: Row) -> None:
    """Refuse groups that the row would never admit.

    Raises:
        UsageError: not even a complete group of different rewards.
    """
    members = recipe.batch.members
    if row.admission.needs:  # its services are not there yet
        return
    verdicts = tuple(float(i % 2) for i in range(members))
    refused = str(row.admission(Candidate(verdicts=verdicts, totals=verdicts, requested=members)))
    if refused:
        raise UsageError(
            f"batch.members is {members}, and algorithm {recipe.algorithm.use!r} admits no group of that size "
            f"({refused}): take more members, or a method without groups such as reinforce_pp"
        )


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


def chosen(recipe: Recipe, row: Row) -> dict[str, Component]:
    """What fills each service slot: as the recipe says, else as the algorithm does."""
    return {slot: Component(use=use) for slot, use in row.services.items()} | dict(recipe.services)


def check_engine(recipe: Recipe) -> None:
    """Refuse an engine that cannot train, or its arguments.

    Raises:
        UsageError: it cannot train, or an argument does not fit.
    """
    kind: Any = current().load("engine", recipe.engine.use)
    trainable(kind, recipe)
    check_args(kind.sharing if shares(kind) else kind, recipe.engine.args, who="[engine]")


def check_tasks(recipe: Recipe, casting: Casting, row: Row) -> None:
    """Look for a first task in every split that the recipe uses.

    Raises:
        NoTasksError: there is none; names the key that leaves the split alone.
        UsageError: tasks are to come by level and this one has none.
        EnvironmentFault: the environment's own code failed.
    """
    environment = casting.make({})
    (first,) = tasks_of(environment, "train", 1, name=casting.name)
    if row.plan.order == "level":
        level_of(first, casting.name)
    table = recipe.evaluation
    final = table.test
    for used, split, key in (
        (table.every, table.split, "evaluation.every"),
        (final.tasks, final.split, "evaluation.test.tasks"),
    ):
        if used == 0:
            continue
        try:
            tasks_of(environment, split, 1, name=casting.name)
        except NoTasksError as e:
            raise NoTasksError(f"{e}. To train without: --set {key}=0") from e


def trainable(kind: Any, recipe: Recipe) -> None:
    """Refuse an engine that gives no exact tokens.

    Raises:
        UsageError: it cannot train.
    """
    if not (isinstance(kind, type) and issubclass(kind, TokenEngine)):
        raise UsageError(
            f"engine {recipe.engine.use!r} cannot train: it gives no exact tokens; `quintain eval` can use it. "
            'For training take engine.use = "embedded"'
        )


def seed_everything(seed: int) -> None:
    """Seed the process's own generators, for adapters' first weights and for authors' code that draws from them."""
    import numpy
    import torch

    random.seed(derived_seed(seed, "python"))
    numpy.random.seed(derived_seed(seed, "numpy") % 2**32)
    torch.manual_seed(derived_seed(seed, "torch"))


def shares(kind: Any) -> bool:
    """Whether engines of *kind* can decode the learner's own module; others get its weights through `update` alone."""
    return isinstance(kind, SharesModule)


def learner_options(recipe: Recipe) -> dict[str, Any]:
    """The keyword arguments of `Learner` that the recipe sets."""
    options = recipe.learner.model_dump(exclude_none=True)
    options["activation_checkpointing"] = options.pop("checkpoint_activations")
    return options


def algorithm(recipe: Recipe) -> Row:
    """The row that the recipe names, with its changes.

    Raises:
        PluginError: the name is that of something else.
    """
    row = current().load("algorithm", recipe.algorithm.use)
    if not isinstance(row, Row):
        raise PluginError(f"algorithm {recipe.algorithm.use!r} is a {type(row).__name__}; expected a Row")
    made: Row = bind(row, recipe.algorithm.args, who=f"algorithm {recipe.algorithm.use!r}")
    return made


def model_for(
    recipe: Recipe,
    castings: Sequence[Casting],
    checkpoint: Checkpoint | None,
    screen: Screen,
    doing: Callable[[str], AbstractContextManager[None]],
) -> LoadedModel:
    """The model to train: a checkpoint's, a folder's or the hub's, or one grown on demonstrations.

    Raises:
        UsageError: it cannot be loaded, or there are no demonstrations to grow it on.
    """
    table = recipe.model
    lora = table.lora.model_dump() if table.lora else None
    name = table.name
    if (
        checkpoint is not None and lora is None
    ):  # with adapters the checkpoint's model has them merged; the base goes under them
        name = str(checkpoint.model)
    elif table.starts_supervised:
        from .nursery import grown

        name = str(grown(castings, recipe, screen, doing))
    screen.phase(f"loading {table.name}")
    return load_model(name, device=table.device, dtype="float32" if table.dtype != "float64" else "float64", lora=lora)


def engine_for(recipe: Recipe, model: LoadedModel) -> Any:
    """The engine that samples for the learner.

    Raises:
        UsageError: the engine cannot train.
    """
    kind: Any = current().load("engine", recipe.engine.use)
    trainable(kind, recipe)
    if not shares(kind):
        return bind(kind, recipe.engine.args, {}, who="[engine]")
    args = {"dtype": recipe.model.dtype, **recipe.engine.args}
    if "slots" not in args and isinstance(kind, SuggestsSlots):
        samples, tokens = recipe.batch.groups * recipe.batch.members, 2 * recipe.sampling.max_tokens + PROMPT
        args["slots"] = kind.slots_for(model.module, samples=samples, tokens=tokens)
    return bind(kind.sharing, args, who="[engine]")(model.module, model.codec)


def mirror_for(recipe: Recipe, row: Row, model: LoadedModel) -> Snapshot | None:
    """What an engine that decodes a live module decodes in place of the learner's, where the row's plan has a lag."""
    if not (row.plan.lag and shares(current().load("engine", recipe.engine.use))):
        return None
    return Snapshot.apart(model.module)


def curriculum_for(recipe: Recipe, environments: Sequence[Environment[Any, Any]], row: Row) -> Curriculum:
    """Which tasks come when."""
    return Curriculum(
        environments,
        weights=[row.weight for row in recipe.environments],
        names=[row.use for row in recipe.environments],
        seed=recipe.run.seed,
        plan=row.plan,
        horizon=recipe.run.steps * recipe.batch.groups,
    )


@contextmanager
def stopping(run: Run) -> Iterator[None]:
    """Ctrl-C and SIGTERM stop the run after saving; a second Ctrl-C stops at once."""
    loop = asyncio.get_running_loop()

    def ask() -> None:
        if run.stop.is_set():
            raise KeyboardInterrupt
        run.stop.set()
        run.screen.note("stopping and saving; once more to stop at once")

    heard = [signal.SIGINT, signal.SIGTERM]
    for number in heard:
        loop.add_signal_handler(number, ask)
    try:
        yield
    finally:
        for number in heard:
            loop.remove_signal_handler(number)
