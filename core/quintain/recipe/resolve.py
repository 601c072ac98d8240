"""Resolve the names of a recipe: environments with their rewards, the algorithm, the engine,
services.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType
from typing import Any

from ..errors import BindingError, PluginError, RecipeError, UnknownNameError, UsageError
from ..interfaces.algorithm import Algorithm
from ..interfaces.cluster import ProcessCluster
from ..interfaces.curriculum import Curriculum
from ..interfaces.engine import TokenEngine
from ..interfaces.environment import Environment
from ..interfaces.factors import Factor
from ..interfaces.learner import LearnerKind
from ..interfaces.reward import Reward
from ..interfaces.sampling_plan import SamplingPlan
from ..interfaces.schedule import Schedule
from ..interfaces.shared_module import shares_module
from ..registry.binding import bind, check_args, signature_of
from ..registry.class_checks import check_class
from ..registry.discovery import short_name
from ..registry.known import known_plugins, providers
from ..registry.lookup import current
from ..services.manager import IN_RECIPE, Choice, find_service, start_order, started_services
from ..store.runs import model_named, source_named
from ..tasks.mixture import Mixture
from ..tracebacks import defined_at
from .plain_functions import of_function
from .rewards import parse_reward, qualified
from .tables import ComponentTable, EnvironmentTable, Recipe

OWN_SLOTS = ("policy", "learner", "replay")
"""Service slots that every run fills itself: engine, learner, replay."""
EPISODES_SLOT = "episodes"
"""The slot of the service that ``[workers]`` describes."""
NARROW_CLIP = 0.01
"""Bounds of a ratio below this assume a ratio to prox. With a staleness, \\|log prox - log mu\\|
averages 0.002 to 0.05 nats per token on the quickstart, and GSPO's bounds of 3e-4 and 4e-4 then
clip 87 % of its samples.
"""
WIDE_CLIP = 0.02
"""Bounds to write instead: on the quickstart they were better than 0.05 and 0.2
(docs/schedules.md).
"""


@dataclass(frozen=True, kw_only=True)
class EnvironmentSpec:
    """A configured environment without its services."""

    name: str
    component: type[Environment[Any, Any]]
    args: Mapping[str, Any] = field(default_factory=dict)
    reward: Reward | None = None
    shaping: Reward | None = None
    yardstick: Reward | None = None
    system: str | None = None
    table: EnvironmentTable | None = None

    @classmethod
    def of(cls, table: EnvironmentTable) -> EnvironmentSpec:
        """Find the environment of one ``[[environments]]`` of a recipe, and parse its reward
        expressions.

        Raises:
            UnknownNameError: no such environment or reward.
            PluginError: the component cannot be loaded, or is not an environment.
            UsageError: its class has a mistake.
            RecipeError: an expression is invalid, or there is no reward.
        """
        component: type[Environment[Any, Any]] = load_subclass(
            "environment", table.use, Environment
        )
        check_class(component)
        outcome = parse_reward(table.reward, _reward, where="reward") if table.reward else None
        if outcome is None and not isinstance(getattr(component, "reward", None), Reward):
            raise RecipeError(
                f"environment {table.use!r} ({defined_at(component)}) has no reward: set `reward = "
                "...` in the class, or in the recipe's [[environments]]"
            )
        shaping, yardstick = table.shaping, table.yardstick
        return cls(
            name=short_name(table.use),
            component=component,
            args=dict(table.args),
            reward=outcome,
            shaping=parse_reward(shaping, _reward, where="shaping") if shaping else None,
            yardstick=parse_reward(yardstick, _reward, where="yardstick") if yardstick else None,
            system=table.system,
            table=table,
        )

    @property
    def slots(self) -> set[str]:
        """The service slots of its fields and rewards."""
        rewards: Iterable[Reward | None] = (
            self.reward or getattr(self.component, "reward", None),
            self.shaping or self.component.shaping,
            self.yardstick or self.component.yardstick,
        )
        return self.own_slots | {slot for r in rewards if r is not None for slot in r.needs}

    @property
    def own_slots(self) -> set[str]:
        """The service slots of its fields, without which it has no tasks."""
        return {
            need.slot
            for need in signature_of(self.component).needs
            if need.parameter not in self.args
        }

    def make(self, services: Mapping[str, Any]) -> Environment[Any, Any]:
        """Return the environment, with *services* by slot.

        Raises:
            BindingError: an argument is invalid, or a service is missing.
        """
        environment: Environment[Any, Any] = bind(
            self.component, self.args, services, who=f"environment {self.name!r}"
        )
        limits = self.table.limits.over(self.component.limits) if self.table else None
        return environment.overridden(
            reward=self.reward,
            shaping=self.shaping,
            yardstick=self.yardstick,
            limits=limits,
            system=self.system,
        )


def load_subclass(kind: str, name: str, base: Any) -> Any:
    """Return the component *name* of *kind*.

    Raises:
        PluginError: it is no subclass of *base*, or cannot be loaded.
    """
    component = current().load(kind, name)
    if not (isinstance(component, type) and issubclass(component, base)):
        raise PluginError(
            f"{kind} {name!r} is {component!r}; expected a subclass of {base.__name__}"
        )
    return component


def is_model_source(name: str) -> bool:
    """Return whether ``model.name`` is a component (also of a known plugin that is not installed) or
    a file that one reads, not a folder or hub id.
    """
    return is_component("model", name) or bool(source_named(name))


PRETRAINED = "pretrained"
"""The bundled recipe of models that were trained elsewhere."""


def base_recipe(model: str | None) -> str:
    """Return the name of the bundled recipe that `quintain train` changes where none is named."""
    if model is None or (short_name(model) == "default" and is_model_source(model)):
        return "quickstart"
    return PRETRAINED


def is_component(kind: str, name: str) -> bool:
    """Return whether *name* is a component of *kind*, also of a known plugin that is not installed,
    and no existing path.
    """
    if ":" in name:
        return not Path(name).exists()
    owner, _, bare = name.rpartition("/")
    known = known_plugins().get((kind, bare))
    return (known is not None and owner in ("", known)) or bool(current().matching(name, kind))


@asynccontextmanager
async def opened_environments(
    specs: Sequence[EnvironmentSpec], choices: Mapping[str, Choice], *, fix: str = IN_RECIPE
) -> AsyncIterator[tuple[list[Environment[Any, Any]], dict[str, Any]]]:
    """Start the services that environments need, with no policy or learner; yield environments, and
    services by slot.

    Args:
        choices: the service of each slot.
        fix: the advice of an error about an empty ``{slot}``.

    Raises:
        RecipeError: a slot has no service.
        BindingError: an argument of an environment is invalid.
    """
    slots = {slot for spec in specs for slot in spec.slots}
    # A component may ask for them, as in a run; it gets `None`.
    without_run = {"policy": None, "learner": None}
    async with started_services(choices, slots, without_run, fix=fix) as services:
        yield [spec.make(services) for spec in specs], services


def _reward(name: str) -> Any:
    component = current().load("reward", name)
    if isinstance(component, FunctionType):
        return of_function(component)
    if not isinstance(component, Reward):
        raise BindingError(f"reward {name!r} is {component!r}; expected a function")
    return component


def resolve_algorithm(recipe: Recipe) -> Algorithm:
    """Return the algorithm of the recipe, with its changes; under a staleness, see
    `_ratio_under_staleness`.

    Raises:
        PluginError: the component is not an algorithm.
        RecipeError: samples may be older than the learner, and the algorithm takes no ratio to
            their sampler.
    """
    algorithm = current().load("algorithm", recipe.algorithm.use)
    if not isinstance(algorithm, Algorithm):
        raise PluginError(
            f"algorithm {recipe.algorithm.use!r} is a {type(algorithm).__name__}; expected an "
            f"Algorithm"
        )
    configured: Algorithm = bind(
        algorithm, recipe.algorithm.args, who=f"algorithm {recipe.algorithm.use!r}"
    )
    return _ratio_under_staleness(recipe, configured)


def describe_staleness(recipe: Recipe, algorithm: Algorithm) -> str:
    """Return how many weight versions may lie between the sampling of a token and its update, and
    the setting that lets them; ``""`` for a synchronous run.
    """
    schedule = resolve_schedule(recipe)
    if schedule.overlaps:
        staleness, setting = schedule.max_staleness, short_name(recipe.schedule.use)
    else:
        staleness, setting = algorithm.plan.staleness, "plan.staleness"
    return f"tokens may be {staleness} weight versions old ({setting})" if staleness else ""


def _ratio_under_staleness(recipe: Recipe, algorithm: Algorithm) -> Algorithm:
    """Return *algorithm* with ``ratio_to = "mu"`` where tokens may be older than the learner.

    With a ratio to prox, and without the weights of a correction, nothing in the loss knows their
    age. A ``ratio_to`` in the recipe stays, unless it is to mu and the objective has no ratio.

    Raises:
        RecipeError: the algorithm takes no such ratio, or clips nearly all of them.
    """
    written, objective = recipe.algorithm.args.get("ratio_to"), algorithm.objective
    # Terms of groups, as in DPO, compare samples with each other and weigh none by the policy's
    # present weights.
    if written == "prox" or algorithm.reweighted or objective.level == "group":
        return algorithm
    if not (old := describe_staleness(recipe, algorithm)):
        return algorithm
    bounds = [bound for name in objective.clips if (bound := objective.argument(name)) is not None]
    prox = 'algorithm.args.ratio_to = "prox"'
    fix = 'algorithm.args = { objective = "ppo_clip", ratio_to = "mu" }'
    if not algorithm.has_ratio:
        reason = f"ignores: objective {objective.name!r} has no ratio to their sampler"
        if algorithm.advantage.imitates:
            raise RecipeError(
                f"{old}, which {algorithm.name!r} {reason}. Set {prox} to imitate them all the "
                "same; with another objective it would no longer be maximum likelihood"
            )
    elif not written and min(bounds, default=1.0) < NARROW_CLIP:
        reason = (
            f"is not made for: it clips its ratio at {min(bounds):g} from 1, and the ratio to "
            "their sampler is mostly further away, so that hardly any would train"
        )
        wide = ", ".join(f"{name} = {WIDE_CLIP:g}" for name in objective.clips)
        fix = (
            f'algorithm.args = {{ objective = {{ use = "{objective.name}", {wide} }}, ratio_to = '
            f'"mu" }}'
        )
    else:
        try:
            return algorithm.replace(ratio_to="mu")
        except UsageError as e:
            reason, fix = f"ignores: {e}", 'algorithm.args.correction = "tis"'
    raise RecipeError(
        f"{old}, which {algorithm.name!r} {reason}. Set {fix}, or {prox} to train as if they were "
        f"new"
    )


def curriculum_kind(plan: SamplingPlan) -> type[Curriculum]:
    """Return the class of the curriculum that *plan* needs.

    Raises:
        UsageError: the curriculum is not installed, or what the plan names is none.
    """
    if plan.curriculum:
        named = current().load("curriculum", plan.curriculum)
        if not (isinstance(named, type) and issubclass(named, Curriculum)):
            raise UsageError(
                f"algorithm.args.plan.curriculum = {plan.curriculum!r} is no subclass of "
                "quintain.interfaces.Curriculum"
            )
        return named
    measured = plan.difficulty_samples or plan.difficulty_file
    if plan.order == "shuffled" and plan.drop_solved is None and not measured:
        return Mixture
    try:
        kind: type[Curriculum] = current().load("curriculum", "adaptive")
    except UnknownNameError as e:
        reason = "the plan orders tasks, drops solved ones or filters them by difficulty"
        raise UsageError(f"{reason}, and {e}") from e
    return kind


def chosen_services(recipe: Recipe, algorithm: Algorithm) -> dict[str, ComponentTable]:
    """Return the component of each service slot: that of the recipe, else that of the algorithm;
    for what plays episodes in other processes, that of ``[workers]``.
    """
    from_recipe = {
        slot: with_model(table.use, table.args) for slot, table in recipe.services.items()
    }
    if (workers := recipe.workers).episodes:
        args = {"processes": workers.episodes, **workers.args}
        from_recipe[EPISODES_SLOT] = ComponentTable(use=workers.use, args=args)
    return {slot: ComponentTable(use=use) for slot, use in algorithm.services.items()} | from_recipe


def costly_service(recipe: Recipe, algorithm: Algorithm) -> str:
    """Return the slot of a service of the evaluations whose calls may cost money, else nothing: one
    called ``judge``, or one whose component needs the network or keys.
    """
    specs = [EnvironmentSpec.of(table) for table in recipe.evaluated]
    slots = {slot for spec in specs for slot in spec.slots}
    services = chosen_services(recipe, algorithm)
    for slot, _, _ in start_order(services, slots, OWN_SLOTS):
        entry = current().entry(find_service(services[slot].use if slot in services else slot))
        if slot == "judge" or (entry and not {"keys", "network"}.isdisjoint(entry.needs)):
            return slot
    return ""


def with_model(use: str, args: Mapping[str, Any]) -> ComponentTable:
    """Return the service *use*; if it is an engine, the run that its model names becomes a path.

    Raises:
        UnknownNameError: no run has the name, and the engine asks no server, which may know it.
    """
    component = find_service(use)
    if component.kind == "engine" and isinstance(model := args.get("model"), str):
        entry = current().entry(component)
        try:
            args = {**args, "model": model_named(model).path}
        except UnknownNameError:
            if entry is None or "network" not in entry.needs:
                raise
    return ComponentTable(use=use, args=dict(args))


def pinned_recipe(recipe: Recipe) -> Recipe:
    """Return *recipe* with the ``distribution/name`` of each component, which no plugin that is
    installed later can change.

    Local components and files keep their names. *recipe* is one that `check_recipe` accepts.
    """

    def name_of(kind: str, name: str) -> str:
        component = find_service(name) if kind == "service" else current().find(kind, name)
        return name if component.origin == "local" else component.id

    algorithm = resolve_algorithm(recipe)
    names = {
        f"{kind}.use": name_of(kind, getattr(recipe, kind).use)
        for kind in ("algorithm", "engine", "learner", "schedule")
    }
    if recipe.cluster.use is not None:
        names["cluster.use"] = name_of("cluster", recipe.cluster.use)
    if is_component("model", recipe.model.name):
        names["model.name"] = name_of("model", recipe.model.name)
    if recipe.model.tool_format != "auto":
        names["model.tool_format"] = name_of("tool_format", recipe.model.tool_format)
    slots = algorithm.slots
    tables: dict[str, EnvironmentTable] = {
        f"environments.{i}": t for i, t in enumerate(recipe.environments)
    }
    tables |= {
        f"evaluation.environments.{i}": t for i, t in enumerate(recipe.evaluation.environments)
    }
    for path, table in tables.items():
        names[f"{path}.use"] = name_of("environment", table.use)
        names |= {
            f"{path}.{k}": qualified(t, lambda name: name_of("reward", name))
            for k in ("reward", "shaping", "yardstick")
            if (t := getattr(table, k))
        }
        slots = slots | EnvironmentSpec.of(table).slots
    services = chosen_services(recipe, algorithm)
    for slot, _, _ in start_order(services, slots, OWN_SLOTS):
        key = "workers" if slot == EPISODES_SLOT else f"services.{slot}"
        names[f"{key}.use"] = name_of("service", services[slot].use if slot in services else slot)
        if slot in services and "model" in services[slot].args:
            names[f"services.{slot}.args.model"] = services[slot].args["model"]
    return recipe.replace(names)


def resolve_schedule(recipe: Recipe) -> Schedule:
    """Return the schedule of the recipe.

    Raises:
        PluginError: the component is not a schedule.
        BindingError: an argument is invalid.
        UsageError: its settings let sampling run ahead, which it has no collector for.
    """
    kind = load_subclass("schedule", recipe.schedule.use, Schedule)
    who = f"schedule {recipe.schedule.use!r}"
    schedule: Schedule = bind(kind, recipe.schedule.args, who=who)
    if schedule.overlaps and type(schedule).collector is Schedule.collector:
        fix = " or ".join(providers("schedule"))
        raise UsageError(
            f"{who} waits for its groups, and schedule.args let sampling run ahead of the learner: "
            f"set schedule.use to one that overlaps (pip install {fix}), or remove the args"
        )
    return schedule


def temperature_factor(recipe: Recipe) -> Factor | None:
    """Return what multiplies the temperature of sampling in each step.

    Raises:
        UsageError: the temperature would not stay above 0 and at most 100, or a batch may have
            samples of several steps: its policy has one temperature.
    """
    table = recipe.sampling.schedules.get("temperature")
    if table is None:
        return None
    key = "sampling.schedules.temperature"
    factor = Factor.parse(key, table)
    values = [recipe.sampling.temperature * end for end in (factor.first, factor.second)]
    if factor.shape == "adaptive" or not all(0 < value <= 100 for value in values):
        raise UsageError(
            f"{key} is {dict(table)!r}; expected a ramp or a cosine that keeps the temperature "
            "above 0 and at most 100"
        )
    if resolve_schedule(recipe).overlaps:
        raise UsageError(
            f"{key}: the schedule {recipe.schedule.use!r} samples ahead, so that a batch would have "
            "several temperatures; remove one of them"
        )
    return factor


def engine_kind(recipe: Recipe) -> Any:
    """Return the class of the recipe's engine.

    Raises:
        UsageError: the engine returns no exact tokens, so it cannot train.
    """
    kind: Any = current().load("engine", recipe.engine.use)
    if not (isinstance(kind, type) and issubclass(kind, TokenEngine)):
        raise UsageError(
            f"engine {recipe.engine.use!r} cannot train: it returns no exact tokens; `quintain "
            f"eval` can use it. "
            'For training set engine.use = "embedded"'
        )
    return kind


def learner_kind(recipe: Recipe) -> Any:
    """Return what makes the recipe's learner, with its settings.

    Raises:
        BindingError: an argument is invalid.
        UsageError: the learner takes no settings.
    """
    kind: Any = current().load("learner", recipe.learner.use)
    who = f"learner {recipe.learner.use!r}"
    if isinstance(kind, type) and issubclass(kind, LearnerKind):
        kind = bind(kind, recipe.learner.args, who=who)
    elif recipe.learner.args:
        raise UsageError(f"{who} takes no args; remove them from [learner]")
    return kind


def names_cluster(kind: Any) -> bool:
    """Return whether a learner or an engine of this *kind* takes a `ProcessCluster`."""
    made_by = kind.sharing if shares_module(kind) else kind
    return "cluster" in {field.name for field in signature_of(made_by).fields}


def with_placement(recipe: Recipe) -> Recipe:
    """Return *recipe* with what its cluster knows of other tables: a kind of cluster may have a class
    method ``changes``, from a recipe to the values of it by dotted path.

    Raises:
        UsageError: the tables do not fit.
    """
    if recipe.cluster.use is None:
        return recipe
    changes = getattr(current().load("cluster", recipe.cluster.use), "changes", None)
    return recipe if changes is None else recipe.replace(changes(recipe))


@dataclass(frozen=True, kw_only=True)
class ClusterKind:
    """A cluster of the registry and its settings; a call makes it."""

    kind: Any
    args: Mapping[str, Any]

    def __call__(self) -> ProcessCluster:
        cluster: ProcessCluster = bind(self.kind, self.args, who="[cluster]")
        return cluster


def cluster_kind(recipe: Recipe) -> ClusterKind | None:
    """Return what makes the recipe's cluster; ``None`` without one.

    Raises:
        BindingError: an argument is invalid.
        UsageError: nothing starts processes there.
    """
    if recipe.cluster.use is None:
        if recipe.cluster.args:
            raise UsageError("[cluster] has args and no use")
        return None
    engine = engine_kind(recipe)
    placed = names_cluster(engine) and engine.places(recipe.engine.args)
    if not (placed or recipe.workers.episodes or names_cluster(learner_kind(recipe))):
        raise UsageError(
            "[cluster] starts the processes of a learner and of episodes, and the servers of an "
            f"engine, and learner {recipe.learner.use!r} starts none there, nor does engine "
            f"{recipe.engine.use!r}; remove the table, set learner.use or engine.use to one that "
            "does (docs/distributed.md), or set workers.episodes (docs/workers.md)"
        )
    chosen = ClusterKind(
        kind=current().load("cluster", recipe.cluster.use), args=recipe.cluster.args
    )
    check_args(chosen.kind, chosen.args, who="[cluster]")
    return chosen
