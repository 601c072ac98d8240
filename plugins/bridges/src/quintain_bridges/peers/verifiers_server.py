"""The environment `verifiers_server`: episodes that the environment server of verifiers plays."""

from __future__ import annotations

from typing import ClassVar

from quintain import Agent, Limits, need
from quintain_gateway import Gateway

from .environment import PeerScore, PeerTask, PeerTasks


class VerifiersServer(PeerTasks):
    """Whole episodes on the environment server of verifiers 0.4: its harness, tools and runtime play,
    and the policy answers what they ask of its endpoint.

    The service `peer` starts a server, or connects to the one at the ``address`` of its arguments.
    The time between two turns is the server's, so that none of it counts against the policy.

    Attributes:
        evaluation: list all tasks as ``test``. Off, eight of ten are ``train``.
    """

    limits = Limits(turns=50)
    kinds: ClassVar[tuple[str, ...]] = ("verifiers_server",)

    evaluation: bool = False
    gateway: Gateway = need()

    async def rollout(self, task: PeerTask, agent: Agent) -> PeerScore:
        async with self.gateway.endpoint(agent, acts=False) as endpoint:
            where = {"url": endpoint.base_url, "key": endpoint.api_key}
            async with self.peer.episode(task.number, where) as episode:
                return PeerScore(**await episode.score())
