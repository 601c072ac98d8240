"""An engine that says what it is told, token by token: environments and rewards are tested without
a model.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, get_args

from quintain import (
    InfrastructureError,
    LimitReached,
    Message,
    Reply,
    Sampled,
    Sampling,
    TokenEngine,
    Weights,
)
from quintain.errors import UsageError
from quintain.types import Finish, Role

from .byte_tokenizer import ByteTokenizer, render_calls

__all__ = ["Script", "ScriptedEngine", "conversation", "fake_logp", "written"]

Script = str | Sequence[str | Reply] | Callable[..., str | Reply]
"""One reply for all turns, one per turn (the last repeats), or a function ``(messages)`` or
``(messages, rng)``.
"""

_TURN = re.compile(
    rf"<\|im_start\|>({'|'.join(get_args(Role))})\n(.*?)(?:<\|im_end\|>\n|\Z)", re.DOTALL
)


class ScriptedEngine(TokenEngine):
    """Replies from a script, over a byte tokenizer; they depend on the conversation and the seed of
    the turn alone.

    The log-probs are made up, and stated: `fake_logp`. They differ from token to token, so that a
    misaligned record is seen.

    Args:
        replies: what the policy says: one reply for all turns, one per turn of an episode (the last
            one repeats), or a function of the conversation, and of a seeded `random.Random` if it
            takes two arguments. A `Reply` may carry tool calls, reasoning and ``finish``:
            ``"length"`` ends a turn without a stop token.
        players: other scripts for single players, by name.
        context: longest sequence, tokens.
        fail_on: the calls, counted from 1 over the engine's life, that fail with
            `InfrastructureError`.
        delay: seconds that each call takes.
    """

    name = "scripted"

    def __init__(
        self,
        *,
        replies: Script = "",
        players: Mapping[str, Script] | None = None,
        context: int = 65536,
        fail_on: Sequence[int] = (),
        delay: float = 0.0,
    ) -> None:
        self.tokenizer = ByteTokenizer()
        self.context = context
        self._script = _as_function(replies)
        self._players = {player: _as_function(script) for player, script in (players or {}).items()}
        self._fail_on = frozenset(fail_on)
        self._delay = delay
        self._calls = itertools.count(1)

    def for_player(self, name: str) -> ScriptedEngine:
        """Return the same engine with the script of that player."""
        if name not in self._players:
            return self
        other = copy.copy(self)
        other._script = self._players[name]
        return other

    async def sample(self, ids: Sequence[int], sampling: Sampling) -> Sampled:
        number = next(self._calls)
        room = self.context - len(ids)
        if room <= 0:
            raise LimitReached(
                "context", f"{len(ids)} tokens leave no room in a context of {self.context}"
            )
        if self._delay:
            await asyncio.sleep(self._delay)
        if number in self._fail_on:
            raise InfrastructureError(f"scripted failure of call {number}")
        reply = self._script(conversation(self.tokenizer.decode(ids)), Random(sampling.seed))
        if not isinstance(reply, Reply):
            reply = Reply(text=reply)
        return self._sampled(reply, sampling, min(room, sampling.max_tokens or room))

    async def score(
        self, ids: Sequence[int], start: int, temperature: float = 1.0
    ) -> Sequence[float]:
        return [fake_logp(i) for i in ids[start:]]

    async def update(self, weights: Weights) -> int:
        self.version = weights.version
        return self.version

    def _sampled(self, reply: Reply, sampling: Sampling, room: int) -> Sampled:
        ids = self.tokenizer.encode(written(reply))
        stop: int | str | None = None
        if reply.finish == "stop":
            stop = self.tokenizer.stop_ids[0]
            ids.append(stop)
        ids, finish, stop = _cut(ids, reply.finish, stop, sampling)
        if len(ids) > room:
            ids, finish, stop = ids[:room], "length", None
        logps = tuple(fake_logp(i) for i in ids)
        versions = (self.version,) * len(ids)
        return Sampled(ids=tuple(ids), logps=logps, versions=versions, finish=finish, stop=stop)


def fake_logp(token: int) -> float:
    """Return the log-prob that the scripted engine claims for a token: ``-(1 + token % 7) / 8``, at
    every temperature.
    """
    return -(1 + token % 7) / 8


def conversation(text: str) -> list[Message]:
    """Return the messages that a conversation in the byte tokenizer's template was rendered from,
    tool calls left as text.
    """
    turns = _TURN.findall(text.removesuffix("<|im_start|>assistant\n"))
    return [Message(role, content) for role, content in turns]


def written(reply: Reply) -> str:
    """Return a reply as the model writes it: its thought, its text, its tool calls."""
    thought = f"<think>{reply.reasoning}</think>" if reply.reasoning else ""
    return thought + reply.text + render_calls(reply.calls)


def _cut(
    ids: list[int], finish: Finish, stop: int | str | None, sampling: Sampling
) -> tuple[list[int], Finish, int | str | None]:
    """End where the first stop id or stop string is complete."""
    text_so_far = bytearray()
    for n, token in enumerate(ids, 1):
        if token in sampling.stop_ids:
            return ids[:n], "stop", token
        text_so_far = text_so_far + bytes([token]) if token < 256 else bytearray()
        for text in sampling.stop:
            if text_so_far.endswith(text.encode()):
                return ids[:n], "stop", text
    return ids, finish, stop


def _as_function(script: Script) -> Callable[[Sequence[Message], Random], str | Reply]:
    if callable(script):
        return _with_rng(script)
    replies = [script] if isinstance(script, (str, Reply)) else list(script)
    if not replies:
        raise UsageError("the scripted engine has no replies; give at least one")

    def turn(messages: Sequence[Message], rng: Random) -> str | Reply:
        return replies[min(sum(m.role == "assistant" for m in messages), len(replies) - 1)]

    return turn


def _with_rng(script: Callable[..., Any]) -> Callable[[Sequence[Message], Random], str | Reply]:
    parameters = inspect.signature(script).parameters.values()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return script if len(positional) > 1 else lambda messages, rng: script(messages)
