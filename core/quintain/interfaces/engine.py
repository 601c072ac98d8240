"""Engines: what answers. `Engine` is messages in, text out; `TokenEngine` adds exact tokens, and only it can train."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from ..errors import UsageError
from ..types.rollout import Rollout
from ..types.sampling import Sampling
from ..types.task import Message, Task, ToolCall
from ..types.transcript import Finish, Sampled
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


class Weights(Protocol):
    """A set of weights to load: the learner's live module, or a folder in Hugging Face format."""

    version: int

    def tensors(self) -> Mapping[str, Any]:
        """Parameter name (as in the Hugging Face checkpoint) to tensor."""


class Engine(Service):
    """Messages in, text out: enough for evaluation."""

    name: str = "engine"

    @abstractmethod
    async def reply(self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Reply:
        """Answer a conversation.

        Raises:
            InfrastructureError: the engine, not the policy, failed.
        """

    def register(self) -> AbstractContextManager[None]:
        """Register a live episode. A reproducible engine steps only when every live episode waits on it."""
        return nullcontext()

    def for_task(self, task: Task) -> Engine:
        """The engine that plays *task*: this one, unless it answers each task in its own way, as controls do."""
        return self

    def for_player(self, name: str) -> Engine:
        """The engine of player *name* of an episode (``""`` is the policy's first): this one, unless players differ."""
        return self

    @property
    def concurrency(self) -> int | None:
        """Episodes worth running at once; ``None`` leaves it to the recipe."""
        return None


class TokenEngine(Engine):
    """Token ids in, token ids and log-probs out; the only kind that can train. The chat layer drives it.

    One that can decode the learner's own module also has the class method `SharesModule.sharing`; the weights of any
    other arrive through `update`.

    Attributes:
        tokenizer: text to ids and back, and the chat template.
        context: longest sequence it takes, prompt and reply together.
        version: of the weights it samples from now.
        stalls: how often it went on without an episode that it should have waited for.
    """

    tokenizer: ChatTokenizer
    context: int
    version: int = 0
    stalls: int = 0

    @abstractmethod
    async def sample(self, ids: Sequence[int], sampling: Sampling) -> Sampled:
        """Continue *ids*. Cancelling the awaiting task frees the slot.

        Raises:
            LimitReached: *ids* leave no room in the context.
            InfrastructureError: the engine failed.
        """

    @abstractmethod
    async def score(self, ids: Sequence[int], start: int, temperature: float = 1.0) -> Sequence[float]:
        """Log-probs of ``ids[start:]``, each given all before it; *start* is at least 1."""

    @abstractmethod
    async def update(self, weights: Weights) -> int:
        """Load new weights; their version, which tokens sampled from now on carry."""

    async def reply(self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Reply:
        """Raise a `UsageError`: the chat layer renders conversations and keeps the exact tokens of their turns."""
        raise UsageError(f"engine {self.name!r} samples tokens: take turns through an agent, or call sample()")


class Replay(Protocol):
    """Runs samples of the step's batch once more, for advantages that compare with what might have been."""

    async def __call__(self, wanted: Sequence[tuple[int, Engine]]) -> list[Rollout[Any, Any]]:
        """Run samples of the batch again, each with an engine, and score them; in order.

        The episode has the seed of the first time, so its environment draws the same; the engine decides what else
        differs. A rollout that failed through our fault is not `valid`; it was retried before.

        Raises:
            UsageError: the episode had several players, or its reward compares the rollouts of a group.
        """


@runtime_checkable
class SharesModule(Protocol):
    """The class of a `TokenEngine` that can decode the module that the learner trains.

    The weights of any other engine arrive through `TokenEngine.update` alone.
    """

    @classmethod
    def sharing(cls, module: Any, tokenizer: ChatTokenizer, *, dtype: str | None = None) -> TokenEngine:
        """An engine that decodes the learner's live *module*; further keywords are ``engine.args`` of a recipe. Where
        *dtype* is not the module's, the engine keeps a copy that `update` refreshes.

        Raises:
            UsageError: a setting is out of range.
        """


@runtime_checkable
class SuggestsSlots(Protocol):
    """The class of a `SharesModule` engine that knows how many sequences of a batch it best decodes at once."""

    @classmethod
    def slots_for(cls, module: Any, *, samples: int, tokens: int) -> int:
        """The ``slots`` of `sharing` for a step of *samples* sequences of at most *tokens* tokens, prompt included."""
