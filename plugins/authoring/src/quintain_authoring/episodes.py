"""Episodes of a test: played once without a model, or scored again."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from quintain import Engine, Environment, Rollout, Sampling, Task
from quintain.interfaces import RewardContext
from quintain.rollouts import RolloutContext, RolloutRequest, run_groups, score_group, score_rollout
from quintain.types import AnyGroup

from .scripted import Script, ScriptedEngine

T = TypeVar("T", bound=Task)

__all__ = ["rescore", "run_episode"]


def run_episode(
    environment: Environment[Any, Any],
    task: T,
    engine: Engine | Script = "",
    *,
    seed: int = 0,
    sampling: Sampling | None = None,
    services: Mapping[str, Any] | None = None,
) -> Rollout[T, Any]:
    """Run one episode, tried once, and score it; a failure is the termination of the rollout that
    comes back.

    Args:
        engine: an engine, or the script of one (`ScriptedEngine`): a text for all turns, a list, a
            function.
        seed: of the run.
        services: by slot, started, for the rewards.

    Raises:
        RuntimeError: called inside a running event loop; there await
            `quintain.rollouts.run_groups`.
    """
    policy = engine if isinstance(engine, Engine) else ScriptedEngine(replies=engine)
    context = RolloutContext(
        engine=policy,
        sampling=sampling or Sampling(),
        services=services or {},
        run_seed=seed,
        concurrency=1,
        retries=0,
    )
    (group,) = asyncio.run(
        run_groups([RolloutRequest(environment=environment, task=task, group_size=1)], context)
    )
    return group.rollouts[0]


async def rescore(
    environment: Environment[Any, Any], group: AnyGroup, services: Mapping[str, Any], step: int = 0
) -> AnyGroup:
    """Score the stored rollouts of *group* again by all rewards of *environment*."""
    context = RewardContext(step=step, services=services)
    unscored = [r.replace(outcome=None, shaping=None, yardstick=None) for r in group.rollouts]
    rollouts = tuple([await score_rollout(environment, r, context) for r in unscored])
    return await score_group(environment, replace(group, rollouts=rollouts), context)
