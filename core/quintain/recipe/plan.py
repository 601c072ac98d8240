"""The plan of a run: what a recipe says, resolved once into components and numbers.

A run is built from its plan and never reads the recipe again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..console.metrics import distinct_names
from ..console.screen import Screen
from ..interfaces.algorithm import Algorithm
from ..interfaces.curriculum import Curriculum
from ..interfaces.factors import Factor, Factors
from ..interfaces.learner import BytesPerParameter, LearnerKind
from ..interfaces.schedule import Schedule
from ..interfaces.shared_module import SuggestsSlots, shares_module
from ..registry.discovery import short_name
from ..registry.lookup import current
from ..types.sampling import Sampling
from .precision import settled
from .resolve import (
    ClusterKind,
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
    temperature_factor,
)
from .sources import ModelRequest, ModelSource, services_for
from .tables import ComponentTable, Recipe

MISMATCH_LIMIT_FLOAT32, MISMATCH_LIMIT_HALF, MISMATCH_LIMIT_ADAPTERS = 0.01, 0.1, 0.2
"""Limits of `LearnerPlan.max_sample_mismatch` in nats, where engine and learner compute in float32,
elsewhere, and elsewhere with adapters. Healthy runs have 1e-6 and 0.005 to 0.02, wide random models to
0.08. With adapters in half precision two recipes had up to 0.12. docs/health.md has a table of what planted
errors give.
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
        costly_slot: the slot of the service whose calls may cost money, because of which
            *other_sampling* is left out unless the recipe asks for it; else empty.
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
class ModelPlan:
    """The model that a run trains.

    Attributes:
        source: where it comes from.
        services: that the recipe itself names, by slot, for a source that plays episodes.
        lora: fields of `peft.LoraConfig`; ``None`` trains all weights.
        dtype: of the engine.
        tool_format, template, history: how its chat template is used.
    """

    name: str
    source: ModelSource
    services: Mapping[str, ComponentTable]
    device: str
    dtype: str
    lora: Mapping[str, Any] | None
    tool_format: str
    template: Mapping[str, Any]
    history: Literal["auto", "append", "template"]

    @classmethod
    def of(cls, recipe: Recipe) -> ModelPlan:
        """Resolve ``[model]``."""
        model = recipe.model
        return cls(
            name=model.name,
            source=ModelSource.of(recipe),
            services=recipe.services,
            device=model.device,
            dtype=model.dtype,
            lora=model.lora.model_dump() if model.lora else None,
            tool_format=model.tool_format,
            template=model.template,
            history=model.history,
        )


@dataclass(frozen=True, kw_only=True)
class TaskPlan:
    """Where the tasks of a run come from.

    Attributes:
        environments: to train on, without their services.
        labels: of the environments, as the recipe has them.
        names: the same in rollouts and metrics, where no two are equal.
        weights: share of the groups of each environment.
        curriculum: the class of what chooses the next task.
    """

    environments: tuple[EnvironmentSpec, ...]
    labels: tuple[str, ...]
    names: tuple[str, ...]
    weights: tuple[float, ...]
    curriculum: type[Curriculum]

    @classmethod
    def of(cls, recipe: Recipe, algorithm: Algorithm) -> TaskPlan:
        """Resolve ``[[environments]]`` of *recipe*, which trains with *algorithm*."""
        tables = recipe.environments
        labels = tuple(table.label for table in tables)
        return cls(
            environments=tuple(EnvironmentSpec.of(table) for table in tables),
            labels=labels,
            names=tuple(distinct_names(labels)),
            weights=tuple(table.weight for table in tables),
            curriculum=curriculum_kind(algorithm.plan),
        )


