"""The loop of a run on a simulated cluster: its schedule, its collector and its runner, as in a run.

Simulated are the engine, the learner and the episodes. Collecting groups, admission, staleness,
the order of episodes, retries and the pool of replicas are the code that trains.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from quintain import Sampling, TokenEngine
from quintain.console import Screen
from quintain.errors import UsageError
from quintain.recipe import RunPlan
from quintain.run import Collector, Replay, collector_for
from quintain.tasks import Mixture
from quintain_scale.schedules import EnginePool

from .clock import run_simulated
from .costs import EngineCosts, LearnerCosts
from .distributions import Distribution
from .episodes import EpisodePlayer, Episodes, EpisodeStep, Simulated, spans_of
from .fleet import Cluster, Failures, Published, SimulatedEngine
from .hardware import ModelShape, module_for, shape_of
from .roofline import engine_costs, forward_passes, learner_costs
from .setup import SimulationSetup

REPLICAS = 64
"""Engines that are replicas of the real pool by default; more of them share its replicas."""
SPREAD = 0.8
"""Standard deviation of the logarithm of a reply's tokens, where nothing says otherwise."""


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """What one step took.

    Attributes:
        waited, updated, synced: seconds for the batch, of the update, of new weights.
        rollouts, tokens: of the batch; *trained* are the tokens of groups that were accepted.
        lost, dropped, tokens_lost: rollouts that failed; groups that were too old or overtaken,
            and their tokens.
        ages: tokens of the batch by the weight versions between their sampling and the update.
    """

    waited: float
    updated: float
    synced: float
    rollouts: int
    tokens: int
    trained: int
    lost: int
    dropped: int
    tokens_lost: int
    ages: Counter[int]

    @property
    def seconds(self) -> float:
        return self.waited + self.updated + self.synced


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """What a simulation takes.

    Attributes:
        plan: of the recipe.
        setup: of the cluster.
        shape: of the model, where it is known.
        measured: episodes to draw from, instead of those of the setup.
    """

    plan: RunPlan
    setup: SimulationSetup
    shape: ModelShape | None = None
    measured: tuple[tuple[EpisodeStep, ...], ...] = ()
    costs: EngineCosts = field(init=False)
    learner: LearnerCosts = field(init=False)

    def __post_init__(self) -> None:
        if self.setup.cluster.shared and self.plan.schedule.overlaps:
            raise UsageError(
                "cluster.shared lets engines and learner take turns on the same GPUs, and the "
                f"schedule of the recipe ({type(self.plan.schedule).__name__}) lets both run at "
                "once: leave one of them out"
            )
        passes = forward_passes(self.plan.algorithm, self.plan.rollouts.groups)
        object.__setattr__(self, "costs", engine_costs(self.setup, self.shape))
        object.__setattr__(self, "learner", learner_costs(self.setup, self.shape, passes))

    @classmethod
    def of(cls, plan: RunPlan, setup: SimulationSetup, **fields: Any) -> Simulation:
        """Return the simulation of *plan*; the shape of its model is that of the setup or of the
        configuration of the model.

        Raises:
            UsageError: the setup does not fit the recipe.
        """
        module = module_for(plan, setup.model)
        shape = None if module is None else shape_of(module, setup.model or plan.model.name)
        return cls(plan=plan, setup=setup, shape=shape, **fields)

    def episodes(self) -> Episodes:
        """Return what its episodes are like."""
        table, most = self.setup.episodes, self.plan.rollouts.max_tokens
        reply = table.reply or Distribution.parse(f"lognormal:{max(1, most // 4)},{SPREAD}")
        return Episodes(
            turns=table.turns,
            prompt=table.prompt,
            reply=reply,
            added=table.added,
            wait=table.wait,
            start=table.start,
            lost=table.lost,
            most=most,
            measured=self.measured,
        )

    def run(self, *, steps: int = 0, hours: float = 0.0, seed: int | None = None) -> Outcome:
        """Run *steps* steps, or those of *hours*; without both, as many as the figures need.

        Raises:
            UsageError: nothing can be sampled.
        """
        began = time.process_time()
        steps = steps or (10**6 if hours else _enough(self.plan))
        plan = replace(self.plan, seed=self.plan.seed if seed is None else seed)
        outcome = run_simulated(lambda: _Run(self, plan, steps, 3600 * hours).loop())
        return replace(outcome, cpu_seconds=time.process_time() - began)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a simulation has measured.

    Attributes:
        steps: all of them; the first *warm* fill the queue and count in no figure.
        busy: share of the time in which an engine computed or took weights.
        batch: sequences of a step of decoding, on average.
        sampled: tokens of all engines.
        preempted, failed: turns that gave way, and engines that went down.
        cpu_seconds: of the simulation itself.
    """

    steps: tuple[StepRecord, ...]
    warm: int
    seconds: float
    busy: float
    batch: float
    sampled: int
    preempted: int
    failed: int
    cpu_seconds: float = 0.0

    @property
    def counted(self) -> tuple[StepRecord, ...]:
        """The steps that figures are of."""
        return self.steps[self.warm :]

    @property
    def step_seconds(self) -> float:
        """Seconds of a step, on average."""
        return math.fsum(step.seconds for step in self.counted) / len(self.counted)

    @property
    def tokens_per_second(self) -> float:
        """Sampled tokens that train, a second."""
        return sum(step.trained for step in self.counted) / (self.step_seconds * len(self.counted))

    @property
    def rollouts_per_second(self) -> float:
        """Rollouts of the batches, a second."""
        return sum(step.rollouts for step in self.counted) / (self.step_seconds * len(self.counted))

    @property
    def learner_idle(self) -> float:
        """Share of the time in which the learner updated nothing."""
        updating = math.fsum(step.updated for step in self.counted) / len(self.counted)
        return 1 - updating / self.step_seconds

    @property
    def staleness(self) -> dict[int, float]:
        """Share of the trained tokens by their age in weight versions."""
        ages: Counter[int] = sum((step.ages for step in self.counted), Counter())
        return {age: ages[age] / ages.total() for age in sorted(ages)}

    @property
    def lost(self) -> float:
        """Share of the rollouts of the batches that failed."""
        return sum(step.lost for step in self.counted) / sum(step.rollouts for step in self.counted)

    def figures(self) -> dict[str, Any]:
        """Return the figures as plain data."""
        seconds = sorted(step.seconds for step in self.counted)
        return {
            "steps": len(self.counted),
            "step_seconds": self.step_seconds,
            "step_seconds_median": seconds[len(seconds) // 2],
            "step_seconds_longest": seconds[-1],
            "waited": math.fsum(s.waited for s in self.counted) / len(seconds),
            "updated": math.fsum(s.updated for s in self.counted) / len(seconds),
            "synced": math.fsum(s.synced for s in self.counted) / len(seconds),
            "tokens_per_second": self.tokens_per_second,
            "rollouts_per_second": self.rollouts_per_second,
            "learner_idle": self.learner_idle,
            "engines_idle": max(0.0, 1 - self.busy),  # sums of seconds round
            "batch": self.batch,
            "staleness": self.staleness,
            "lost": self.lost,
            "dropped_groups": sum(s.dropped for s in self.counted),
            "preempted": self.preempted,
            "engines_failed": self.failed,
            "simulated_seconds": self.seconds,
            "cpu_seconds": self.cpu_seconds,
        }


def _enough(plan: RunPlan) -> int:
    """Return steps for figures that hardly change with more: several times those that fill the
    queue.
    """
    return max(20, 6 * (plan.schedule.max_staleness + 1))


class _Run:
    """The loop of one simulation."""

    def __init__(self, simulation: Simulation, plan: RunPlan, steps: int, until: float) -> None:
        self._simulation, self._plan = simulation, plan
        self._steps, self._until = steps, until

    async def loop(self) -> Outcome:
        """Run the steps. The loop is that of `quintain.run.loop`, without files."""
        loop, simulation = asyncio.get_running_loop(), self._simulation
        setup = simulation.setup
        self._cluster = Cluster(
            costs=simulation.costs,
            transfer=simulation.learner.transfer,
            failures=Failures(
                every=3600 * setup.failures.hours,
                restart=setup.failures.restart,
                seed=self._plan.seed,
            ),
        )
        warm = self._plan.schedule.max_staleness + 1
        records: list[StepRecord] = []
        before: tuple[float, ...] = ()
        async with self._engine() as engine, aclosing(self._collector(engine)) as collector:
            await engine.update(Published(version=0))
            for step in range(1, self._steps + warm + 1):
                if step == warm + 1:
                    began, before = loop.time(), self._measured()
                records.append(await self._step(step, collector, engine))
                if self._until and loop.time() >= self._until and len(records) > warm:
                    break
            after = self._measured()
        seconds = loop.time() - began
        busy, decoding, sequences, sampled = (
            new - old for new, old in zip(after, before, strict=True)
        )
        return Outcome(
            steps=tuple(records),
            warm=warm,
            seconds=loop.time(),
            busy=busy / (len(self._cluster.decoders) * seconds),
            batch=sequences / decoding if decoding else 0.0,
            sampled=int(sampled),
            preempted=sum(decoder.preempted for decoder in self._cluster.decoders),
            failed=self._cluster.failed,
        )

    async def _step(self, step: int, collector: Collector, engine: TokenEngine) -> StepRecord:
        loop = asyncio.get_running_loop()
        began = loop.time()
        collected = await collector.collect(step)
        complete = loop.time()
        accepted = [r for group in collected.accepted for r in group.valid]
        await asyncio.sleep(
            self._simulation.learner.update([r.metrics["length"] for r in accepted])
        )
        updated = loop.time()
        # `collector.metrics` counts what was abandoned since the last step.
        metrics = collector.metrics(collected)
        await engine.update(Published(version=step))
        collector.complete({group.index: (0, len(group.valid)) for group in collected.tried})
        ages: Counter[int] = Counter()
        for rollout in accepted:
            for version, tokens in spans_of(rollout):
                ages[step - 1 - version] += tokens
        tried = [r for group in collected.tried for r in group.rollouts]
        wasted = [r for group in collected.wasted for r in group.rollouts]
        stale = collected.rejected["stale"]
        return StepRecord(
            waited=complete - began,
            updated=updated - complete,
            synced=loop.time() - updated,
            rollouts=len(tried),
            tokens=sum(tokens for r in tried for _, tokens in spans_of(r)),
            trained=ages.total(),
            lost=sum(not r.valid for r in tried),
            dropped=stale + metrics.get("groups.abandoned", 0) + metrics.get("groups.retried", 0),
            tokens_lost=sum(tokens for r in wasted for _, tokens in spans_of(r)),
            ages=ages,
        )

    def _measured(self) -> tuple[float, ...]:
        """Return sums over the engines, up to now."""
        decoders = self._cluster.decoders
        for decoder in decoders:
            decoder.advance()
        names = ("busy", "decoding", "sequence_seconds", "tokens")
        return tuple(math.fsum(getattr(each, name) for each in decoders) for name in names)

    def _engine(self) -> TokenEngine:
        cluster, schedule = self._simulation.setup.cluster, self._plan.schedule
        replicas = cluster.replicas or min(cluster.engines, REPLICAS)
        if replicas > cluster.engines:
            raise UsageError(
                f"cluster.replicas is {replicas}, and there are {cluster.engines} engines"
            )
        whole, more = divmod(cluster.engines, replicas)
        args: list[dict[str, Any]] = [
            {"cluster": self._cluster, "engines": whole + (number < more)}
            for number in range(replicas)
        ]
        engine: TokenEngine
        if replicas == 1:
            engine = SimulatedEngine(**args[0])
        else:
            engine = EnginePool(
                engine=f"{SimulatedEngine.__module__}:{SimulatedEngine.__qualname__}",
                replicas=args,
                slots=self._simulation.costs.slots * whole,
                segment=cluster.segment,
                late=cluster.late,
            )
        engine.follow(
            in_flight_updates=schedule.in_flight_updates, recompute_kv=schedule.recompute_kv
        )
        return engine

    def _collector(self, engine: TokenEngine) -> Collector:
        tasks = replace(
            self._plan.tasks,
            curriculum=Mixture,
            labels=("simulated",),
            names=("simulated",),
            weights=(1.0,),
        )
        # Simulated turns have no text to stop at.
        rollouts = replace(self._plan.rollouts, sampling=Sampling())
        # More steps than it runs: a run that is about to end starts fewer groups.
        stop = replace(self._plan.stop, steps=10**9)
        plan = replace(self._plan, tasks=tasks, rollouts=rollouts, stop=stop)
        play = EpisodePlayer(self._simulation.episodes(), self._cluster, plan.seed)
        screen = Screen(quiet=True)
        return collector_for(plan, engine, [Simulated()], {}, Replay(), screen, play)
