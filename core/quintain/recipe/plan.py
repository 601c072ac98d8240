"""The plan of a run: what a recipe says, resolved once into components and numbers.

A run is built from its plan and never reads the recipe again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from ..console.metrics import distinct_names
from ..console.screen import Screen
from ..interfaces.algorithm import Algorithm
from ..interfaces.cluster import ProcessCluster
from ..interfaces.curriculum import Curriculum
from ..interfaces.learner import BytesPerParameter, LearnerKind
from ..interfaces.schedule import Schedule
from ..interfaces.shared_module import SuggestsSlots, shares_module
from ..registry.discovery import short_name
from ..registry.lookup import current
from ..types.sampling import Sampling
from .resolve import (
    EnvironmentSpec,
    chosen_services,
    cluster_kind,
    costly_service,
    curriculum_kind,
    describe_staleness,
    engine_kind,
    learner_kind,
    resolve_algorithm,
    resolve_schedule,
)
from .sources import ModelRequest, ModelSource
from .tables import (
    CheckpointTable,
    ComponentTable,
    LearnerTable,
    ModelTable,
    Recipe,
    StopTable,
)

MISMATCH_LIMIT_FLOAT32, MISMATCH_LIMIT_HALF = 0.01, 0.1
"""Limits of `RunPlan.max_sample_mismatch` in nats, where engine and learner compute in float32, and
elsewhere. Healthy runs have 1e-6 and 0.005 to 0.02, wide random models to 0.08. docs/health.md has
a table of what planted errors give.
"""

PROMPT_TOKENS = 512
"""Assumed of a prompt."""


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """An environment of the evaluations.

    Attributes:
        name: in metrics; no two are equal.
        weight: its share of the accuracy.
        split, tasks: its own, which replace those of `EvaluationPlan` while training; ``None``
            keeps these.
    """

    name: str
    weight: float
    split: str | None
    tasks: int | Literal["all"] | None

    def count(self, tasks: int | None) -> int | None:
        """Return how many tasks to evaluate while training, where others take *tasks*."""
        if self.tasks is None:
            return tasks
        return None if self.tasks == "all" else self.tasks


@dataclass(frozen=True, kw_only=True)
class EvaluationPlan:
    """How a run measures its policy.

    Attributes:
        every: steps between evaluations; 0 is never.
        tasks: ``None`` is the whole split.
        samples: rollouts of each task.
        sampling: how replies are decoded.
        other_sampling: the other way of decoding, for the test split; ``None`` leaves it out.
        costly_slot: the slot of the service whose calls may cost money, for which it is left out
            without a word in the recipe; else empty.
        test_tasks: 0 leaves the test split out.
        environments: in the order of *specs*, or of the training environments.
        specs: environments of their own; empty if those of training are evaluated.
        services: the component of each slot, of the recipe or the algorithm.
    """

    every: int
    split: str
    tasks: int | None
    samples: int
    sampling: Sampling
    other_sampling: Sampling | None
    costly_slot: str
    test_split: str
    test_tasks: int | None
    environments: tuple[HeldOut, ...]
    specs: tuple[EnvironmentSpec, ...]
    services: Mapping[str, ComponentTable]

    @classmethod
    def of(cls, recipe: Recipe, algorithm: Algorithm) -> EvaluationPlan:
        """Resolve the evaluations of *recipe*, which trains with *algorithm*."""
        table, evaluated = recipe.evaluation, recipe.evaluated
        sampling = table.to_sampling(recipe.sampling).replace(
            thinking_budget=algorithm.plan.thinking_budget
        )
        other = sampling.replace(temperature=table.other_decoding_temperature(recipe.sampling))
        wanted, costly_slot = table.test.other_decoding, ""
        if wanted == "auto" and table.test.tasks != 0:
            costly_slot = costly_service(recipe, algorithm)
            wanted = not costly_slot
        names = distinct_names(one.name or one.label for one in evaluated)
        return cls(
            every=table.every,
            split=table.split,
            tasks=table.tasks,
            samples=table.samples,
            sampling=sampling,
            other_sampling=other if wanted else None,
            costly_slot=costly_slot,
            test_split=table.test.split,
            test_tasks=table.test.tasks,
            environments=tuple(
                HeldOut(name=name, weight=one.weight, split=one.split, tasks=one.tasks)
                for name, one in zip(names, evaluated, strict=True)
            ),
            specs=tuple(EnvironmentSpec.of(one) for one in table.environments),
            services=chosen_services(recipe, algorithm),
        )


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """What a run is built from.

    Attributes:
        record: the recipe as plain data, for hooks and the provenance of the run.
        environments: to train on, without their services, with their *labels* and *weights*.
        names: of the environments in rollouts and metrics; no two are equal.
        algorithm: its pieces get their services when the run starts.
        engine, engine_args: the class of the engine and its settings.
        learner_kind: what makes the learner: ``kind(module, algorithm, **settings)``.
        cluster: what makes that on which learner and engine start processes; ``None`` is this
            machine.
        written_services: of the recipe itself, for the model source.
        services: the same with those of the algorithm. *slots* are all that something needs.
        sampling: of training; a turn has at most *max_tokens* of them.
        groups, group_size: tasks of a step and rollouts of each task.
        min_group_size: valid rollouts of a group, in addition to the algorithm's group filter.
        concurrency: episodes at once; ``None`` is the engine's choice.
        keep_rollouts: number of steps, or ``"all"`` or ``"none"``.
        max_sample_mismatch: nats at which the run stops; ``None`` checks nothing.
        notes: settings without the effect that their names promise, and the engine's remark.
    """

    record: Mapping[str, Any]
    steps: int
    seed: int
    model: ModelTable
    source: ModelSource
    environments: tuple[EnvironmentSpec, ...]
    labels: tuple[str, ...]
    names: tuple[str, ...]
    weights: tuple[float, ...]
    algorithm: Algorithm
    algorithm_label: str
    curriculum: type[Curriculum]
    schedule: Schedule
    engine: Any
    engine_args: Mapping[str, Any]
    learner_kind: Any
    learner: LearnerTable
    cluster: Callable[[], ProcessCluster] | None
    written_services: Mapping[str, ComponentTable]
    services: Mapping[str, ComponentTable]
    slots: frozenset[str]
    sampling: Sampling
    max_tokens: int
    groups: int
    group_size: int
    min_group_size: int
    retries: int
    concurrency: int | None
    evaluation: EvaluationPlan
    stop: StopTable
    checkpoint: CheckpointTable
    keep_rollouts: int | Literal["all", "none"]
    max_sample_mismatch: float | None
    notes: tuple[str, ...]

    @classmethod
    def of(cls, recipe: Recipe) -> RunPlan:
        """Resolve *recipe*: load its components, check that they fit, and copy its numbers.

        No model is loaded and no service is started.

        Raises:
            UsageError: the recipe does not fit what is installed.
            PluginError: a component cannot be loaded.
        """
        algorithm, schedule = resolve_algorithm(recipe), resolve_schedule(recipe)
        environments = tuple(EnvironmentSpec.of(table) for table in recipe.environments)
        evaluation = EvaluationPlan.of(recipe, algorithm)
        engine = engine_kind(recipe)
        remark = engine.check_algorithm(algorithm, recipe.engine.args)
        needed = {slot for spec in (*environments, *evaluation.specs) for slot in spec.slots}
        labels = tuple(table.label for table in recipe.environments)
        budget = algorithm.plan.thinking_budget
        return cls(
            record=recipe.model_dump(mode="json"),
            steps=recipe.run.steps,
            seed=recipe.run.seed,
            model=recipe.model,
            source=ModelSource.of(recipe),
            environments=environments,
            labels=labels,
            names=tuple(distinct_names(labels)),
            weights=tuple(table.weight for table in recipe.environments),
            algorithm=algorithm,
            algorithm_label=recipe.algorithm.label,
            curriculum=curriculum_kind(algorithm.plan),
            schedule=schedule,
            engine=engine,
            engine_args=recipe.engine.args,
            learner_kind=learner_kind(recipe),
            learner=recipe.learner,
            cluster=cluster_kind(recipe),
            written_services=recipe.services,
            services=evaluation.services,
            slots=frozenset(needed | algorithm.slots),
            sampling=recipe.sampling.to_sampling().replace(
                prune=algorithm.prune, thinking_budget=budget
            ),
            max_tokens=recipe.sampling.max_tokens,
            groups=recipe.batch.prompts,
            group_size=recipe.batch.group_size,
            min_group_size=recipe.batch.min_group_size or 1,
            retries=recipe.batch.retries,
            concurrency=recipe.batch.concurrency,
            evaluation=evaluation,
            stop=recipe.stop,
            checkpoint=recipe.checkpoint,
            keep_rollouts=recipe.rollouts.keep,
            max_sample_mismatch=_max_sample_mismatch(recipe),
            notes=(*_notes(recipe, algorithm), *([remark] if remark else [])),
        )

    def model_request(self, screen: Screen) -> ModelRequest:
        """Return what the run asks its model source for."""
        request = ModelRequest.for_model(
            self.model,
            seed=self.seed,
            specs=self.environments,
            services=self.written_services,
            screen=screen,
        )
        half = self.learner_bytes.weights == 2
        return replace(request, dtype="bfloat16") if half else request

    @property
    def learner_bytes(self) -> BytesPerParameter:
        """What the learner takes for each parameter."""
        if isinstance(self.learner_kind, LearnerKind):
            return self.learner_kind.bytes_per_parameter(adapters=self.model.lora is not None)
        wide = self.model.dtype == "float64"
        return (
            BytesPerParameter(weights=8, gradients=8, moments=16) if wide else BytesPerParameter()
        )

    @property
    def learner_dtype(self) -> str:
        """The precision of the learner's weights."""
        return {2: "bfloat16", 4: "float32", 8: "float64"}[self.learner_bytes.weights]

    @property
    def engine_dtype(self) -> str:
        """The precision of an engine that decodes the learner's module."""
        dtype = str(self.engine_args.get("dtype", self.model.dtype))
        return self.learner_dtype if dtype == "auto" else dtype

    @property
    def sequence_tokens(self) -> int:
        """The tokens of a sequence that are expected at most."""
        return 2 * self.max_tokens + PROMPT_TOKENS

    @property
    def decodes_beside_learner(self) -> bool:
        """Whether the engine takes memory of the learner's device; others have their own."""
        return shares_module(self.engine) and isinstance(self.engine, SuggestsSlots)

    def engine_slots(self, module: Any, *, room: int | None) -> int:
        """Return how many sequences of *module* an engine beside the learner decodes at once.

        *room* is the bytes of a GPU for their keys and values; ``None`` on a CPU.
        """
        written: int | None = self.engine_args.get("slots")
        if written is not None:
            return written
        fitting: int = self.engine.slots_for(
            module,
            samples=self.groups * self.group_size,
            tokens=self.sequence_tokens,
            dtype=self.engine_dtype,
            room=room,
        )
        return fitting

    @property
    def copies_weights(self) -> bool:
        """Whether the engine samples with older weights than the learner has, hence with a copy."""
        return self.schedule.overlaps or self.algorithm.plan.staleness > 0