@dataclass(frozen=True, kw_only=True)
class RolloutPlan:
    """The rollouts of a step.

    Attributes:
        sampling: how the policy is sampled; a turn has at most *max_tokens*.
        groups, group_size: tasks of a step and rollouts of each task.
        min_group_size: valid rollouts of a group, in addition to the algorithm's group filter.
        retries: of an episode that failed for reasons other than the policy.
        concurrency: episodes at once; ``None`` is the engine's choice.
        temperature: what multiplies that of *sampling* in each step.
    """

    sampling: Sampling
    max_tokens: int
    groups: int
    group_size: int
    min_group_size: int
    retries: int
    concurrency: int | None
    temperature: Factor | None = None

    @classmethod
    def of(cls, recipe: Recipe, algorithm: Algorithm) -> RolloutPlan:
        """Resolve ``[sampling]`` and ``[batch]`` of *recipe*, which trains with *algorithm*."""
        batch = recipe.batch
        return cls(
            sampling=recipe.sampling.to_sampling().replace(
                prune=algorithm.prune, thinking_budget=algorithm.plan.thinking_budget
            ),
            max_tokens=recipe.sampling.max_tokens,
            groups=batch.prompts,
            group_size=batch.group_size,
            min_group_size=batch.min_group_size or 1,
            retries=batch.retries,
            concurrency=batch.concurrency,
            temperature=temperature_factor(recipe),
        )

    def sampling_at(self, step: int) -> Sampling:
        """Return the settings of the samples of *step*; the first is 1."""
        if self.temperature is None:
            return self.sampling
        temperature = self.sampling.temperature * self.temperature.at(step - 1)
        return self.sampling.replace(temperature=temperature)

    @property
    def samples(self) -> int:
        """Rollouts of a step."""
        return self.groups * self.group_size

    @property
    def sequence_tokens(self) -> int:
        """The tokens of a sequence that are expected at most."""
        return 2 * self.max_tokens + PROMPT_TOKENS


@dataclass(frozen=True, kw_only=True)
class LearnerPlan:
    """What makes the learner.

    Attributes:
        kind: makes it, as ``kind(module, algorithm, **options)``.
        options: the keyword arguments that `PolicyLearner` lists.
        component: its name and its own settings, as a model folder notes them.
        bytes: what the learner takes for each parameter.
        max_sample_mismatch: nats at which the run stops; ``None`` checks nothing.
        exact_sampler: engine and learner compute in float32.
    """

    kind: Any
    options: Mapping[str, Any]
    component: Mapping[str, Any]
    bytes: BytesPerParameter
    max_sample_mismatch: float | None
    exact_sampler: bool

    @classmethod
    def of(cls, recipe: Recipe) -> LearnerPlan:
        """Resolve ``[learner]``."""
        # An instance of `LearnerKind` with its settings, or a class, of which the defaults hold.
        kind = learner_kind(recipe)
        size = BytesPerParameter()
        if isinstance(kind, LearnerKind):
            size = kind.bytes_per_parameter(adapters=recipe.model.lora is not None)
        elif recipe.model.dtype == "float64":
            size = BytesPerParameter(weights=8, gradients=8, moments=16)
        return cls(
            kind=kind,
            options=recipe.learner.options(),
            component=recipe.learner.model_dump(include={"use", "args"}),
            bytes=size,
            max_sample_mismatch=_max_sample_mismatch(recipe),
            exact_sampler=_is_exact(recipe),
        )

    @property
    def precision(self) -> str:
        """The precision of the learner's forward pass."""
        return str(self.options["precision"])

    @property
    def dtype(self) -> str:
        """The precision of the learner's weights."""
        return {2: "bfloat16", 4: "float32", 8: "float64"}[self.bytes.weights]

    @property
    def checkpoints_activations(self) -> bool:
        """Whether activations are computed again in the backward pass."""
        return bool(self.options["activation_checkpointing"])

    @property
    def token_budget(self) -> int | None:
        """Tokens of a micro-batch; ``None`` is the learner's choice."""
        return self.options.get("token_budget")


