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
from ..rollouts.runner import RolloutContext, RolloutRequest, run_groups
from ..types.rollout import AnyGroup, AnyRollout, trained


@dataclass(kw_only=True)
class Replay:
    """Runs samples of the step's batch once more, for advantages that compare with what might have been.

    Attributes:
        environments: by the name that rollouts carry; ``None`` where two of a recipe share it.
    """

    environments: Mapping[str, Environment[Any, Any] | None] = field(default_factory=dict)
    _groups: Sequence[AnyGroup] = ()
    _rollout_context: RolloutContext | None = None

    def take(self, groups: Sequence[AnyGroup], context: RolloutContext) -> None:
        """Store the groups of a batch, and their context."""
        self._groups, self._rollout_context = tuple(groups), context

    async def __call__(self, selections: Sequence[tuple[int, Engine]]) -> list[AnyRollout]:
        """Run samples of the batch again, each with an engine, and score them; in order.

        The episode has the seed of the first time, so its environment draws the same; the engine decides what else
        differs. A rollout that failed through our fault is not `valid`; it was retried before.

        Raises:
            UsageError: the episode had several players, or its reward compares the rollouts of a group.
        """
        if self._rollout_context is None:
            raise UsageError("there is no batch yet whose episodes could be played again")
        played = [rollout for rollout, _, _ in trained(self._groups)]  # one per sample
        requests = [self._request(played[sample], engine) for sample, engine in selections]
        groups = await run_groups(requests, self._rollout_context)
        return [rollout for group in groups for rollout in group.rollouts]

    def _request(self, rollout: AnyRollout, engine: Engine) -> RolloutRequest:
        environment = self.environments.get(rollout.environment)
        who = f"an episode of {rollout.environment!r} cannot be played again"
        if environment is None:
            raise UsageError(f"{who}: the recipe has several environments of this name")
        if set(rollout.transcripts) != {""}:
            raise UsageError(
                f"{who}: it has the players {sorted(rollout.transcripts)}; expected the policy's own alone"
            )
        if grouped := [r.name for r in (environment.reward, environment.shaping) if r is not None and r.group]:
            raise UsageError(f"{who}: {grouped[0]} compares the samples of a group, and a replay has no group")
        return RolloutRequest(
            environment=environment,
            task=rollout.task,
            group_size=1,
            name=rollout.environment,
            index=rollout.group,
            engine=engine,
            seed=rollout.seed,
        )


def named(
    names: Sequence[str], environments: Sequence[Environment[Any, Any]]
) -> dict[str, Environment[Any, Any] | None]:
    """*environments* by name, for `Replay.environments`; ``None`` where two share a name."""
    by_name: dict[str, Environment[Any, Any] | None] = {}
    for name, environment in zip(names, environments, strict=True):
        by_name[name] = None if name in by_name else environment
    return by_name
