"""Checks of a recipe before any model is loaded: names, arguments, service slots, group size, tasks."""

from __future__ import annotations

from ..errors import NoTasksError, UsageError
from ..evaluation.evaluation import tasks_of
from ..interfaces.algorithm import Candidate, Row
from ..models.load import as_device
from ..registry.binding import check_args
from ..services.manager import plan
from .recipe.tables import Recipe
from .resolve import Casting, algorithm, cast_table, chosen, curriculum_kind, engine_kind, shares
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
    row = algorithm(recipe)
    check_members(recipe, row)
    as_device(recipe.model.device)
    check_engine(recipe)
    model_source(recipe)
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


def check_engine(recipe: Recipe) -> None:
    """Refuse an engine that cannot train, or its arguments.

    Raises:
        UsageError: it cannot train, or an argument does not fit.
    """
    kind = engine_kind(recipe)
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
    curriculum_kind(row.plan).check(first, casting.name, row.plan)
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
