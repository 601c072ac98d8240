"""What ``quintain eval --like RUN`` takes from a run: its own evaluation, as the recipe says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quintain import Sampling
    from quintain.recipe import EnvironmentTable, EvaluationPlan, Recipe
    from quintain.services import Choice
    from quintain.store import RunFolder


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """What an evaluation measures, and how.

    Attributes:
        environment: with its arguments, its rewards and its system message.
        model: the run, which `quintain eval` takes as a model; empty if there is none.
        services: the component of each slot.
        tasks: the first ones of *split*; ``None`` is all.
        samples: rollouts of each task.
        dtype: in which the embedded engine samples; empty without a run.
    """

    environment: EnvironmentTable
    model: str = ""
    services: Mapping[str, Choice]
    split: str
    tasks: int | None
    samples: int
    sampling: Sampling
    seed: int
    dtype: str = ""

    def with_environment(self, **changes: Any) -> EvaluationSettings:
        """Return the same settings with *changes* to the environment."""
        return replace(self, environment=self.environment.model_copy(update=changes))


def settings_of(folder: RunFolder) -> EvaluationSettings:
    """Return the settings with which a run evaluates its first environment after its last step.

    Raises:
        UsageError: the recipe does not fit what is installed.
    """
    from quintain.recipe import EvaluationPlan, Recipe, resolve_algorithm, settled

    recipe = settled(Recipe.parse(folder.recipe()))
    plan = EvaluationPlan.of(recipe, resolve_algorithm(recipe))
    split, tasks = plan.test_split, plan.test_tasks
    if tasks == 0:
        split, tasks = plan.split, plan.tasks
    measured = ((folder.summary() or {}).get("held_out", {}).get("after") or {}).get("tasks")
    if tasks and measured and measured < tasks and len(plan.environments) == 1:
        tasks = None  # the whole split has fewer
    return EvaluationSettings(
        environment=recipe.environments[0],
        model=str(folder.shown),
        services=_services_of(recipe, plan, str(folder.shown)),
        split=split,
        tasks=tasks,
        samples=plan.samples,
        sampling=plan.sampling,
        seed=recipe.run.seed,
        dtype=_dtype_of(recipe),
    )


def _dtype_of(recipe: Recipe) -> str:
    """Return the type in which the embedded engine of a run samples; of another engine, that of the
    model.
    """
    from quintain.registry import short_name

    of_engine = recipe.engine.args if short_name(recipe.engine.use) == "embedded" else {}
    return str(of_engine.get("dtype", recipe.model.dtype))


def _services_of(recipe: Recipe, plan: EvaluationPlan, run: str) -> dict[str, Choice]:
    """Return the services that the first environment needs, as they are without a learner."""
    from quintain.recipe import EnvironmentSpec
    from quintain.registry import current
    from quintain.services import find_service

    services = dict(plan.services)
    slots = EnvironmentSpec.of(recipe.environments[0]).slots
    for slot in slots & services.keys():
        component = current().resolve(find_service(services[slot].use))
        if (stand_in := getattr(component, "in_evaluation", None)) is not None:
            use, args = stand_in(slot, services[slot].args, run)
            services[slot] = services[slot].model_copy(update={"use": use, "args": dict(args)})
    return {slot: services[slot] for slot in sorted(slots & services.keys())}
