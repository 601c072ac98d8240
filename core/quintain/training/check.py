"""Checks of a recipe before any model is loaded: names, arguments, service slots, group size, tasks."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from ..errors import NoTasksError, QuintainError, UsageError, nearest
from ..evaluation.evaluation import first_tasks
from ..interfaces.algorithm import Algorithm, GroupStats
from ..models.hf import check_available, saved_parameters
from ..models.load import as_device
from ..registry.binding import check_args, signature_of
from ..registry.lookup import current
from ..services.manager import find_service, start_order
from .recipe.tables import EvaluatedTable, Recipe
from .resolve import (
    OWN_SLOTS,
    EnvironmentSpec,
    chosen,
    curriculum_kind,
    engine_kind,
    is_model_source,
    resolve_algorithm,
    resolve_environment_table,
    resolve_schedule,
    shares,
)
from .sources import model_source
from .storage import free_bytes, size_text


def check_recipe(recipe: Recipe) -> list[str]:
    """Check names, arguments, service slots, tasks, that the model can be had, without loading it, and the disk.

    Returns:
        Notes: the services that fill slots without a name, and the room that checkpoints take.

    Raises:
        UsageError: the recipe does not fit the installed components.
        NoTasksError: an environment has no tasks in a split of the recipe.
        PluginError: a component cannot be loaded.
    """
    algorithm = resolve_algorithm(recipe)
    resolve_schedule(recipe)
    check_group_size(recipe, algorithm)
    as_device(recipe.model.device)
    engine = engine_kind(recipe)
    check_args(engine.sharing if shares(engine) else engine, recipe.engine.args, who="[engine]")
    model_source(recipe)
    if recipe.model.tool_format != "auto":
        current().find("tool_format", recipe.model.tool_format)
    for table in recipe.trackers:
        hooks = current().load("hooks", table.use)
        if isinstance(hooks, ModuleType):
            raise UsageError(f"{table.use!r} observes every run and is no tracker; remove it from [[trackers]]")
        check_args(type(hooks), table.args, who=f"tracker {table.use!r}")
    specs = [resolve_environment_table(table) for table in recipe.environments]
    evaluated = [resolve_environment_table(table) for table in recipe.evaluated]
    slots = {slot for spec in (*specs, *evaluated) for slot in spec.slots} | algorithm.slots
    named = chosen(recipe, algorithm)
    order = start_order(named, slots, dict.fromkeys(OWN_SLOTS))
    for slot, component, args in order:
        check_args(component, args, who=f"[services.{slot}]")
        slots |= {need.slot for need in signature_of(component).needs}
    for slot in sorted(slots - named.keys() - set(OWN_SLOTS)):
        if near := nearest(slot, named.keys() - slots):
            raise UsageError(f"nothing needs [services.{near}]; did you mean [services.{slot}]?")
    notes = [f"service {s!r}: {find_service(s).id} (the recipe names none)" for s, *_ in order if s not in named]
    faults: list[QuintainError] = []
    for spec in (None, *specs, *evaluated):  # the model, then the data; all that is missing is told at once
        try:
            if spec is None:
                if not is_model_source(recipe.model.name):
                    check_available(recipe.model.name)
                    notes += check_disk(recipe)
                continue
            check_args(spec.component, spec.args, who=f"environment {spec.name!r}")
            if not spec.own_slots:  # tasks that need services are checked when the services run
                check_tasks(spec, algorithm) if spec in specs else check_evaluation(recipe, spec)
        except (UsageError, NoTasksError) as e:
            faults.append(e)
    if faults:
        raise faults[0] if len(faults) == 1 else UsageError("\n".join(dict.fromkeys(map(str, faults))))
    return notes


def check_disk(recipe: Recipe) -> list[str]:
    """A note on the room that the checkpoints of a model on this machine take, besides that of one that is written.

    Raises:
        UsageError: there is less.
    """
    weights, table = 4 * saved_parameters(recipe.model.name), recipe.checkpoint
    if not weights:
        return []
    each = weights if recipe.model.lora else 3 * weights  # and the two moments of AdamW
    count = min(table.keep + 1, -(-recipe.run.steps // (table.every or recipe.run.steps)))
    needed, folder = count * each + table.best * weights, Path(recipe.run.folder)
    note = f"checkpoints take up to {size_text(needed)}; {size_text(free_bytes(folder))} are free in {folder}"
    if needed > free_bytes(folder):
        raise UsageError(f"{note}: make room, or set run.folder, checkpoint.keep=1 or checkpoint.best=false")
    return [note]


def check_group_size(recipe: Recipe, algorithm: Algorithm) -> None:
    """Refuse a group size that the algorithm never accepts.

    Raises:
        UsageError: the algorithm rejects a complete group with different rewards.
    """
    group_size = recipe.batch.group_size
    if algorithm.group_filter.needs:  # its services are not started yet
        return
    outcomes = tuple(float(i % 2) for i in range(group_size))
    rejected = str(algorithm.group_filter(GroupStats(outcomes=outcomes, totals=outcomes, requested=group_size)))
    if rejected:
        raise UsageError(
            f"batch.group_size is {group_size}, and algorithm {recipe.algorithm.use!r} accepts no group of that size "
            f"({rejected}): use a larger group, or an algorithm without groups such as reinforce"
        )


def check_tasks(spec: EnvironmentSpec, algorithm: Algorithm) -> None:
    """Look for tasks to train on, which must be the same in each call.

    Raises:
        NoTasksError: there are none.
        UsageError: the plan orders tasks by level and the first has none.
        EnvironmentFault: the code of the environment failed, or its tasks change.
    """
    first = first_tasks(spec.make({}), "train", spec.name)
    curriculum_kind(algorithm.plan).check(first[0], spec.name, algorithm.plan)


def check_evaluation(recipe: Recipe, spec: EnvironmentSpec) -> None:
    """Look for tasks in every split that the evaluations use, which must be the same in each call.

    Raises:
        NoTasksError: a split is empty; the message names the key that disables its evaluation.
        EnvironmentFault: the code of the environment failed, or its tasks change.
    """
    table, environment = recipe.evaluation, spec.make({})
    final, own = table.test, spec.table.split if isinstance(spec.table, EvaluatedTable) else None
    for used, split, key in (
        (table.every, own or table.split, "evaluation.every"),
        (final.tasks, final.split, "evaluation.test.tasks"),
    ):
        if used == 0:
            continue
        try:
            first_tasks(environment, split, spec.name)
        except NoTasksError as e:
            raise NoTasksError(f"{e}. To train without: --set {key}=0") from e
