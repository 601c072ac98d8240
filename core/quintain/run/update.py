"""The update of the policy, and the checks of its sampler around it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from ..interfaces.engine import TokenEngine
from ..interfaces.learner import AnyLearner
from ..models.module_weights import live_weights
from ..models.sampler_mismatch import SamplerMismatch
from ..process.threads import half_the_threads
from ..recipe.plan import RunPlan
from ..recipe.room import memory_advice
from ..store.rollout_table import Advantages, advantages_of
from ..types.rollout import AnyGroup
from .collect import Collector
from .sampler_check import check_delivery, explained, rescored
from .saving import Saving
from .weight_sync import WeightSync

A = TypeVar("A")


@dataclass(kw_only=True)
class PolicyUpdate:
    """Runs the learner, in a thread of its own where episodes are sampled meanwhile.

    Attributes:
        advantages: of the tokens of the last update, for the table of rollouts.
    """

    plan: RunPlan
    learner: AnyLearner
    engine: TokenEngine
    collector: Collector
    weight_sync: WeightSync
    saving: Saving
    advantages: Advantages = field(default_factory=dict)
    _thread: ThreadPoolExecutor = field(
        default_factory=partial(ThreadPoolExecutor, 1, "quintain-learner"), init=False
    )

    async def prepare(self, batch: Any) -> Any:
        """Return *batch* with what the advantage and the loss need of frozen policies."""
        return await self._in_thread(partial(self.learner.prepare, batch))

    async def step(
        self, scored: Any, advantages: Any, groups: Sequence[AnyGroup]
    ) -> dict[str, float]:
        """Update the policy; stop the run if engine and learner disagree about weights or
        log-probs.

        Raises:
            UndeliveredWeights: the engine has other weights than it was given.
            SamplerMismatch: log-probs of the same tokens differ by more than the limit.
        """
        temperature = self.collector.rollout_context.sampling.temperature
        limit = self.plan.learner.max_sample_mismatch
        if limit is not None:
            live = live_weights(self.learner)
            await check_delivery(self.engine, self.weight_sync.published(live), live)
        self.advantages = advantages_of(groups, advantages)
        # An update waits for the files of the weights before it, which a rank that is lost in it
        # would take along.
        complete = partial(self.saving.checkpoints.complete, wait=True)
        self.saving.tell(await self._in_thread(complete))
        try:
            metrics: dict[str, float] = await self._in_thread(
                partial(self.learner.step, scored, advantages=advantages)
            )
        except SamplerMismatch as error:
            raise await explained(error, self.learner, self.engine, temperature) from None
        # A learner that compares nothing itself has no such metric. An engine scores with the whole
        # vocabulary, so its scores cannot be compared with those of pruned sampling.
        compared = "mismatch.sample" in metrics
        if limit is not None and not compared and not self.plan.rollouts.sampling.prune:
            exact = self.plan.learner.exact_sampler
            metrics |= await rescored(self.engine, groups, temperature, limit, exact=exact)
        return metrics

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False)

    async def _in_thread(self, work: Callable[[], A]) -> A:
        with memory_advice("updating", self.plan, getattr(self.engine, "slots", 0)):
            if not self.collector.overlaps:
                return work()
            # Episodes that this process samples meanwhile need the other half of the processors.
            with half_the_threads() if self.collector.samples_here else nullcontext():
                in_context = partial(copy_context().run, work)  # with the span around it
                return await asyncio.get_running_loop().run_in_executor(self._thread, in_context)
