"""Resolve the names of a recipe: environments with their rewards, the algorithm, the engine, services."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType
from typing import Any

from ..errors import BindingError, PluginError, RecipeError, UnknownNameError, UsageError
from ..interfaces.algorithm import Algorithm
from ..interfaces.engine import TokenEngine
from ..interfaces.environment import Environment
from ..interfaces.reward import Reward
from ..interfaces.sampling_plan import SamplingPlan
from ..models.sharing import SharesModule
from ..registry.binding import bind, signature_of
from ..registry.discovery import PLUGINS
from ..registry.lookup import current
from ..services.manager import IN_RECIPE, Choice, find_service, opened, start_order
from .recipe.load import label
from .recipe.rewards import of_function, parse_reward, qualified
from .recipe.tables import ComponentTable, EnvironmentTable, Recipe
from .runs import model_named
from .schedule import Schedule
from .tasks import Curriculum

OWN_SLOTS = ("policy", "learner", "replay")
"""Service slots that every run fills itself: engine, learner, replay."""


@dataclass(frozen=True, kw_only=True)
class EnvironmentSpec:
    """A configured environment without its services."""

    name: str
    component: type[Environment[Any, Any]]
    args: Mapping[str, Any] = field(default_factory=dict)
    reward: Reward | None = None
    shaping: Reward | None = None
    system: str | None = None
    table: EnvironmentTable | None = None

    @property
    def slots(self) -> set[str]:
        """The service slots of its fields and rewards."""
        rewards: Iterable[Reward | None] = (
            self.reward or getattr(self.component, "reward", None),
            self.shaping or self.component.shaping,
        )
        return self.own_slots | {slot for r in rewards if r is not None for slot in r.needs}

    @property
    def own_slots(self) -> set[str]:
        """The service slots of its fields, without which it has no tasks."""
        return {need.slot for need in signature_of(self.component).needs if need.parameter not in self.args}

    def make(self, services: Mapping[str, Any]) -> Environment[Any, Any]:
        """The environment, with *services* by slot.

        Raises:
            BindingError: an argument is invalid, or a service is missing.
        """
        environment: Environment[Any, Any] = bind(self.component, self.args, services, who=f"environment {self.name!r}")
        limits = self.table.limits.over(self.component.limits) if self.table else None
        return environment.overridden(reward=self.reward, shaping=self.shaping, limits=limits, system=self.system)


def resolve_environment(
    name: str,
    args: Mapping[str, Any] | None = None,
    *,
    reward: str | None = None,
    shaping: str | None = None,
    system: str | None = None,
    table: EnvironmentTable | None = None,
) -> EnvironmentSpec:
    """Find environment *name* and parse its reward expressions.

    Raises:
        UnknownNameError: no such environment or reward.
        PluginError: the component cannot be loaded, or is not an environment.
        UsageError: its class has a mistake.
        RecipeError: an expression is invalid, or there is no reward.
    """
    component = current().load("environment", name)
    if not (isinstance(component, type) and issubclass(component, Environment)):
        raise PluginError(f"environment {name!r} is {component!r}; expected a subclass of quintain.Environment")
    if current().matching("check", "command"):  # quintain-authoring, which explains mistakes that its source shows
        current().load("command", "check").check_class(component)
    outcome = parse_reward(reward, _reward, where="reward") if reward else None
    if outcome is None and not isinstance(getattr(component, "reward", None), Reward):
        raise RecipeError(
            f"environment {name!r} has no reward: set `reward = ...` in the class, or in the recipe's [[environments]]"
        )
    return EnvironmentSpec(
        name=label(name),
        component=component,
        args=dict(args or {}),
        reward=outcome,
        shaping=parse_reward(shaping, _reward, where="shaping") if shaping else None,
        system=system,
        table=table,
    )


def resolve_environment_table(table: EnvironmentTable) -> EnvironmentSpec:
    """`resolve_environment` for one ``[[environments]]`` of a recipe."""
    return resolve_environment(
        table.use, table.args, reward=table.reward, shaping=table.shaping, system=table.system, table=table
    )


def is_model_source(name: str) -> bool:
    """Whether ``model.name`` is a component (also of a known plugin that is not installed), not a folder or hub id."""
    return is_component("model", name)


def is_component(kind: str, name: str) -> bool:
    """Whether *name* is a component of *kind*, also of a known plugin that is not installed, and no existing path."""
    if ":" in name:
        return not Path(name).exists()
    owner, _, bare = name.rpartition("/")
    known = PLUGINS.get((kind, bare))
    return (known is not None and owner in ("", known)) or bool(current().matching(name, kind))


@asynccontextmanager
async def opened_environments(
    specs: Sequence[EnvironmentSpec], choices: Mapping[str, Choice], *, fix: str = IN_RECIPE
) -> AsyncIterator[tuple[list[Environment[Any, Any]], dict[str, Any]]]:
    """Start the services that environments need, with no policy or learner; yield environments, and services by slot.

    Args:
        choices: the service of each slot.
        fix: the advice of an error about an empty ``{slot}``.

    Raises:
        RecipeError: a slot has no service.
        BindingError: an argument of an environment is invalid.
    """
    slots, own = {slot for spec in specs for slot in spec.slots}, {"policy": None, "learner": None}
    async with opened(choices, slots, own, fix=fix) as services:
        yield [spec.make(services) for spec in specs], services


def _reward(name: str) -> Any:
    component = current().load("reward", name)
    if isinstance(component, FunctionType):
        return of_function(component)
    if not isinstance(component, Reward):
        raise BindingError(f"reward {name!r} is {component!r}; expected a function")
    return component


def resolve_algorithm(recipe: Recipe) -> Algorithm:
    """The algorithm of the recipe, with its changes.

    Raises:
        PluginError: the component is not an algorithm.
    """
    algorithm = current().load("algorithm", recipe.algorithm.use)
    if not isinstance(algorithm, Algorithm):
        raise PluginError(f"algorithm {recipe.algorithm.use!r} is a {type(algorithm).__name__}; expected an Algorithm")
    configured: Algorithm = bind(algorithm, recipe.algorithm.args, who=f"algorithm {recipe.algorithm.use!r}")
    return configured


def curriculum_kind(plan: SamplingPlan) -> type[Curriculum]:
    """The class of the curriculum that *plan* needs.

    Raises:
        UsageError: the curriculum is not installed.
    """
    measured = plan.difficulty_samples or plan.difficulty_file
    if plan.order == "shuffled" and plan.drop_solved is None and not measured:
        return Curriculum
    try:
        kind: type[Curriculum] = current().load("curriculum", "quintain-curricula/adaptive")
    except UnknownNameError as e:
        what = "the plan orders tasks, drops solved ones or filters them by difficulty, and no such curriculum is"
        raise UsageError(f"{what} installed: pip install quintain-curricula") from e
    return kind


def chosen(recipe: Recipe, algorithm: Algorithm) -> dict[str, ComponentTable]:
    """The component of each service slot: that of the recipe, else that of the algorithm."""
    own = {slot: with_model(table.use, table.args) for slot, table in recipe.services.items()}
    return {slot: ComponentTable(use=use) for slot, use in algorithm.services.items()} | own


def with_model(use: str, args: Mapping[str, Any]) -> ComponentTable:
    """The service *use*; if it is an engine of this machine, the run that its model names becomes a path, or raises."""
    if find_service(use).kind == "engine" and label(use) != "openai" and isinstance(args.get("model"), str):
        args = {**args, "model": model_named(args["model"])[0]}
    return ComponentTable(use=use, args=dict(args))


def pinned(recipe: Recipe) -> Recipe:
    """*recipe* with the ``distribution/name`` of each component, which no plugin that is installed later can change.

    Local components and files keep their names. *recipe* is one that `check_recipe` accepts.
    """

    def name_of(kind: str, name: str) -> str:
        component = find_service(name) if kind == "service" else current().find(kind, name)
        return name if component.origin == "local" else component.id

    def reward_of(text: str) -> str:
        return qualified(text, lambda name: name_of("reward", name))

    algorithm = resolve_algorithm(recipe)
    names = {
        f"{kind}.use": name_of(kind, getattr(recipe, kind).use)
        for kind in ("algorithm", "engine", "learner", "schedule")
    }
    if is_model_source(recipe.model.name):
        names["model.name"] = name_of("model", recipe.model.name)
    if recipe.model.tool_format != "auto":
        names["model.tool_format"] = name_of("tool_format", recipe.model.tool_format)
    slots = algorithm.slots
    tables: dict[str, EnvironmentTable] = {f"environments.{i}": t for i, t in enumerate(recipe.environments)}
    tables |= {f"evaluation.environments.{i}": t for i, t in enumerate(recipe.evaluation.environments)}
    for at, table in tables.items():
        names[f"{at}.use"] = name_of("environment", table.use)
        names |= {f"{at}.{k}": reward_of(t) for k in ("reward", "shaping") if (t := getattr(table, k))}
        slots = slots | resolve_environment_table(table).slots
    services = chosen(recipe, algorithm)
    for slot, _, _ in start_order(services, slots, dict.fromkeys(OWN_SLOTS)):
        names[f"services.{slot}.use"] = name_of("service", services[slot].use if slot in services else slot)
        if slot in services and "model" in services[slot].args:
            names[f"services.{slot}.args.model"] = services[slot].args["model"]
    return recipe.replace(names)


def resolve_schedule(recipe: Recipe) -> Schedule:
    """The schedule of the recipe.

    Raises:
        PluginError: the component is not a schedule.
        BindingError: an argument is invalid.
    """
    kind: Any = current().load("schedule", recipe.schedule.use)
    if not (isinstance(kind, type) and issubclass(kind, Schedule)):
        raise PluginError(f"schedule {recipe.schedule.use!r} is {kind!r}; expected a subclass of Schedule")
    schedule: Schedule = bind(kind, recipe.schedule.args, who=f"schedule {recipe.schedule.use!r}")
    return schedule


def engine_kind(recipe: Recipe) -> Any:
    """The class of the recipe's engine.

    Raises:
        UsageError: the engine returns no exact tokens, so it cannot train.
    """
    kind: Any = current().load("engine", recipe.engine.use)
    if not (isinstance(kind, type) and issubclass(kind, TokenEngine)):
        raise UsageError(
            f"engine {recipe.engine.use!r} cannot train: it returns no exact tokens; `quintain eval` can use it. "
            'For training set engine.use = "embedded"'
        )
    return kind


def shares(kind: Any) -> bool:
    """Whether engines of *kind* can decode the learner's module; others receive its weights only by `update`."""
    return isinstance(kind, SharesModule)
