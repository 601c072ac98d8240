"""Checks of a recipe before any model is loaded: names, arguments, service slots, group size, tasks."""

from __future__ import annotations

from ..errors import NoTasksError, UsageError
from ..evaluation.evaluation import tasks_of
from ..interfaces.algorithm import Algorithm, GroupStats
from ..models.load import as_device
from ..registry.binding import check_args
from ..services.manager import start_order
from .recipe.tables import Recipe
from .resolve import (
    EnvironmentSpec,
    chosen,
    curriculum_kind,
    engine_kind,
    resolve_algorithm,
    resolve_environment_table,
    shares,
)
from .sources import model_source

GIVEN = ("policy", "learner", "replay")
"""Service slots that every run fills itself: its engine, its learner, its episodes run again."""


def check_recipe(recipe: Recipe) -> None:
    """Find out what can be known without loading a model: names, arguments, service slots, tasks.

    Raises:
        UsageError: something in the recipe does not fit what is installed.
        NoTasksError: an environment has no tasks in a split that is used.
        PluginError: a component cannot be loaded.
    """
    algorithm = resolve_algorithm(recipe)
    check_group_size(recipe, algorithm)
    as_device(recipe.model.device)
    check_engine(recipe)
    model_source(recipe)
    specs = [resolve_environment_table(table) for table in recipe.environments]
    slots = {slot for spec in specs for slot in spec.slots} | algorithm.slots
    for slot, component, args in start_order(chosen(recipe, algorithm), slots, dict.fromkeys(GIVEN)):
        check_args(component, args, who=f"[services.{slot}]")
    for spec in specs:
        check_args(spec.component, spec.args, who=f"environment {spec.name!r}")
        if not spec.slots:  # the tasks of one with services are seen when they run
            check_tasks(recipe, spec, algorithm)


def check_group_size(recipe: Recipe, algorithm: Algorithm) -> None:
    """Refuse groups that the algorithm would never accept.

    Raises:
        UsageError: not even a complete group of different rewards.
    """
    group_size = recipe.batch.group_size
    if algorithm.group_filter.needs:  # its services are not there yet
        return
    outcomes = tuple(float(i % 2) for i in range(group_size))
    rejected = str(algorithm.group_filter(GroupStats(outcomes=outcomes, totals=outcomes, requested=group_size)))
    if rejected:
        raise UsageError(
            f"batch.group_size is {group_size}, and algorithm {recipe.algorithm.use!r} accepts no group of that size "
            f"({rejected}): take more samples, or an algorithm without groups such as reinforce"
        )


def check_engine(recipe: Recipe) -> None:
    """Refuse an engine that cannot train, or its arguments.

    Raises:
        UsageError: it cannot train, or an argument does not fit.
    """
    kind = engine_kind(recipe)
    check_args(kind.sharing if shares(kind) else kind, recipe.engine.args, who="[engine]")


def check_tasks(recipe: Recipe, spec: EnvironmentSpec, algorithm: Algorithm) -> None:
    """Look for a first task in every split that the recipe uses.

    Raises:
        NoTasksError: there is none; names the key that leaves the split alone.
        UsageError: tasks are to come by level and this one has none.
        EnvironmentFault: the environment's own code failed.
    """
    environment = spec.make({})
    (first,) = tasks_of(environment, "train", 1, name=spec.name)
    curriculum_kind(algorithm.plan).check(first, spec.name, algorithm.plan)
    table = recipe.evaluation
    final = table.test
    for used, split, key in (
        (table.every, table.split, "evaluation.every"),
        (final.tasks, final.split, "evaluation.test.tasks"),
    ):
        if used == 0:
            continue
        try:
            tasks_of(environment, split, 1, name=spec.name)
        except NoTasksError as e:
            raise NoTasksError(f"{e}. To train without: --set {key}=0") from e
