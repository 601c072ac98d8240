"""From a plan to a finished run: load the model, make learner and engine, start services, restore
a checkpoint.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, aclosing, closing
from dataclasses import replace
from typing import Any

import torch

from ..console.screen import Screen
from ..interfaces.cluster import ProcessCluster
from ..interfaces.curriculum import Curriculum
from ..interfaces.engine import TokenEngine
from ..interfaces.environment import Environment
from ..interfaces.learner import AnyLearner
from ..interfaces.shared_module import shares_module
from ..models.load import LoadedModel, cache_bytes
from ..process.interrupts import run_coroutine, stop_on_signal
from ..recipe.plan import RunPlan
from ..recipe.planners import memory_advice, slots_of
from ..recipe.resolve import names_cluster
from ..recipe.tables import LearnerTable, Recipe
from ..registry.binding import bind, signature_of
from ..registry.lookup import current
from ..rollouts.runner import Play, RolloutContext
from ..services.manager import started_services
from ..store.checkpoint import Checkpoint, CheckpointManager, latest
from ..store.run_folder import RunFolder, as_current_run
from ..types.sampling import derived_seed
from .collect import Collector
from .episode_workers import played_elsewhere
from .hooks import Hooks
from .loop import training_loop
from .provenance import header, provenance
from .remarks import remarks
from .replays import Replay
from .run import Run, RunState
from .weight_sync import WeightSync


def run_training(recipe: Recipe, folder: RunFolder, screen: Screen) -> dict[str, Any]:
    """Start a run, or continue it from its last checkpoint; return its summary.

    Raises:
        Interrupted: the user asked to stop; every complete step is saved.
        UsageError: the recipe does not fit what is installed.
        RunError: the run cannot continue.
    """
    with as_current_run(folder), ExitStack() as stack:
        plan = RunPlan.of(recipe)
        if (checkpoint := latest(folder)) is not None:
            checkpoint.verify()
        began = time.monotonic()
        seed_everything(plan.seed)
        with memory_advice("loading", plan):
            model = model_for(plan, checkpoint, screen, folder.status)
            cluster = None if plan.cluster is None else stack.enter_context(closing(plan.cluster()))
            learner = stack.enter_context(closing(learner_for(plan, model, cluster)))
        seconds = {"model": time.monotonic() - began}
        return run_coroutine(
            _train_loaded(plan, folder, screen, checkpoint, model, learner, cluster, seconds)
        )


async def _train_loaded(
    plan: RunPlan,
    folder: RunFolder,
    screen: Screen,
    checkpoint: Checkpoint | None,
    model: LoadedModel,
    learner: AnyLearner,
    cluster: ProcessCluster | None,
    seconds: dict[str, float],
) -> dict[str, Any]:
    with memory_advice("loading", plan):
        engine = engine_for(plan, model, cluster)
    replays = Replay()
    own_services = {"policy": engine, "learner": learner, "replay": replays}
    states = checkpoint.state["services"] if checkpoint else None
    async with (
        engine,
        started_services(plan.services, set(plan.slots), own_services, states) as services,
    ):
        learner.serve(services)
        plan = replace(plan, algorithm=learner.algorithm or plan.algorithm)  # with its services
        environments = [spec.make(services) for spec in plan.environments]
        held_out = [spec.make(services) for spec in plan.evaluation.specs]
        play, notes = await played_elsewhere(plan, [*environments, *held_out], services, cluster)
        for note in (*remarks(plan, environments), *notes):
            screen.note(note)
        run = Run(
            plan=plan,
            folder=folder,
            learner=learner,
            engine=engine,
            collector=collector_for(plan, engine, environments, services, replays, screen, play),
            held_out=held_out or environments,
            services=services,
            hooks=Hooks.installed(services),
            screen=screen,
            checkpoints=CheckpointManager(
                folder,
                tokenizer=model.tokenizer,
                keep=plan.checkpoint.keep,
                best=plan.checkpoint.best,
                base=model.path,
                base_learner=plan.learner.model_dump(include={"use", "args"})
                if getattr(plan.learner_kind, "rounds_base", False)
                else None,
            ),
            weight_sync=WeightSync(
                engine, staleness=0 if plan.schedule.overlaps else plan.algorithm.plan.staleness
            ),
            state=RunState(seconds=seconds),
        )
        if checkpoint is not None:
            run.restore(checkpoint)
            screen.note(f"continuing after step {run.state.step} of {plan.steps}")
        else:
            if repeated := sum(1 for record in folder.metrics() if record["step"] > 0):
                screen.note(f"no checkpoint was saved: begins again, {repeated} steps are repeated")
            folder.truncate_after(-1)  # also the metrics of step 0
        folder.append(provenance(plan, model.module), folder.provenance_path)
        rows = getattr(engine, "slots", 0)  # an engine of another process has its own memory
        cache = rows and rows * cache_bytes(model.module, plan.sequence_tokens, plan.model.dtype)
        screen.note(header(plan, model.module, cache=cache))
        await run.weight_sync.sync(learner.weights())
        loop = asyncio.get_running_loop()
        with stop_on_signal(
            screen,
            "stopping and saving; press Ctrl-C again to stop at once",
            on_stop=lambda: loop.call_soon_threadsafe(run.stop.set),
        ):
            async with aclosing(run.collector):
                return await training_loop(run)


def seed_everything(seed: int) -> None:
    """Seed the generators of the process, for initial adapter weights and for plugins that use
    them.
    """
    import numpy

    random.seed(derived_seed(seed, "python"))
    numpy.random.seed(derived_seed(seed, "numpy") % 2**32)
    torch.manual_seed(derived_seed(seed, "torch"))


def learner_options(table: LearnerTable) -> dict[str, Any]:
    """Return the keyword arguments of a learner that ``[learner]`` sets."""
    options = table.model_dump(exclude_none=True, exclude={"use", "args"})
    options["activation_checkpointing"] = options.pop("checkpoint_activations")
    return options


def learner_for(
    plan: RunPlan, model: LoadedModel, cluster: ProcessCluster | None = None
) -> AnyLearner:
    """Make the learner of *model*. One that names ``max_sample_mismatch`` checks it in updates; one
    that names ``cluster`` starts its processes on *cluster*.
    """
    options = learner_options(plan.learner)
    of_run = {"max_sample_mismatch": plan.max_sample_mismatch, "cluster": cluster}
    named = {field.name for field in signature_of(plan.learner_kind).fields}
    options |= {name: value for name, value in of_run.items() if name in named}
    learner: AnyLearner = plan.learner_kind(model.module, plan.algorithm, **options)
    return learner


def model_for(
    plan: RunPlan,
    checkpoint: Checkpoint | None,
    screen: Screen,
    status: Callable[[str], AbstractContextManager[None]],
) -> LoadedModel:
    """Return the model to train, from the checkpoint or from the plan's model source.

    Raises:
        UsageError: the model cannot be loaded.
    """
    request = plan.model_request(screen)
    # With LoRA a checkpoint has only the adapters, or them merged. To train them, the base model is
    # needed.
    if checkpoint is not None and request.lora is None:
        model = request.load_model(checkpoint.model, f"the checkpoint of step {checkpoint.step}")
        model.tokenizer.name = checkpoint.tokenizer or model.tokenizer.name
    else:
        with status("preparing"):
            model = plan.source.load(request)
    model.tokenizer.use_tool_format(plan.model.tool_format)
    model.tokenizer.use_template(plan.model.template)
    model.tokenizer.use_history(plan.model.history)
    return model


def engine_for(
    plan: RunPlan, model: LoadedModel, cluster: ProcessCluster | None = None
) -> TokenEngine:
    """Make the engine that samples for the learner; it follows the plan's schedule. One that names
    ``cluster`` starts its processes on *cluster*.

    Raises:
        UsageError: a setting is refused.
    """
    placed = {} if cluster is None or not names_cluster(plan.engine) else {"cluster": cluster}
    if not shares_module(plan.engine):
        args = {**plan.engine_args, **placed}
        engine: TokenEngine = bind(plan.engine, args, {}, who="[engine]")
    else:
        copy = {"copy": True} if plan.copies_weights else {}
        args = {"dtype": plan.model.dtype, **copy, **plan.engine_args, **placed}
        if "slots" not in args and plan.decodes_beside_learner:
            args["slots"] = slots_of(plan, model.module)
        engine = bind(plan.engine.sharing, args, who="[engine]")(model.module, model.tokenizer)
    engine.follow(
        in_flight_updates=plan.schedule.in_flight_updates, recompute_kv=plan.schedule.recompute_kv
    )
    return engine


def curriculum_for(plan: RunPlan, environments: Sequence[Environment[Any, Any]]) -> Curriculum:
    """Make the curriculum, which chooses the tasks of *environments*."""
    return plan.curriculum(
        environments,
        weights=plan.weights,
        names=plan.labels,
        seed=plan.seed,
        plan=plan.algorithm.plan,
        horizon=plan.steps * plan.groups,
    )


def collector_for(
    plan: RunPlan,
    engine: TokenEngine,
    environments: Sequence[Environment[Any, Any]],
    services: Mapping[str, Any],
    replays: Replay,
    screen: Screen,
    play: Play | None = None,
) -> Collector:
    """Make what collects the groups of a step: of the kind that the schedule needs. *play* plays
    their episodes, in place of this process.
    """
    kind: type[Collector] = (
        current().load("collector", plan.schedule.collector)
        if plan.schedule.overlaps
        else Collector
    )
    return kind(
        algorithm=plan.algorithm,
        curriculum=curriculum_for(plan, environments),
        environments=environments,
        names=plan.names,
        rollout_context=RolloutContext(
            engine=engine,
            sampling=plan.sampling,
            services=services,
            run_seed=plan.seed,
            concurrency=plan.concurrency or engine.concurrency or RolloutContext.concurrency,
            retries=plan.retries,
            play=play,
        ),
        groups=plan.groups,
        group_size=plan.group_size,
        min_group_size=plan.min_group_size,
        screen=screen,
        replays=replays,
        schedule=plan.schedule,
        steps=plan.steps,
    )
