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
from ..errors import UsageError
from ..interfaces.cluster import ProcessCluster
from ..interfaces.curriculum import Curriculum
from ..interfaces.engine import TokenEngine
from ..interfaces.environment import Environment
from ..interfaces.learner import AnyLearner
from ..interfaces.shared_module import shares_module
from ..models.load import LoadedModel, as_device, cache_bytes
from ..process.interrupts import run_coroutine, stop_on_signal
from ..recipe.plan import RunPlan
from ..recipe.resolve import names_cluster
from ..recipe.room import engine_share, memory_advice, slots_of
from ..recipe.tables import Recipe
from ..registry.binding import bind, signature_of
from ..rollouts.runner import Play, RolloutContext
from ..services.manager import started_services
from ..store.checkpoint import Checkpoint, CheckpointManager, latest
from ..store.digests import recipe_digest
from ..store.run_folder import RECIPE_DIGEST, RunFolder, as_current_run
from ..types.sampling import derived_seed
from .collect import Collector
from .episode_workers import played_elsewhere
from .hooks import Hooks
from .loop import training_loop
from .progress import RunProgress
from .provenance import header, provenance
from .remarks import remarks
from .replays import Replay
from .run import Run
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
        checkpoint = latest(folder)
        if checkpoint is not None:
            checkpoint.verify()
        began = time.monotonic()
        seed_everything(plan.seed)  # before loading, which draws the initial adapters
        with memory_advice("loading", plan):
            model = model_for(plan, checkpoint, screen, folder.status)
            cluster = None if plan.cluster is None else stack.enter_context(closing(plan.cluster()))
            learner = stack.enter_context(closing(learner_for(plan, model, cluster)))
        progress = RunProgress(seconds={"model": time.monotonic() - began})
        return run_coroutine(
            _train_loaded(plan, folder, screen, checkpoint, model, learner, cluster, progress)
        )