def _max_sample_mismatch(recipe: Recipe) -> float | None:
    if (setting := recipe.run.max_sample_mismatch) is not None:
        return None if setting == "none" else setting
    dtype = {"dtype": recipe.model.dtype, **recipe.engine.args}["dtype"]
    exact = dtype in ("float32", "float64") and recipe.learner.precision == "float32"
    if exact and shares_module(engine_kind(recipe)):
        return MISMATCH_LIMIT_FLOAT32
    return MISMATCH_LIMIT_HALF


def _notes(recipe: Recipe, algorithm: Algorithm) -> list[str]:
    """Return what the recipe sets and what then has no effect, or not the usual one."""
    notes = []
    if algorithm.plan.staleness and short_name(recipe.schedule.use) != "sync":
        notes.append(
            f"{algorithm.name} simulates a staleness of {algorithm.plan.staleness} in synchronous "
            f"runs; this run has that of the schedule {recipe.schedule.use!r}"
        )
    notes += _staleness_notes(recipe, algorithm)
    if recipe.model.lora and recipe.learner.lr < 1e-5:
        notes.append(
            f"learner.lr is {recipe.learner.lr:g}, a rate for all weights; adapters usually need "
            "1e-5 to 5e-5"
        )
    if algorithm.float32_head and recipe.model.dtype not in ("float32", "float64"):
        notes.append(
            f"{algorithm.name} requires a float32 head on both sides, but the engine decodes in "
            f'{recipe.model.dtype}: set model.dtype = "float32"'
        )
    return notes


