"""Which GPUs sample and which learn, what a run takes on them, and which change helps most."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from random import Random
from typing import Any

import torch

from quintain.errors import UsageError
from quintain.interfaces import Schedule
from quintain.models import with_adapters
from quintain.recipe import MemoryPlan, RunPlan, memory_of, memory_on
from quintain.registry import current

from .hardware import Gpu, ModelShape, gpu_named, module_for, shape_of
from .roofline import BYTES, NO_CONFIGURATION, all_gpus, learner_gpus
from .setup import ClusterTable, SimulationSetup
from .simulation import Outcome, Simulation

WEIGHTS_SHARE = 0.6
"""Share of the memory of an engine that its weights may take: the rest is for keys and values."""
DRAWS = 500
"""Episodes drawn for a mean."""
NOTABLE = 0.02
"""A change that helps by less helps nothing that a simulation shows."""


@dataclass(frozen=True, kw_only=True)
class RankMemory:
    """Bytes of a GPU, by its task.

    Attributes:
        rank: what a GPU of the learner holds: its share of weights, gradients and moments, and the
            activations of a micro-batch.
        host: what the run and the ranks have in host memory together.
        engine: what a GPU of an engine holds of the weights.
        room: what it has for keys and values.
    """

    rank: float
    host: float
    engine: float
    room: float


@dataclass(frozen=True, kw_only=True)
class Option:
    """A cluster that was simulated: what differs, and what came of it."""

    text: str
    simulation: Simulation
    outcome: Outcome

    @property
    def gpus(self) -> int:
        return all_gpus(self.simulation.setup)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The best division of the GPUs, its memory, and its neighbours.

    Attributes:
        neighbours: one change each, the one that helps most first.
    """

    chosen: Option
    memory: RankMemory
    neighbours: tuple[Option, ...]

    def gain(self, option: Option) -> float:
        """Return what *option* gains over the chosen one, as a share of its tokens a second."""
        return option.outcome.tokens_per_second / self.chosen.outcome.tokens_per_second - 1


