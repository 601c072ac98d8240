"""Where the episodes of a run are played: in its own process, or by a service that ``[workers]``
names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ..interfaces.cluster import ProcessCluster
from ..interfaces.environment import Environment
from ..recipe.plan import RunPlan
from ..recipe.resolve import EPISODES_SLOT
from ..rollouts.runner import Play


class EpisodeWorkers(Protocol):
    """A service that plays episodes in other processes."""

    play: Play

    async def open(
        self,
        plan: RunPlan,
        environments: Sequence[Environment[Any, Any]],
        services: Mapping[str, Any],
        cluster: ProcessCluster | None,
    ) -> Sequence[str]:
        """Start what plays *environments*: those of the plan, then those of its evaluations; on
        *cluster*, if there is one.

        Returns:
            Notes for the user, such as which environments stay in the process of the run.

        Raises:
            InfrastructureError, UsageError: a process or an environment does not start there.
        """
        ...


async def played_elsewhere(
    plan: RunPlan,
    environments: Sequence[Environment[Any, Any]],
    services: Mapping[str, Any],
    cluster: ProcessCluster | None = None,
) -> tuple[Play | None, Sequence[str]]:
    """Return what plays the episodes of *environments*, ``None`` for this process, and notes; raises
    as `EpisodeWorkers.open`.
    """
    workers: EpisodeWorkers | None = services.get(EPISODES_SLOT)
    return (
        (None, ())
        if workers is None
        else (workers.play, await workers.open(plan, environments, services, cluster))
    )
