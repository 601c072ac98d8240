"""Engines: what answers. `Engine` is messages in, text out; `TokenEngine` adds exact tokens, and
only it can train.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..errors import LimitReached, UsageError
from ..types.sampling import Sampling
from ..types.task import Message, Task, ToolCall
from ..types.transcript import Finish, Sampled
from .algorithm import Algorithm
from .service import Service
from .tokenizer import ChatTokenizer
from .tools import ToolSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """What an engine answered, as text."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    finish: Finish = "stop"
    usage: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Pressure:
    """How busy an engine is now.

    Attributes:
        running: turns that it decodes.
        waiting: turns that it has, but no place for yet.
        cache_used: share of the memory for keys and values that running turns take, 0 to 1.
        preemptions: turns whose keys and values it has dropped for those of others, since it
            started. They are computed again.
    """

    running: int
    waiting: int = 0
    cache_used: float = 0.0
    preemptions: int = 0


class Weights(Protocol):
    """A set of weights to load: the learner's live module, or a folder in Hugging Face format."""

    version: int

    def tensors(self) -> Mapping[str, Any]:
        """Return the tensors by the name of the parameter in a Hugging Face checkpoint."""


def changes_of(weights: Weights) -> tuple[int, ...]:
    """Return how often each live parameter behind *weights* was changed. Equal counts mean equal
    parameters. Empty for copies, which do not change.
    """
    module = getattr(weights, "module", None)
    return () if module is None else tuple(p._version for p in module.parameters())


class Engine(Service):
    """Messages in, text out: enough for evaluation."""

    name: str = "engine"

    @abstractmethod
    async def reply(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling
    ) -> Reply:
        """Answer a conversation.

        Raises:
            InfrastructureError: the engine, not the policy, failed.
        """

    def register(self) -> AbstractContextManager[None]:
        """Register a live episode. A reproducible engine steps only when every live episode waits
        on it.
        """
        return nullcontext()

    def for_task(self, task: Task) -> Engine:
        """Return the engine that plays *task*: this one, unless it answers each task in its own
        way, as controls do.
        """
        return self

    def for_player(self, name: str) -> Engine:
        """Return the engine of player *name* of an episode (``""`` is the policy's first): this
        one, unless players differ.
        """
        return self

    def for_episode(self, seed: int) -> Engine:
        """Return the engine that plays in the episode of *seed*: this one, unless it draws a player
        for each episode.
        """
        return self

    @property
    def concurrency(self) -> int | None:
        """Episodes worth running at once; ``None`` leaves it to the recipe."""
        return None


class TokenEngine(Engine):
    """Token ids in, token ids and log-probs out; the only kind that can train. The chat layer
    drives it.

    Implement `sample`, `score`, `update` and, for what has to start, ``__aenter__``. One that can
    decode the learner's own module also has the class method `sharing` of
    `quintain.interfaces.shared_module.SharesModule`; the weights of any other arrive through
    `update`. One that never trains raises a `UsageError` there.

    A kind that names a parameter ``cluster`` gets the `ProcessCluster` of the recipe's ``[cluster]``,
    or ``None``, and starts its servers there.

    Attributes:
        tokenizer: text to ids and back, and the chat template.
        context: longest sequence it takes, prompt and reply together.
        version: of the weights it samples from now.
        stalls: how often it went on without an episode that it should have waited for.
        in_flight_updates: `update` takes effect within sequences; else it waits for their end.
        recompute_kv: such an update computes the keys and values of those sequences again.
        awaits_weights: ``__aenter__`` loads none of the learner's weights, for an `update` comes
            before the first turn. Set by what starts an engine in the middle of a run, when the
            learner may be changing them.
    """

    tokenizer: ChatTokenizer
    context: int
    version: int = 0
    stalls: int = 0
    in_flight_updates: bool = True
    recompute_kv: bool = True
    awaits_weights: bool = False

    def follow(self, *, in_flight_updates: bool, recompute_kv: bool) -> None:
        """Choose how `update` takes effect. A run calls it once, before the engine starts."""
        self.in_flight_updates, self.recompute_kv = in_flight_updates, recompute_kv

    @classmethod
    def check_settings(cls, settings: Mapping[str, Any]) -> None:
        """Raise a `UsageError` if *settings* do not fit each other. Their names and types are
        checked already. A recipe is checked so before anything is loaded.
        """

    @classmethod
    def places(cls, settings: Mapping[str, Any]) -> bool | Sequence[int]:
        """Return whether an engine with these *settings* starts processes on a cluster, if its kind
        names a parameter ``cluster``; or how many GPUs each of them needs.

        A kind may have a class method ``on_gpus(settings, gpus, turns=...)``, too: the settings with
        which it starts processes on so many GPUs, which it frees while the learner computes if it
        takes *turns* with it.
        """
        return True

    @classmethod
    def check_algorithm(
        cls,
        algorithm: Algorithm,
        settings: Mapping[str, Any],
        *,
        group_size: int,
        concurrency: int | None,
    ) -> str | None:
        """Raise a `UsageError` if *algorithm* cannot train on what the engine samples with these
        *settings*; return a remark on one that can and is easily misread. Engines that draw each
        answer from the policy by itself, as most do, fit every algorithm.

        Args:
            group_size: rollouts of a task.
            concurrency: episodes at once; ``None`` is the engine's choice.
        """
        return None

    @abstractmethod
    async def sample(self, ids: Sequence[int], sampling: Sampling) -> Sampled:
        """Continue *ids*. Cancelling the awaiting task frees the slot.

        Raises:
            LimitReached: *ids* leave no room in the context.
            InfrastructureError: the engine failed.
        """

    @abstractmethod
    async def score(
        self, ids: Sequence[int], start: int, temperature: float = 1.0
    ) -> Sequence[float]:
        """Return the log-probs of ``ids[start:]``, each given all before it; *start* is at least 1.

        Raises:
            ValueError: *start* is out of range.
            LimitReached: *ids* are longer than the context.
        """

    def check_score(self, ids: Sequence[int], start: int) -> None:
        """Raise what `score` raises for *ids* and *start* that it does not take."""
        if not 1 <= start <= len(ids):
            raise ValueError(f"start is {start}; expected 1 to {len(ids)}")
        if len(ids) > self.context:
            raise LimitReached(
                "context", f"{len(ids)} tokens to score; the context is {self.context}"
            )

    @abstractmethod
    async def update(self, weights: Weights) -> int:
        """Load new weights and return their version. Tokens sampled from now on carry it."""

    async def outdated(self, weights: Weights) -> str:
        """Return the name of the first tensor of *weights* that differs from the engine's, bit for
        bit in the engine's type; empty if none differs, or if the engine cannot tell.
        """
        return ""

    async def probe(self) -> None:
        """Raise an `InfrastructureError` if the engine can sample no more, as when its process has
        ended. A run calls this now and then, between turns. An engine that cannot tell does nothing.
        """

    async def pressure(self) -> Pressure | None:
        """Return how busy the engine is; ``None`` if it cannot tell.

        Raises:
            InfrastructureError: the engine does not answer.
        """
        return None

    def resize(self, replicas: int) -> None:
        """Sample with this many *replicas* from now on; those that start take turns later.

        Raises:
            UsageError: the engine has no replicas, or not so many.
        """
        raise UsageError(f"engine {self.name!r} has no replicas; the engine pool has")

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling
    ) -> Reply:
        """Raise a `UsageError`: the chat layer renders conversations and keeps the exact tokens of
        their turns.
        """
        raise UsageError(
            f"engine {self.name!r} samples tokens: take turns through an agent, or call sample()"
        )