@dataclass(frozen=True, kw_only=True)
class EnginePlan:
    """What makes the engine: its class *kind* and the arguments *args* that the recipe has."""

    kind: Any
    args: Mapping[str, Any]

    @property
    def beside_learner(self) -> bool:
        """Whether it takes memory of the learner's device; others have their own."""
        return shares_module(self.kind) and isinstance(self.kind, SuggestsSlots)


@dataclass(frozen=True, kw_only=True)
class StopPlan:
    """When a run ends: after *steps*, or at the first of the limits that are not ``None``.

    Attributes:
        accuracy: of a held-out evaluation.
        minutes: since the model was loaded.
        samples, tokens, seconds: of training alone.
    """

    steps: int
    accuracy: float | None
    minutes: float | None
    samples: int | None
    tokens: int | None
    seconds: float | None

    @classmethod
    def of(cls, recipe: Recipe) -> StopPlan:
        """Resolve ``run.steps`` and ``[stop]``."""
        return cls(steps=recipe.run.steps, **recipe.stop.model_dump())

    @property
    def may_end_early(self) -> bool:
        """Whether a limit may end the run before its last step."""
        limits = (self.accuracy, self.minutes, self.samples, self.tokens, self.seconds)
        return any(limit is not None for limit in limits)


@dataclass(frozen=True, kw_only=True)
class SavingPlan:
    """What a run keeps on disk.

    Attributes:
        folder: the parent of its folder.
        every: steps between checkpoints; 0 is none before the last step.
        keep: number of last checkpoints.
        best: whether the one with the highest held-out accuracy stays, too.
        rollouts: steps whose rollouts stay, or ``"all"`` or ``"none"``.
    """

    folder: Path
    every: int
    keep: int
    best: bool
    rollouts: int | Literal["all", "none"]

    @classmethod
    def of(cls, recipe: Recipe) -> SavingPlan:
        """Resolve ``run.folder``, ``[checkpoint]`` and ``[rollouts]``."""
        return cls(
            folder=Path(recipe.run.folder),
            rollouts=recipe.rollouts.keep,
            **recipe.checkpoint.model_dump(),
        )


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """What a run is built from: one record for each concern.

    Attributes:
        record: the recipe as plain data, which the run hands on to hooks and to its provenance and
            reads nothing of.
        algorithm: its pieces get their services when the run starts. Users read *algorithm_label*.
        cluster: what makes that on which learner and engine start processes; ``None`` is this
            machine.
        services: the component of each slot. *slots* are all that something needs.
        notes: settings without the effect that their names promise, and the engine's remark.
    """

    record: Mapping[str, Any]
    seed: int
    model: ModelPlan
    tasks: TaskPlan
    rollouts: RolloutPlan
    algorithm: Algorithm
    algorithm_label: str
    schedule: Schedule
    engine: EnginePlan
    learner: LearnerPlan
    cluster: ClusterKind | None
    services: Mapping[str, ComponentTable]
    slots: frozenset[str]
    evaluation: EvaluationPlan
    stop: StopPlan
    saving: SavingPlan
    notes: tuple[str, ...]

    @classmethod
    def of(cls, recipe: Recipe) -> RunPlan:
        """Resolve *recipe*: load its components, check that they fit, and copy its numbers.

        No model is loaded and no service is started.

        Raises:
            UsageError: the recipe does not fit what is installed.
            PluginError: a component cannot be loaded.
        """
        recipe = settled(recipe)
        algorithm = resolve_algorithm(recipe)
        tasks = TaskPlan.of(recipe, algorithm)
        evaluation = EvaluationPlan.of(recipe, algorithm)
        engine = EnginePlan(kind=engine_kind(recipe), args=recipe.engine.args)
        rollouts = RolloutPlan.of(recipe, algorithm)
        remark = engine.kind.check_algorithm(
            algorithm,
            engine.args,
            group_size=rollouts.group_size,
            concurrency=rollouts.concurrency,
        )
        needed = {slot for spec in (*tasks.environments, *evaluation.specs) for slot in spec.slots}
        return cls(
            record=recipe.model_dump(mode="json"),
            seed=recipe.run.seed,
            model=ModelPlan.of(recipe),
            tasks=tasks,
            rollouts=rollouts,
            algorithm=algorithm,
            algorithm_label=recipe.algorithm.label,
            schedule=resolve_schedule(recipe),
            engine=engine,
            learner=LearnerPlan.of(recipe),
            cluster=cluster_kind(recipe),
            services=evaluation.services,
            slots=frozenset(needed | algorithm.slots),
            evaluation=evaluation,
            stop=StopPlan.of(recipe),
            saving=SavingPlan.of(recipe),
            notes=(*_notes(recipe, algorithm), *([remark] if remark else [])),
        )

    def model_request(self, screen: Screen) -> ModelRequest:
        """Return what the run asks its model source for."""
        dtype = "float64" if self.model.dtype == "float64" else "float32"
        if self.learner.bytes.weights == 2:
            dtype = "bfloat16"
        return ModelRequest(
            name=self.model.name,
            seed=self.seed,
            device=self.module_device,
            dtype=dtype,
            lora=self.model.lora,
            specs=self.tasks.environments,
            services=services_for(self.tasks.environments, self.model.services),
            screen=screen,
        )

    @property
    def module_device(self) -> str:
        """The device of the module in the process of the run; ``meta`` has no weights."""
        kind, device = self.learner.kind, self.model.device
        return kind.module_device(device) if isinstance(kind, LearnerKind) else device

    @property
    def engine_dtype(self) -> str:
        """The precision of an engine that decodes the learner's module."""
        dtype = str(self.engine.args.get("dtype", self.model.dtype))
        return self.learner.dtype if dtype == "auto" else dtype

    def engine_slots(self, module: Any, *, room: int | None) -> int:
        """Return how many sequences of *module* an engine beside the learner decodes at once.

        *room* is the bytes of a GPU for their keys and values; ``None`` on a CPU.
        """
        written: int | None = self.engine.args.get("slots")
        if written is not None:
            return written
        fitting: int = self.engine.kind.slots_for(
            module,
            samples=self.rollouts.samples,
            tokens=self.rollouts.sequence_tokens,
            dtype=self.engine_dtype,
            room=room,
        )
        return fitting

    @property
    def copies_weights(self) -> bool:
        """Whether the engine samples with older weights than the learner has, hence with a copy."""
        return self.schedule.overlaps or self.algorithm.plan.staleness > 0

    @property
    def engine_elsewhere(self) -> bool:
        """Whether an engine beside the learner has another device than the module, hence a copy."""
        return self.engine.beside_learner and self.module_device != self.model.device


def _max_sample_mismatch(recipe: Recipe) -> float | None:
    if (setting := recipe.run.max_sample_mismatch) is not None:
        return None if setting == "none" else setting
    if _is_exact(recipe):
        return MISMATCH_LIMIT_FLOAT32
    return MISMATCH_LIMIT_ADAPTERS if recipe.model.lora else MISMATCH_LIMIT_HALF


def _is_exact(recipe: Recipe) -> bool:
    """Return whether engine and learner compute in float32, with the same weights."""
    dtype = {"dtype": recipe.model.dtype, **recipe.engine.args}["dtype"]
    exact = dtype in ("float32", "float64") and recipe.learner.precision == "float32"
    return exact and shares_module(engine_kind(recipe))


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
    return [*notes, *schedule_notes(recipe, algorithm)]


def schedule_notes(recipe: Recipe, algorithm: Algorithm) -> list[str]:
    """Return what the settings with a schedule are over the steps, a line each."""
    factors = Factors(recipe.learner.schedules, algorithm)
    notes = factors.described(algorithm, recipe.learner.lr)
    if (factor := temperature_factor(recipe)) is not None:
        course = factor.course(recipe.sampling.temperature, "step")
        notes.append(f"sampling.temperature is {course}")
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