def _staleness_notes(recipe: Recipe, algorithm: Algorithm) -> list[str]:
    """Return what the loss does about tokens of older weights, where nobody chose it, where it
    ignores them and where such runs fell in a study.
    """
    if not (where := describe_staleness(recipe, algorithm)):
        return []
    if algorithm.ratio_to == "mu" and algorithm.has_ratio:
        chosen_by_recipe = "ratio_to" in recipe.algorithm.args
        if chosen_by_recipe or current().load("algorithm", recipe.algorithm.use).ratio_to == "mu":
            return []
        return [f'{where}: the ratio is to their sampler, as with algorithm.args.ratio_to = "mu"']
    if algorithm.reweighted:
        clip = "" if algorithm.objective.clips else 'objective = "ppo_clip", '
        return [
            f"{where}: {algorithm.correction!r} weighs them, but nothing keeps the policy near "
            "their sampler. Such runs fell (docs/experiments/async_staleness.md), those with "
            f'algorithm.args = {{ {clip}correction = "none", ratio_to = "mu" }} did not'
        ]
    if not algorithm.ignores_staleness:
        return []
    fix = 'algorithm.args.ratio_to = "mu"'
    if not algorithm.has_ratio:
        fix += ' with an objective that has a ratio, such as algorithm.args.objective = "ppo_clip"'
    return [f"{where}, which {algorithm.name} ignores: set {fix}"]
