"""Replay of the episodes of the current step, for counterfactual advantages.

A run provides them to the pieces of its algorithm as the service ``replay``::

    @advantage
    async def greedy(step: Step, *, engine: TokenEngine = need("policy"), replay: Replay = need()) -> list[float]:
        ...
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import UsageError
from ..interfaces.engine import Engine
from ..interfaces.environment import Environment
from ..interfaces.rollout_request import RolloutRequest
from ..rollouts.runner import RolloutContext, run_groups
from ..types.rollout import AnyGroup, AnyRollout, trained


@dataclass(kw_only=True)
class Replay:
    """Runs samples of the step's batch once more, for advantages that compare with what might have
    been.
    """

    _environments: Mapping[str, Environment[Any, Any]] = field(default_factory=dict)
    _groups: Sequence[AnyGroup] = ()
    _rollout_context: RolloutContext | None = None

    def remember(
        self,
        groups: Sequence[AnyGroup],
        context: RolloutContext,
        environments: Mapping[str, Environment[Any, Any]],
    ) -> None:
        """Store the groups of a batch, their context, and environments by the name that rollouts
        carry.
        """
        self._groups = tuple(groups)
        self._rollout_context = context
        self._environments = environments

    @property
    def rollouts(self) -> list[AnyRollout]:
        """The rollout of each sample of the batch."""
        return [rollout for rollout, _, _ in trained(self._groups)]

    async def __call__(self, selections: Sequence[tuple[int, Engine]]) -> list[AnyRollout]:
        """Run samples of the batch again, each with an engine, and score them; in order.

        The episode has the seed of the first time, so its environment draws the same; the engine
        decides what else differs. A rollout that failed through our fault is not `valid`; it was
        retried before.

        Raises:
            UsageError: the episode had several players, or its reward compares the rollouts of a
                group.
        """
        if self._rollout_context is None:
            raise UsageError("there is no batch yet whose episodes could be played again")
        played = self.rollouts
        requests = [self._request(played[sample], engine) for sample, engine in selections]
        groups = await run_groups(requests, self._rollout_context)
        return [rollout for group in groups for rollout in group.rollouts]

    def _request(self, rollout: AnyRollout, engine: Engine) -> RolloutRequest:
        environment = self._environments.get(rollout.environment)
        refusal = f"an episode of {rollout.environment!r} cannot be played again"
        if environment is None:
            raise UsageError(f"{refusal}: the run has no environment of this name")
        if set(rollout.transcripts) != {""}:
            raise UsageError(
                f"{refusal}: it has the players {sorted(rollout.transcripts)}; expected the "
                f"policy's own alone"
            )
        rewards = (environment.reward, environment.shaping)
        grouped = [reward.name for reward in rewards if reward is not None and reward.group]
        if grouped:
            raise UsageError(
                f"{refusal}: {grouped[0]} compares the samples of a group, and a replay has no "
                f"group"
            )
        return RolloutRequest(
            environment=environment,
            task=rollout.task,
            group_size=1,
            name=rollout.environment,
            index=rollout.group,
            engine=engine,
            seed=rollout.seed,
        )
