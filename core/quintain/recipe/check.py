"""Checks of a recipe before any model is loaded: names, arguments, service slots, group size, what
components need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any

from ..errors import InfrastructureError, NoTasksError, QuintainError, UsageError, nearest
from ..evaluation.evaluation import first_tasks
from ..interfaces.algorithm import Algorithm, GroupStats
from ..interfaces.environment import Environment
from ..interfaces.service import Service
from ..interfaces.shared_module import shares_module
from ..learning import Batch, Sample, Step, TrainingSequence
from ..models.hf import check_available
from ..models.load import as_device
from ..registry.binding import NotStartedError, Unstarted, check_args, signature_of
from ..registry.lookup import current
from ..services.manager import find_service, start_order
from .on_cpu import LARGE, remark_on_cpu
from .placement import module_of, named_model, placement_of, placement_table
from .plan import EvaluationPlan, RunPlan, schedule_notes
from .resolve import EPISODES_SLOT, OWN_SLOTS, EnvironmentSpec
from .room import check_plan
from .tables import EvaluatedTable, Recipe

HIGHEST_LR = 0.01
"""Ten times the highest learning rate of a recipe here, that of the warm start of a small model."""
WARNING = "warning: learner.lr = {lr:g} is very high; usual are 1e-6 to 1e-4, as in --lr 1e-5"


def check_recipe(recipe: Recipe) -> list[str]:
    """Check names, arguments, service slots, tasks, what components need, that the model can be
    had, and the disk.

    Nothing is loaded, and no service is started.

    Returns:
        Notes: warnings, the services that fill slots without a name, and the room that checkpoints
            take.

    Raises:
        UsageError: the recipe does not fit the installed components.
        NoTasksError: an environment has no tasks in a split of the recipe.
        PluginError: a component cannot be loaded.
    """
    plan = RunPlan.of(recipe)
    algorithm, engine = plan.algorithm, plan.engine.kind
    check_group_size(recipe, algorithm)
    as_device(recipe.model.device)
    check_args(
        engine.sharing if shares_module(engine) else engine,
        recipe.engine.args,
        who=f"engine {recipe.engine.use!r}",
    )
    engine.check_settings(recipe.engine.args)
    if recipe.model.tool_format != "auto":
        current().find("tool_format", recipe.model.tool_format)
    for table in recipe.trackers:
        hooks = current().load("hooks", table.use)
        if isinstance(hooks, ModuleType):
            raise UsageError(
                f"{table.use!r} observes every run and is no tracker; remove it from [[trackers]]"
            )
        check_args(type(hooks), table.args, who=f"tracker {table.use!r}")
    slots, named = set(plan.slots), plan.services
    order = start_order(named, slots, OWN_SLOTS)
    for slot, component, args in order:
        who = "[workers]" if slot == EPISODES_SLOT else f"[services.{slot}]"
        check_args(component, args, who=who)
        slots |= {need.slot for need in signature_of(component).needs}
    for slot in sorted(slots - named.keys() - set(OWN_SLOTS)):
        if near := nearest(slot, named.keys() - slots):
            raise UsageError(f"nothing needs [services.{near}]; did you mean [services.{slot}]?")
    notes = [WARNING.format(lr=recipe.learner.lr)] if recipe.learner.lr > HIGHEST_LR else []
    notes += [
        f"service {s!r}: {find_service(s).id} (the recipe names none)"
        for s, *_ in order
        if s not in named
    ]
    notes += schedule_notes(recipe, algorithm)
    batch, steps = recipe.batch, recipe.run.steps
    if remark := remark_on_single_samples(recipe, algorithm):
        notes.append(remark)
    notes.append(
        f"{steps:,} steps of {batch.prompts:,} x {batch.group_size} samples: "
        f"{steps * batch.prompts * batch.group_size:,} at most"
    )
    if slot := plan.evaluation.costly_slot:
        notes.append(
            f"evaluation.test.other_decoding is off, since calls of the service {slot!r} may cost "
            "money: set it to true to evaluate greedy and sampled replies"
        )
    faults: list[QuintainError] = []

    def run_check(check: Callable[[], str | None]) -> None:
        """Run *check*, keep its note, or its fault, so that all that is missing is told at once."""
        try:
            if note := check():
                notes.append(note)
        except (UsageError, NoTasksError, InfrastructureError) as e:
            faults.append(e)

    run_check(lambda: notes.extend(check_model(plan)))
    configured = [
        (engine, recipe.engine.args),
        *((component, args) for _, component, args in order),
    ]
    for component, args in configured:
        if isinstance(component, type) and issubclass(component, Service):
            run_check(partial(component.check_available, args))
    for spec in plan.tasks.environments:
        check_args(spec.component, spec.args, who=f"environment {spec.name!r}")
        run_check(partial(check_tasks, spec, plan))
    for spec in plan.evaluation.specs or plan.tasks.environments:
        check_args(spec.component, spec.args, who=f"environment {spec.name!r}")
        run_check(partial(check_evaluation, plan.evaluation, spec))
    if faults:
        raise (
            faults[0]
            if len(faults) == 1
            else UsageError("\n".join(dict.fromkeys(map(str, faults))))
        )
    return notes


def check_model(plan: RunPlan) -> list[str]:
    """Check that the model can be had.

    Returns:
        Notes on the memory and the disk that the run takes, by the configuration of the model; none
        where that cannot be had, or where a source makes the model for the environments. Then what
        each device does, if the cluster says so.

    Raises:
        UsageError: the model cannot be had, or there is less room.
    """
    name = named_model(plan)
    if name is not None:
        check_available(name)
    module = module_of(plan)
    rows = placement_of(plan, module)
    table = placement_table(rows)
    device = as_device(plan.model.device)
    is_planned = device.type == "cpu" and any(row.memory is not None for row in rows)
    if module is None or is_planned:  # is_planned: for the devices of another machine
        return table
    parameters = sum(p.numel() for p in module.parameters())
    notes = check_plan(plan, module, device)
    if device.type == "cpu" and parameters >= LARGE:
        notes.append(remark_on_cpu(plan, parameters))
    return [*notes, *table]


def check_group_size(recipe: Recipe, algorithm: Algorithm) -> None:
    """Refuse a group size that the algorithm never accepts.

    Raises:
        UsageError: the algorithm rejects a complete group with different rewards.
    """
    group_size = recipe.batch.group_size
    if algorithm.group_filter.needs:  # its services are not started yet
        return
    outcomes = tuple(float(i % 2) for i in range(group_size))
    rejected = str(
        algorithm.group_filter(GroupStats(outcomes=outcomes, totals=outcomes, requested=group_size))
    )
    if rejected:
        raise UsageError(
            f"batch.group_size is {group_size}, and algorithm {recipe.algorithm.use!r} accepts no "
            f"group of that size ({rejected}): use a larger group, or an algorithm without groups "
            "such as reinforce, with several batch.prompts"
        )


def remark_on_single_samples(recipe: Recipe, algorithm: Algorithm) -> str:
    """Return the remark that groups of one leave nothing to learn, whatever their rewards are;
    empty where they do, or where the advantage reads more than rewards.
    """
    batch, piece = recipe.batch, algorithm.advantage
    if batch.group_size > 1 or piece.needs or piece.reads or piece.asynchronous or piece.stateful:
        return ""
    token = TrainingSequence(ids=(0, 0), mask=(False, True), logps=(0.0, 0.0), versions=(-1, 0))
    rewards = [float(i % 2 == 0) for i in range(min(batch.prompts, 2))]
    samples = [
        Sample(sequences=(token,), outcome=reward, group=i) for i, reward in enumerate(rewards)
    ]
    values = piece(Step(batch=Batch(samples=tuple(samples)), rewards=tuple(rewards)))
    if isinstance(values, tuple) or any(values):
        return ""
    larger = "batch.group_size" if len(rewards) > 1 else "batch.prompts or batch.group_size"
    return (
        f"warning: {batch.prompts:,} x 1 samples a step leave {piece.name!r} nothing to compare: "
        f"each advantage is 0, and no step learns; raise {larger} to at least 2"
    )


def check_tasks(spec: EnvironmentSpec, plan: RunPlan) -> None:
    """Look for tasks to train on, which must be the same in each call.

    Raises:
        NoTasksError: there are none.
        UsageError: the plan orders tasks by level and the first has none.
        EnvironmentFault: the code of the environment failed, or its tasks change.
    """
    with allowing_unstarted_services():
        first = first_tasks(without_services(spec), "train", spec.name)
        plan.tasks.curriculum.check(first[0], spec.name, plan.algorithm.plan)


def without_services(spec: EnvironmentSpec) -> Environment[Any, Any]:
    """Return the environment of *spec* with services that are not started."""
    return spec.make({slot: Unstarted() for slot in spec.own_slots})


@contextmanager
def allowing_unstarted_services() -> Iterator[None]:
    """End the block without an error where an environment asks a service that is not started, be it
    for its tasks or as it is made.
    """
    try:
        yield
    except Exception as e:
        cause: BaseException | None = e
        while cause is not None and not isinstance(cause, NotStartedError):
            cause = cause.__cause__
        if cause is None:
            raise


def check_evaluation(evaluation: EvaluationPlan, spec: EnvironmentSpec) -> None:
    """Look for tasks in every split that the evaluations use, which must be the same in each call.

    Raises:
        NoTasksError: a split is empty; the message names the key that disables its evaluation.
        EnvironmentFault: the code of the environment failed, or its tasks change.
    """
    own_split = spec.table.split if isinstance(spec.table, EvaluatedTable) else None
    for used, split, key in (
        (evaluation.every, own_split or evaluation.split, "evaluation.every"),
        (evaluation.test_tasks, evaluation.test_split, "evaluation.test.tasks"),
    ):
        if used == 0:
            continue
        try:
            with allowing_unstarted_services():
                first_tasks(without_services(spec), split, spec.name)
        except NoTasksError as e:
            raise NoTasksError(f"{e}. To train without: --set {key}=0") from e
