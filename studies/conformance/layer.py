"""The protocol of a capture layer, and Quintain's own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, ClassVar, Protocol

from quintain import Environment, Limits, Rollout, Sampling, Task, need, reward
from quintain.evaluation import evaluate
from quintain.types import TrainingSequence, trained
from quintain_gateway import Gateway
from quintain_gateway.engine_policy import EnginePolicy

from .case import FEATURES, CaptureCase, Feature
from .client import Exchange
from .comparison import COLUMNS, Column
from .dialects import DIALECTS, DialectName
from .truth import TruthEngine

__all__ = ["Capture", "CaptureLayer", "GatewayLayer", "ServeLayer"]

Agent = Callable[[str, str], Awaitable[None]]
"""Plays the agent of a case against a base URL, which ends with ``/v1``, with a key."""


@dataclass(frozen=True, kw_only=True)
class Capture:
    """What a layer would train after one run of an agent.

    Attributes:
        read: of a layer that plays the agents itself, what they asked and read. An empty ``stop`` of
            a reply is not compared.
        sequences: every sequence for the learner. Empty ``logps`` or ``versions`` say that the layer
            keeps none; it leaves the column out of `CaptureLayer.columns` then.
    """

    sequences: Sequence[TrainingSequence]
    read: Sequence[Exchange] = ()


class CaptureLayer(Protocol):
    """A capture layer: what stands between agents and an engine and keeps what trains.

    Attributes:
        name, version: for the table.
        dialects: that agents may speak to it.
        features: of `FEATURES` that it offers.
        columns: of `COLUMNS` that can be compared: what it keeps, and what its agents read.
        plays: names of cases whose agent it plays itself, because it has no address that agents
            could ask; empty if it has one.
    """

    name: str
    version: str
    plays: frozenset[str]
    dialects: frozenset[DialectName]
    features: frozenset[Feature]
    columns: frozenset[Column]

    async def capture(self, truth: TruthEngine, agent: Agent, case: CaptureCase) -> Capture:
        """Put itself in front of *truth*, let *agent* run to its end, and return what trains.

        *agent* raises nothing. A layer that reaches its engine over HTTP serves *truth* with
        `EngineServer`.

        Args:
            case: what is played; the layer samples at its ``temperature``.
        """


class _Ours:
    """What Quintain's own layers offer."""

    version = version("quintain-gateway")
    plays: frozenset[str] = frozenset()
    dialects: frozenset[DialectName] = frozenset(DIALECTS)
    features: frozenset[Feature] = frozenset(FEATURES)
    columns: frozenset[Column] = frozenset(COLUMNS)


@reward
def _nothing(rollout: Rollout[Any, Any]) -> float:
    return 0.0


class _Played(Environment[Task, str]):
    """An episode in which an agent talks to its endpoint."""

    reward = _nothing
    limits: ClassVar[Limits] = Limits(turns=None, tokens=None, seconds=60)
    gateway: Gateway = need()
    agent: Any = None

    def tasks(self, split: str) -> Iterator[Task]:
        yield Task(prompt="conformance")

    async def rollout(self, task: Task, agent: Any) -> str:
        async with self.gateway.endpoint(agent) as endpoint:
            await self.agent(endpoint.base_url, endpoint.api_key)
        return ""


class GatewayLayer(_Ours):
    """The gateway in an episode, and the sequences that the learner gets of it."""

    name = "gateway"

    async def capture(self, truth: TruthEngine, agent: Agent, case: CaptureCase) -> Capture:
        async with Gateway() as gateway:
            limits = Limits(turns=None, tokens=case.budget, seconds=60)
            environment = _Played(gateway=gateway, agent=agent).overridden(limits=limits)
            done = await evaluate(
                environment,
                truth,
                tasks=1,
                sampling=Sampling(temperature=case.temperature),
                retries=0,
            )
        return Capture(sequences=[s for _, _, branches in trained(done.groups) for s in branches])


class ServeLayer(_Ours):
    """The conversations of `quintain serve`."""

    name = "serve"
    features: frozenset[Feature] = frozenset(FEATURES) - {"budget"}

    async def capture(self, truth: TruthEngine, agent: Agent, case: CaptureCase) -> Capture:
        policy = EnginePolicy(truth, Sampling(temperature=case.temperature))
        async with Gateway() as gateway, gateway.serve(policy) as endpoint:
            await agent(endpoint.base_url, endpoint.api_key)
        transcripts = policy.transcripts().values()
        return Capture(sequences=[s for t in transcripts for s in t.sequences()])
