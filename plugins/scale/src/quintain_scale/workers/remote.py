"""The engines of a run as an episode process sees them: calls go to the run, tokens come back."""

from __future__ import annotations

import asyncio
import copy
import pickle
import socket
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Self

from quintain import Engine, Message, Reply, Sampled, Sampling, TokenEngine, ToolSpec, Weights
from quintain.errors import UsageError

from .frames import ASK, DROP, LENGTH, FrameStream, packed_ids, unpacked

if TYPE_CHECKING:
    from quintain.models import ChatTokenizer

EPISODE: ContextVar[int] = ContextVar("quintain-episode-number", default=0)
"""The number of the episode that a task belongs to; 0 is none."""

TOKENIZER_FIELDS = ("name", "stop_ids", "stops", "vocab_size", "appends")


@dataclass(frozen=True, kw_only=True)
class EngineFacts:
    """What an episode process has to know of an engine.

    Attributes:
        context: longest sequence; ``None``: it returns text alone.
        tokenizer: a pickle, or the fields of one that stays in the run.
    """

    name: str
    context: int | None = None
    tokenizer: bytes | dict[str, Any] = b""


class EngineCalls:
    """The calls of engines that this process waits for."""

    def __init__(self, frames: FrameStream) -> None:
        self._frames = frames
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._numbers = count(1)
        self._loop = asyncio.get_running_loop()

    async def ask(self, address: tuple[Any, ...], method: str, *arguments: Any) -> Any:
        """Return what the *method* of an engine returns in the run, or raise what it raises."""
        number = next(self._numbers)
        answer = self._waiting[number] = self._loop.create_future()
        self._frames.send(ASK, EPISODE.get(), number, address, method, arguments)
        try:
            return await answer
        except asyncio.CancelledError:
            self._frames.send(DROP, number)
            raise
        finally:
            del self._waiting[number]

    def answered(self, number: int, value: Any, error: BaseException | None) -> None:
        """End a call, unless it was given up."""
        future = self._waiting.get(number)
        if future is None or future.done():
            return
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)


class RemoteEngine(Engine):
    """An engine of the run that returns text.

    Its address is the slot of the service, empty for the policy, the player, and the seed of the
    episode that it was drawn for.
    """

    def __init__(self, calls: EngineCalls, slot: str, facts: EngineFacts) -> None:
        self.name = facts.name
        self._calls, self._address = calls, (slot, "", None)

    def _at(self, **changes: Any) -> Self:
        slot, player, seed = self._address
        other = copy.copy(self)
        other._address = (slot, changes.get("player", player), changes.get("seed", seed))
        return other

    def for_player(self, name: str) -> Self:
        return self._at(player=name)

    def for_episode(self, seed: int) -> Self:
        return self._at(seed=seed)

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling
    ) -> Reply:
        reply: Reply = await self._calls.ask(
            self._address, "reply", tuple(messages), tuple(tools), sampling
        )
        return reply


class RemoteTokenEngine(RemoteEngine, TokenEngine):
    """An engine of the run that returns exact tokens."""

    def __init__(
        self, calls: EngineCalls, slot: str, facts: EngineFacts, tokenizer: ChatTokenizer
    ) -> None:
        super().__init__(calls, slot, facts)
        self.tokenizer, self.context = tokenizer, facts.context or 0

    async def sample(self, ids: Sequence[int], sampling: Sampling) -> Sampled:
        columns = await self._calls.ask(self._address, "sample", packed_ids(ids), sampling)
        sampled = unpacked(columns)
        self.version = max(self.version, *sampled.versions, 0)
        return sampled

    async def score(
        self, ids: Sequence[int], start: int, temperature: float = 1.0
    ) -> Sequence[float]:
        self.check_score(ids, start)
        scores: Sequence[float] = await self._calls.ask(
            self._address, "score", packed_ids(ids), start, temperature
        )
        return scores

    async def update(self, weights: Weights) -> int:
        raise UsageError("an episode cannot change the weights of the engine")


class RemoteTokenizer:
    """The tokenizer of the run, for a process whose Python has not its packages.

    Each call waits for the run, and the other episodes of the process with it.
    """

    def __init__(self, channel: int, slot: str, fields: dict[str, Any]) -> None:
        self._socket, self._slot = socket.socket(fileno=channel), slot
        self._socket.setblocking(True)
        self.__dict__.update(fields)

    def renderer(self) -> Callable[..., Any]:
        """Return what renders a conversation anew each time."""
        return lambda messages, tools, known: self.render(messages, tools)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)

        def ask(*arguments: Any, **named: Any) -> Any:
            payload = pickle.dumps((self._slot, name, arguments, named))
            self._socket.sendall(LENGTH.pack(len(payload)) + payload)
            value, error = pickle.loads(self._exactly(LENGTH.unpack(self._exactly(4))[0]))
            if error is not None:
                raise error
            return value

        return ask

    def _exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            chunk = self._socket.recv(count - len(data))
            if not chunk:
                raise SystemExit("the run is gone")
            data += chunk
        return bytes(data)