@dataclass(frozen=True, kw_only=True)
class ClusterPlanner:
    """Divides *gpus* of one kind between engines and learner.

    Attributes:
        plan: of the recipe.
        setup: whose cluster has the kind of GPU; its numbers of GPUs are replaced.
        module: what the learner trains, without weights; with the adapters of the recipe.
        steps: of each simulation; 0 is as many as the figures need.
    """

    plan: RunPlan
    setup: SimulationSetup
    module: Any
    shape: ModelShape
    gpus: int
    steps: int = 0
    _simulated: dict[tuple[ClusterTable, Schedule], tuple[Simulation, Outcome]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @classmethod
    def of(cls, plan: RunPlan, setup: SimulationSetup, gpus: int, steps: int = 0) -> ClusterPlanner:
        """Return the planner of *gpus* GPUs of ``setup.cluster.gpu``.

        Raises:
            UsageError: the size of the model is not known.
        """
        module = module_for(plan, setup.model)
        if module is None:
            raise UsageError(NO_CONFIGURATION)
        shape = shape_of(module, setup.model or plan.model.name)  # engines have no adapters
        if plan.model.lora is not None:
            with torch.device("meta"):
                module = with_adapters(module, plan.model.lora)
        return cls(plan=plan, setup=setup, module=module, shape=shape, gpus=gpus, steps=steps)

    @property
    def gpu(self) -> Gpu:
        return gpu_named(self.setup.cluster.gpu)

    def gpus_per_engine(self) -> int:
        """Return how many GPUs an engine needs: a power of 2 whose memory has room for keys and
        values beside the weights.
        """
        needed = BYTES * self.shape.parameters / (WEIGHTS_SHARE * self.gpu.memory)
        return int(2 ** max(0, math.ceil(math.log2(needed))))

    @cached_property
    def memory(self) -> MemoryPlan:
        """The memory of a learner on one GPU, as ``--dry-run`` plans it."""
        return memory_of(self.plan, self.module, free=int(self.gpu.memory))

    def memory_on(self, ranks: int) -> MemoryPlan:
        """Return the memory of a learner on *ranks* GPUs, as ``--dry-run`` plans it: by the recipe's
        own learner if it can take several, else by `fsdp`.
        """
        plan = self.plan
        if not hasattr(plan.learner.kind, "on_gpus"):
            if ranks == 1:
                return self.memory
            kind = current().load("learner", "fsdp")()
            plan = replace(plan, learner=replace(plan.learner, kind=kind))
        return memory_on(plan, self.module, devices=ranks, free=int(self.gpu.memory))

    def rank_bytes(self, ranks: int) -> float:
        """Return the bytes of each of *ranks* GPUs of the learner: its share of weights, gradients
        and moments, the root three times, and the activations and logits of a micro-batch.
        """
        memory = self.memory_on(ranks)
        return memory.each or memory.fixed - memory.copy + memory.activations

    def holds(self, ranks: int) -> bool:
        """Return whether *ranks* GPUs hold the learner."""
        return self.rank_bytes(ranks) <= self.setup.assumed.memory * self.gpu.memory

    def check_learner(self, ranks: int) -> None:
        """Raise a `UsageError` if *ranks* GPUs do not hold the learner."""
        if not self.holds(ranks):
            raise UsageError(
                f"the learner takes {self.rank_bytes(ranks) / 1e9:,.0f} GB on each of {ranks} x "
                f"{self.gpu.name}, which has {self.gpu.memory / 1e9:g} GB: take more GPUs, train "
                "adapters (model.lora={}), or set learner.checkpoint_activations=true"
            )

    def least_ranks(self) -> int:
        """Return the fewest GPUs that hold the learner.

        Raises:
            UsageError: not even all of them do.
        """
        least = next((ranks for ranks in range(1, self.gpus + 1) if self.holds(ranks)), self.gpus)
        self.check_learner(least)
        return least

    def with_cluster(self, **fields: Any) -> SimulationSetup:
        """Return the setup with other numbers of GPUs."""
        return self.setup.model_copy(
            update={"cluster": self.setup.cluster.model_copy(update=fields)}
        )

    def simulated(self, text: str, setup: SimulationSetup, plan: RunPlan | None = None) -> Option:
        """Return the outcome of a cluster."""
        plan = plan or self.plan
        key = setup.cluster, plan.schedule  # all that differs between options
        if key not in self._simulated:
            simulation = Simulation(plan=plan, setup=setup, shape=self.shape)
            self._simulated[key] = simulation, simulation.run(steps=self.steps)
        simulation, outcome = self._simulated[key]
        return Option(text=text, simulation=simulation, outcome=outcome)

    def division(self) -> SimulationSetup:
        """Return the division whose slower part is quickest, by means without a simulation.

        Raises:
            UsageError: the GPUs do not hold engine and learner.
        """
        each = self.gpus_per_engine()
        if not self.plan.schedule.overlaps:
            if self.gpus < each:
                raise UsageError(f"an engine needs {each} GPUs; there are {self.gpus}")
            shared = self.with_cluster(engines=self.gpus // each, gpus_per_engine=each, shared=True)
            self.check_learner(learner_gpus(shared))
            return shared
        least = self.least_ranks()
        best: tuple[float, int] | None = None
        for engines in range(1, (self.gpus - least) // each + 1):
            ranks = self.gpus - engines * each
            setup = self.with_cluster(engines=engines, gpus_per_engine=each, learner_gpus=ranks)
            seconds = max(self.rough_seconds(setup))
            if best is None or seconds < best[0]:
                best = (seconds, engines)
        if best is None:
            raise UsageError(
                f"{self.gpus} x {self.gpu.name} do not hold an engine of {each} and a learner of "
                f"{least} GPUs: take more, or the schedule sync, whose engines and learner share "
                "them"
            )
        engines = best[1]
        return self.with_cluster(
            engines=engines, gpus_per_engine=each, learner_gpus=self.gpus - engines * each
        )

    def rough_seconds(self, setup: SimulationSetup) -> tuple[float, float]:
        """Return about how long the engines sample a batch, and how long the learner updates."""
        simulation = Simulation(plan=self.plan, setup=setup, shape=self.shape)
        lengths, sampled = self._means(simulation)
        costs, engines = simulation.costs, setup.cluster.engines
        samples = self.plan.rollouts.samples
        running = samples * (self.plan.schedule.max_staleness + 1) / engines
        batch = max(1, int(min(costs.slots, costs.capacity / lengths, running)))
        step = costs.step(batch) + costs.context * batch * lengths / 2
        return (
            samples * sampled * step / (batch * engines),
            simulation.learner.update([lengths] * samples) + simulation.learner.transfer,
        )

    def _means(self, simulation: Simulation) -> tuple[float, float]:
        """Return the mean length of an episode, and of it what is sampled."""
        episodes, random = simulation.episodes(), Random(0)
        length = sampled = 0.0
        for _ in range(DRAWS):
            length += episodes.prompt.draw(random)
            for step in episodes.draw(random):
                length += step.added + step.tokens
                sampled += step.tokens
        return length / DRAWS, sampled / DRAWS

    def answer(self) -> Answer:
        """Simulate the division and its neighbours; a neighbour with the same GPUs that is better
        is chosen instead.
        """
        chosen = self.simulated("", self.division())
        while True:
            neighbours = [
                self.simulated(text, setup, plan)
                for text, setup, plan in self.neighbours(chosen.simulation)
            ]
            same = [
                n for n in neighbours if n.gpus == chosen.gpus and n.simulation.plan is self.plan
            ]
            better = max(same, key=lambda n: n.outcome.tokens_per_second, default=None)
            if (
                better is None
                or better.outcome.tokens_per_second
                <= (1 + NOTABLE) * chosen.outcome.tokens_per_second
            ):
                break
            chosen = replace(better, text="")
        neighbours.sort(key=lambda n: -n.outcome.tokens_per_second)
        setup = chosen.simulation.setup
        each, ranks = setup.cluster.gpus_per_engine, learner_gpus(setup)
        weights = BYTES * self.shape.parameters / each
        room = chosen.simulation.costs.capacity * self.shape.cache_bytes / each
        host = self.memory_on(ranks).host
        memory = RankMemory(rank=self.rank_bytes(ranks), host=host, engine=weights, room=room)
        return Answer(chosen=chosen, memory=memory, neighbours=tuple(neighbours))

    def neighbours(
        self, simulation: Simulation
    ) -> Iterator[tuple[str, SimulationSetup, RunPlan | None]]:
        """Yield single changes of a cluster: what changes, the setup, and the plan if it does."""
        cluster = simulation.setup.cluster
        each, engines, ranks = cluster.gpus_per_engine, cluster.engines, cluster.learner_gpus
        more = f"{each} GPU{'s' * (each > 1)} more"

        def changed(**fields: Any) -> SimulationSetup:
            return simulation.setup.model_copy(
                update={"cluster": cluster.model_copy(update=fields)}
            )

        if cluster.shared:
            yield f"{more} that sample and learn", changed(engines=engines + 1), None
        else:
            yield f"{more} for sampling", changed(engines=engines + 1), None
            yield f"{more} for learning", changed(learner_gpus=ranks + each), None
            if ranks - each >= self.least_ranks():
                fields = {"engines": engines + 1, "learner_gpus": ranks - each}
                yield f"{each} from learning to sampling", changed(**fields), None
            if engines > 1:
                fields = {"engines": engines - 1, "learner_gpus": ranks + each}
                yield f"{each} from sampling to learning", changed(**fields), None
        for text, schedule in self.other_schedules():
            if schedule.overlaps and cluster.shared:
                continue  # needs another division
            yield text, simulation.setup, replace(self.plan, schedule=schedule)

    def other_schedules(self) -> Iterator[tuple[str, Schedule]]:
        """Yield schedules with another staleness."""
        now = self.plan.schedule
        if now.overlaps and now.max_staleness:
            double = 2 * now.max_staleness
            yield f"max_staleness = {double}", replace(now, max_staleness=double)
            if not now.in_flight_updates:
                yield "updates in flight", replace(now, in_flight_updates=True)