async def _train_loaded(
    plan: RunPlan,
    folder: RunFolder,
    screen: Screen,
    checkpoint: Checkpoint | None,
    model: LoadedModel,
    learner: AnyLearner,
    cluster: ProcessCluster | None,
    progress: RunProgress,
) -> dict[str, Any]:
    with memory_advice("loading", plan):
        engine = engine_for(plan, model, cluster)
    # The run fills three slots itself. The learner is a service before it has its own services,
    # since a service may read the module that trains.
    replays = Replay()
    own_services = {"policy": engine, "learner": learner, "replay": replays}
    states = checkpoint.state["services"] if checkpoint else None
    async with (
        engine,
        started_services(plan.services, set(plan.slots), own_services, states) as services,
    ):
        learner.serve(services)  # the pieces of its algorithm may ask them
        environments = [spec.make(services) for spec in plan.tasks.environments]
        held_out = [spec.make(services) for spec in plan.evaluation.specs]
        play, notes = await played_elsewhere(plan, [*environments, *held_out], services, cluster)
        for note in (model.tokenizer.tool_note, *remarks(plan, environments), *notes):
            if note:
                screen.note(note)
        run = Run(
            plan,
            folder=folder,
            screen=screen,
            hooks=Hooks.installed(services),
            learner=learner,
            engine=engine,
            collector=collector_for(plan, engine, environments, services, replays, screen, play),
            weight_sync=WeightSync(engine, staleness=staleness_of(plan)),
            checkpoints=checkpoints_for(plan, folder, model),
            environments=held_out or environments,
            progress=progress,
        )
        if checkpoint is not None:
            run.saving.restore(checkpoint)
            screen.note(f"continuing after step {progress.step} of {plan.stop.steps}")
        else:
            repeated = sum(record["step"] > 0 for record in folder.metrics())
            if repeated:
                screen.note(f"no checkpoint was saved: begins again, {repeated} steps are repeated")
            folder.truncate_after(-1)  # also the metrics of step 0
        # Once a checkpoint is restored, since a process that cannot continue leaves no trace.
        record = provenance(plan, model.module)
        record |= {RECIPE_DIGEST: recipe_digest(folder.recipe())}
        folder.append(record, folder.provenance_path)
        # An engine of another process has memory of its own, and no slots here.
        slots = getattr(engine, "slots", 0)
        cache = 0
        if slots:
            tokens = plan.rollouts.sequence_tokens
            cache = slots * cache_bytes(model.module, tokens, plan.model.dtype)
        screen.note(header(plan, model.module, cache=cache))
        # The engine has the weights that were loaded, and a resumed learner has others.
        await run.weight_sync.sync(learner.weights())
        loop = asyncio.get_running_loop()
        with stop_on_signal(
            screen,
            "stopping and saving; press Ctrl-C again to stop at once",
            on_stop=lambda: loop.call_soon_threadsafe(run.interruption.asked.set),
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


def learner_for(
    plan: RunPlan, model: LoadedModel, cluster: ProcessCluster | None = None
) -> AnyLearner:
    """Make the learner of *model*. One that names ``max_sample_mismatch`` checks it in updates; one
    that names ``cluster`` starts its processes on *cluster*.
    """
    options = dict(plan.learner.options)
    of_run = {
        "max_sample_mismatch": plan.learner.max_sample_mismatch,
        "exact_sampler": plan.learner.exact_sampler,
        "cluster": cluster,
    }
    signature = signature_of(plan.learner.kind)
    named = {field.name for field in signature.fields}
    if "schedules" in options and "schedules" not in named and not signature.open:
        raise UsageError(
            f"learner {plan.learner.component['use']!r} has no schedules; remove [learner.schedules]"
        )
    options |= {name: value for name, value in of_run.items() if name in named}
    learner: AnyLearner = plan.learner.kind(model.module, plan.algorithm, **options)
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
            model = plan.model.source.load(request)
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
    kind = plan.engine.kind
    args = dict(plan.engine.args)
    if cluster is not None and names_cluster(kind):
        args["cluster"] = cluster
    if not shares_module(kind):
        engine: TokenEngine = bind(kind, args, {}, who="[engine]")
    else:
        args.setdefault("dtype", plan.model.dtype)
        if plan.copies_weights:
            args.setdefault("copy", True)
        if plan.engine_elsewhere:
            args["device"] = plan.model.device
        if plan.engine.beside_learner and "slots" not in args:
            args["slots"] = slots_of(plan, model.module)
        share, _ = engine_share(plan, model.module, as_device(plan.model.device))
        if share is not None:
            args["gpu_share"] = share
        engine = bind(kind.sharing, args, who="[engine]")(model.module, model.tokenizer)
    engine.follow(
        in_flight_updates=plan.schedule.in_flight_updates, recompute_kv=plan.schedule.recompute_kv
    )
    return engine


def staleness_of(plan: RunPlan) -> int:
    """Return how many versions late the run sends weights to its engine, where a synchronous run
    simulates a staleness; a schedule that samples ahead has a real one.
    """
    return 0 if plan.schedule.overlaps else plan.algorithm.plan.staleness


def checkpoints_for(plan: RunPlan, folder: RunFolder, model: LoadedModel) -> CheckpointManager:
    """Make what writes the checkpoints of *model* into *folder*."""
    rounds_base = getattr(plan.learner.kind, "rounds_base", False)
    return CheckpointManager(
        folder,
        tokenizer=model.tokenizer,
        keep=plan.saving.keep,
        best=plan.saving.best,
        base=model.path,
        base_learner=plan.learner.component if rounds_base else None,
    )


def curriculum_for(plan: RunPlan, environments: Sequence[Environment[Any, Any]]) -> Curriculum:
    """Make the curriculum, which chooses the tasks of *environments*."""
    return plan.tasks.curriculum(
        environments,
        weights=plan.tasks.weights,
        names=plan.tasks.labels,  # as the recipe has them, for errors
        seed=plan.seed,
        plan=plan.algorithm.plan,
        horizon=plan.stop.steps * plan.rollouts.groups,
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
    """Make what collects the groups of a step: the collector of a schedule that overlaps, else
    `Collector`. *play* plays their episodes, in place of this process.
    """
    ahead = plan.schedule.collector() if plan.schedule.overlaps else None
    kind: type[Collector] = ahead or Collector
    rollouts = plan.rollouts
    group_filter = plan.algorithm.group_filter.with_services(services)
    return kind(
        algorithm=replace(plan.algorithm, group_filter=group_filter),
        curriculum=curriculum_for(plan, environments),
        environments=environments,
        names=plan.tasks.names,
        rollout_context=RolloutContext(
            engine=engine,
            sampling=rollouts.sampling,
            services=services,
            run_seed=plan.seed,
            concurrency=rollouts.concurrency or engine.concurrency or RolloutContext.concurrency,
            retries=rollouts.retries,
            play=play,
        ),
        groups=rollouts.groups,
        group_size=rollouts.group_size,
        min_group_size=rollouts.min_group_size,
        screen=screen,
        sampling_at=rollouts.sampling_at if rollouts.temperature else None,
        replays=replays,
        schedule=plan.schedule,
        steps=plan.stop.steps,
    )
