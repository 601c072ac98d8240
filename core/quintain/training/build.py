"""From a recipe to a finished run: load the model, make learner and engine, start services, restore a checkpoint."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing, contextmanager
from typing import Any

import torch

from ..errors import RunError
from ..interfaces.algorithm import Algorithm
from ..interfaces.engine import TokenEngine
from ..interfaces.environment import Environment
from ..models.load import OUT_OF_MEMORY, LoadedModel, cache_bytes
from ..models.sharing import SuggestsSlots
from ..registry.binding import bind
from ..registry.lookup import current
from ..rollouts.runner import RolloutContext
from ..services.manager import opened
from ..types.sampling import derived_seed
from .async_collect import AsyncCollector
from .checkpoint import Checkpoint, CheckpointManager, latest
from .collect import Collector
from .hooks import Hooks
from .interrupts import run_loop, stop_on_signal
from .loop import train
from .metrics import distinct
from .policy_learner import PolicyLearner
from .provenance import header, provenance
from .recipe.tables import Recipe
from .replays import Replay, named
from .resolve import (
    EnvironmentSpec,
    chosen,
    curriculum_kind,
    engine_kind,
    resolve_algorithm,
    resolve_environment_table,
    resolve_schedule,
    shares,
)
from .run import Run, RunState
from .run_folder import RunFolder
from .sampler_check import max_sample_mismatch
from .schedule import Schedule
from .screen import Screen
from .sources import ModelRequest, model_source
from .tasks import Curriculum
from .weight_sync import WeightSync

PROMPT = 512
"""Assumed tokens of a prompt, to choose the number of slots."""


@contextmanager
def memory_advice() -> Iterator[None]:
    """Say in a `RunError` which keys lower the memory that a GPU does not have."""
    try:
        yield
    except torch.OutOfMemoryError as e:
        raise RunError(f"{OUT_OF_MEMORY} ({str(e).partition('. ')[0]})") from e


@memory_advice()
def run_training(recipe: Recipe, folder: RunFolder, screen: Screen) -> dict[str, Any]:
    """Start a run, or continue it from its last checkpoint; return its summary.

    Raises:
        Interrupted: the user asked to stop; every complete step is saved.
        UsageError: the recipe does not fit what is installed.
        RunError: the run cannot continue.
    """
    specs = [resolve_environment_table(table) for table in recipe.environments]
    algorithm = resolve_algorithm(recipe)
    if (checkpoint := latest(folder)) is not None:
        checkpoint.verify()
    began = time.monotonic()
    seed_everything(recipe.run.seed)
    model = model_for(recipe, specs, checkpoint, screen, folder.status)
    make_learner: Any = current().load("learner", recipe.learner.use)
    learner: PolicyLearner = make_learner(model.module, algorithm, **learner_options(recipe))
    if hasattr(learner, "max_sample_mismatch"):
        learner.max_sample_mismatch = max_sample_mismatch(recipe)
    seconds = {"model": time.monotonic() - began}
    return run_loop(_run_training(recipe, folder, screen, specs, algorithm, checkpoint, model, learner, seconds))


async def _run_training(
    recipe: Recipe,
    folder: RunFolder,
    screen: Screen,
    specs: Sequence[EnvironmentSpec],
    algorithm: Algorithm,
    checkpoint: Checkpoint | None,
    model: LoadedModel,
    learner: PolicyLearner,
    seconds: dict[str, float],
) -> dict[str, Any]:
    schedule = resolve_schedule(recipe)
    engine = engine_for(recipe, model, copy=schedule.overlaps or algorithm.plan.staleness > 0)
    engine.in_flight_updates, engine.recompute_kv = schedule.in_flight_updates, schedule.recompute_kv
    others = [resolve_environment_table(table) for table in recipe.evaluation.environments]
    slots = {slot for spec in (*specs, *others) for slot in spec.slots} | algorithm.slots
    state = checkpoint.state if checkpoint else None
    replays = Replay()
    own = {"policy": engine, "learner": learner, "replay": replays}
    async with engine, opened(chosen(recipe, algorithm), slots, own, state and state["services"]) as services:
        learner.serve(services)
        algorithm = learner.algorithm or algorithm
        environments = [spec.make(services) for spec in specs]
        for note in remarks(recipe, algorithm, environments):
            screen.note(note)
        replays.environments = named(distinct(spec.name for spec in specs), environments)
        run = Run(
            recipe=recipe,
            folder=folder,
            learner=learner,
            engine=engine,
            collector=collector_for(recipe, algorithm, schedule, engine, environments, services, replays, screen),
            held_out=[spec.make(services) for spec in others] or environments,
            services=services,
            hooks=Hooks.installed(),
            screen=screen,
            checkpoints=CheckpointManager(
                folder, tokenizer=model.tokenizer, keep=recipe.checkpoint.keep, best=recipe.checkpoint.best
            ),
            weight_sync=WeightSync(engine, staleness=0 if schedule.overlaps else algorithm.plan.staleness),
        )
        if checkpoint is not None:
            run.restore(checkpoint)
            screen.note(f"continuing after step {run.state.step} of {recipe.run.steps}")
        else:
            folder.truncate_after(-1)  # also the metrics of step 0
            run.state = RunState(seconds=seconds)
        folder.append(provenance(recipe, model.module), folder.provenance_path)
        rows = getattr(engine, "slots", 0)  # an engine of another process has its own memory
        tokens = 2 * recipe.sampling.max_tokens + PROMPT
        cache = rows and rows * cache_bytes(model.module, tokens, recipe.model.dtype)
        screen.note(header(recipe, model.module, cache=cache))
        await run.weight_sync.sync(learner.weights())
        loop = asyncio.get_running_loop()
        with stop_on_signal(
            screen,
            "stopping and saving; press Ctrl-C again to stop at once",
            on_stop=lambda: loop.call_soon_threadsafe(run.stop.set),
        ):
            async with aclosing(run.collector):
                return await train(run)


def remarks(recipe: Recipe, algorithm: Algorithm, environments: Sequence[Environment[Any, Any]]) -> list[str]:
    """Messages about settings of the algorithm that have no effect, or less, with this recipe and *environments*."""
    notes = []
    thinking_budget, longest = algorithm.plan.thinking_budget, recipe.sampling.max_tokens
    shortest = min((e.limits.tokens for e in environments if e.limits.tokens is not None), default=longest)
    if algorithm.overlong and shortest < longest:
        notes.append(
            f"{algorithm.name} punishes turns of more than {longest * (1 - algorithm.overlong):,.0f} of {longest:,} "
            f"tokens (sampling.max_tokens), but an environment stops episodes at {shortest:,} (limits.tokens); lower "
            "sampling.max_tokens to that limit"
        )
    if thinking_budget is not None and thinking_budget.min_tokens >= longest:
        notes.append(
            f"{algorithm.name} interrupts a turn after {thinking_budget.min_tokens:,} to "
            f"{thinking_budget.max_tokens:,} tokens, but sampling.max_tokens is {longest:,}, so it never does; set "
            "algorithm.args.plan.thinking_budget to fewer tokens"
        )
    if algorithm.plan.staleness and recipe.schedule.use.rpartition("/")[2] != "sync":
        notes.append(
            f"{algorithm.name} simulates a staleness of {algorithm.plan.staleness} in synchronous runs; this run has "
            f"that of the schedule {recipe.schedule.use!r}"
        )
    reads_mu = algorithm.corrected or (algorithm.ratio_to == "mu" and algorithm.has_ratio)
    if not reads_mu and resolve_schedule(recipe).max_staleness:
        fix = "set algorithm.args.ratio_to = 'mu' for an objective with a ratio, or correction = 'tis'"
        notes.append(f"{recipe.schedule.use}: the sampler falls behind, which {algorithm.name} ignores; {fix}")
    if recipe.model.lora and recipe.learner.lr < 1e-5:
        notes.append(f"learner.lr is {recipe.learner.lr:g}, a rate for all weights; adapters usually need 1e-5 to 5e-5")
    if algorithm.float32_head and recipe.model.dtype not in ("float32", "float64"):
        notes.append(
            f"{algorithm.name} requires a float32 head on both sides, but the engine decodes in "
            f'{recipe.model.dtype}: set model.dtype = "float32"'
        )
    return notes


def seed_everything(seed: int) -> None:
    """Seed the generators of the process, for initial adapter weights and for plugins that use them."""
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
    specs: Sequence[EnvironmentSpec],
    checkpoint: Checkpoint | None,
    screen: Screen,
    status: Callable[[str], AbstractContextManager[None]],
) -> LoadedModel:
    """The model to train, from the checkpoint or from the model source of the recipe.

    Raises:
        UsageError: the model cannot be loaded.
    """
    request = ModelRequest.of(recipe, screen, specs)
    # The checkpoint's model has the adapters merged; to train them, the base model is needed.
    if checkpoint is not None and request.lora is None:
        model = request.load_model(checkpoint.model, f"the checkpoint of step {checkpoint.step}")
        model.tokenizer.name = checkpoint.tokenizer or model.tokenizer.name
    else:
        with status("preparing"):
            model = model_source(recipe).load(request)
    model.tokenizer.use_tool_format(recipe.model.tool_format)
    model.tokenizer.use_template(recipe.model.template)
    return model


def embedded_engine(model: LoadedModel, *, slots: int, reproducible: bool = True) -> TokenEngine:
    """An engine that decodes the live module of *model*; `TokenEngine.update` publishes new weights.

    Args:
        slots: maximum number of sequences decoded at once.
        reproducible: see `EmbeddedEngine`.
    """
    kind: Any = current().load("engine", "quintain/embedded")
    engine: TokenEngine = kind.sharing(model.module, model.tokenizer, slots=slots, reproducible=reproducible)
    return engine


def engine_for(recipe: Recipe, model: LoadedModel, *, copy: bool = False) -> Any:
    """The engine that samples for the learner; *copy*: with weights of its own, apart from those that train.

    Raises:
        UsageError: the engine cannot train.
    """
    kind = engine_kind(recipe)
    if not shares(kind):
        return bind(kind, recipe.engine.args, {}, who="[engine]")
    args = {"dtype": recipe.model.dtype, **({"copy": True} if copy else {}), **recipe.engine.args}
    if "slots" not in args and isinstance(kind, SuggestsSlots):
        samples, tokens = recipe.batch.prompts * recipe.batch.group_size, 2 * recipe.sampling.max_tokens + PROMPT
        args["slots"] = kind.slots_for(model.module, samples=samples, tokens=tokens, dtype=args["dtype"])
    return bind(kind.sharing, args, who="[engine]")(model.module, model.tokenizer)


def collector_for(
    recipe: Recipe,
    algorithm: Algorithm,
    schedule: Schedule,
    engine: TokenEngine,
    environments: Sequence[Environment[Any, Any]],
    services: Mapping[str, Any],
    replays: Replay,
    screen: Screen,
) -> Collector:
    """What collects the groups of a step; it runs episodes ahead if *schedule* overlaps."""
    settings: dict[str, Any] = {
        "algorithm": algorithm,
        "curriculum": curriculum_for(recipe, environments, algorithm),
        "environments": environments,
        "names": distinct(table.label for table in recipe.environments),
        "rollout_context": rollout_context_for(recipe, algorithm, engine, services),
        "groups": recipe.batch.prompts,
        "group_size": recipe.batch.group_size,
        "min_group_size": recipe.batch.min_group_size or 1,
        "screen": screen,
        "replays": replays,
    }
    if not schedule.overlaps:
        return Collector(**settings)
    return AsyncCollector(**settings, schedule=schedule, engine=engine, steps=recipe.run.steps)


def curriculum_for(recipe: Recipe, environments: Sequence[Environment[Any, Any]], algorithm: Algorithm) -> Curriculum:
    """The curriculum of the recipe."""
    return curriculum_kind(algorithm.plan)(
        environments,
        weights=[table.weight for table in recipe.environments],
        names=[table.label for table in recipe.environments],
        seed=recipe.run.seed,
        plan=algorithm.plan,
        horizon=recipe.run.steps * recipe.batch.prompts,
    )


def rollout_context_for(
    recipe: Recipe, algorithm: Algorithm, engine: TokenEngine, services: Mapping[str, Any]
) -> RolloutContext:
    """The context of the rollouts of all steps."""
    return RolloutContext(
        engine=engine,
        sampling=recipe.sampling.to_sampling().replace(
            prune=algorithm.prune, thinking_budget=algorithm.plan.thinking_budget
        ),
        services=services,
        run_seed=recipe.run.seed,
        concurrency=recipe.batch.concurrency or engine.concurrency or RolloutContext.concurrency,
        retries=recipe.batch.retries,
    )
