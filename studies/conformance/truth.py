"""The truth: an engine that says what a case scripts, and logs every token that it sampled."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import struct
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
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
    ToolCall,
    Weights,
)
from quintain.types import Finish, Role
from quintain_authoring.scripted import written

from .tokenizer import MergingTokenizer

__all__ = ["Received", "SampledTurn", "Script", "TokenReply", "TruthEngine", "said", "truth_logp"]


@dataclass(frozen=True, kw_only=True)
class TokenReply:
    """A reply by its ids, the end of the turn included; *shown* is what its client is to read."""

    ids: tuple[int, ...]
    shown: str
    finish: Finish = "stop"


Script = str | Reply | TokenReply | Sequence[str | Reply | TokenReply] | Callable[..., Any]
"""One reply for all turns, one per turn of a conversation (the last repeats), or a function of the
messages and of how often exactly these tokens were continued before.
"""


@dataclass(frozen=True, kw_only=True)
class Received:
    """A reply as its client reads it.

    Attributes:
        text: without blanks at the ends.
        calls: names and arguments, with the ids that the client got.
        stop: ``"stop"``, ``"length"`` or ``"calls"``.
        token_ids, logps: as far as they were asked for.
        id: of the response.
    """

    text: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    stop: str = "stop"
    token_ids: tuple[int, ...] = ()
    logps: tuple[float, ...] = ()
    id: str = ""

    @property
    def message(self) -> Message:
        """The reply as a message of the history."""
        return Message("assistant", self.text, reasoning=self.reasoning, calls=self.calls)

    @property
    def content(self) -> tuple[Any, ...]:
        """What has to be the same whatever API carries it."""
        calls = tuple((c.name, repr(sorted(dict(c.arguments).items()))) for c in self.calls)
        return self.text, calls, self.stop


@dataclass(frozen=True, kw_only=True)
class SampledTurn:
    """One turn that the engine sampled: ids that it was given, and what it added.

    Attributes:
        received: what the client is to read.
    """

    context: tuple[int, ...]
    ids: tuple[int, ...]
    logps: tuple[float, ...]
    versions: tuple[int, ...]
    temperature: float
    received: Received


@dataclass(frozen=True, kw_only=True)
class _Planned:
    ids: list[int]
    reply: Reply
    shown: str | None = None  # in place of the reply's text


class TruthEngine(TokenEngine):
    """Says what *script* says and keeps a log. Log-probs depend on the tokens before, the token,
    the temperature and the weight version (`truth_logp`), so that an error in any of them is seen.

    Args:
        updates: by the number of a turn, from 1: the tokens after which its weights change.
        context: longest sequence, tokens.
        fail_on: calls, from 1, that fail.
        strips_thoughts: of its tokenizer.

    Attributes:
        log: the turns that were sampled, in order.
        unread: numbers of turns in the log that no client read to the end; they may train or not.
        running: calls that wait or sample now.
        cancelled: calls that ended without a turn.
    """

    name = "truth"

    def __init__(
        self,
        script: Script,
        *,
        updates: Mapping[int, int] | None = None,
        context: int = 65536,
        fail_on: Sequence[int] = (),
        strips_thoughts: bool = False,
    ) -> None:
        self.tokenizer: MergingTokenizer = MergingTokenizer(strips_thoughts=strips_thoughts)
        self.context = context
        self.version = 3  # 0 would be what a record without versions may say
        self.log: list[SampledTurn] = []
        self.unread: set[int] = set()
        self.running = self.cancelled = self.calls = 0
        self._script = _as_function(script)
        self._updates, self._fail_on = dict(updates or {}), frozenset(fail_on)
        self._again: Counter[tuple[int, ...]] = Counter()
        self._open = asyncio.Event()
        self._open.set()

    def hold(self) -> None:
        """Let later calls wait until `release`."""
        self._open.clear()

    def release(self) -> None:
        """Let the calls that wait go on."""
        self._open.set()

    async def sample(self, ids: Sequence[int], sampling: Sampling) -> Sampled:
        self.calls += 1
        number = self.calls
        self.running += 1
        try:
            await self._open.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        if number in self._fail_on:
            raise InfrastructureError(f"scripted failure of call {number}")
        room = self.context - len(ids)
        if room <= 0:
            raise LimitReached("context", f"{len(ids)} tokens, the context holds {self.context}")
        context = tuple(ids)
        turn, sampled = self._turn(context, sampling, min(room, sampling.max_tokens or room))
        self._again[context] += 1
        self.log.append(turn)
        return sampled

    async def score(
        self, ids: Sequence[int], start: int, temperature: float = 1.0
    ) -> Sequence[float]:
        self.check_score(ids, start)
        versions = [self.version] * (len(ids) - start)
        return truth_logp(ids[:start], ids[start:], temperature, versions)

    async def update(self, weights: Weights) -> int:
        self.version = weights.version
        return self.version

    def _turn(
        self, context: tuple[int, ...], sampling: Sampling, room: int
    ) -> tuple[SampledTurn, Sampled]:
        planned = self._planned(context)
        ids, finish, stop = _cut(self.tokenizer, planned, sampling)
        if len(ids) > room:
            ids, finish, stop = ids[:room], "length", None
        if isinstance(stop, str) or (finish == "length" and len(ids) < len(planned.ids)):
            text = self.tokenizer.decode(ids)
            received = Received(
                text=(text[: text.find(stop)] if isinstance(stop, str) else text).strip(),
                stop="length" if finish == "length" else "stop",
            )
        else:
            calls = planned.reply.calls
            text = planned.reply.text if planned.shown is None else planned.shown
            received = Received(
                text=text.strip(),
                calls=calls,
                stop="length" if finish == "length" else "calls" if calls else "stop",
            )
        versions = self._versions(len(ids))
        row = SampledTurn(
            context=context,
            ids=tuple(ids),
            logps=truth_logp(context, ids, sampling.temperature, versions),
            versions=versions,
            temperature=sampling.temperature,
            received=received,
        )
        sampled = Sampled(ids=row.ids, logps=row.logps, versions=versions, finish=finish, stop=stop)
        return row, sampled

    def _planned(self, context: tuple[int, ...]) -> _Planned:
        """Return what the script says after *context*, as tokens."""
        reply = self._script(said(self.tokenizer, context), self._again[context])
        if isinstance(reply, TokenReply):
            plain = Reply(text=reply.shown, finish=reply.finish)
            return _Planned(ids=list(reply.ids), reply=plain)
        if isinstance(reply, str):
            reply = Reply(text=reply)
        digest = hashlib.blake2b(struct.pack(f"{len(context)}q", *context), digest_size=8)
        ids = self.tokenizer.written(written(reply), Random(digest.hexdigest()))
        end = [self.tokenizer.stop_ids[0]] if reply.finish == "stop" else []
        return _Planned(ids=[*ids, *end], reply=reply)

    def _versions(self, tokens: int) -> tuple[int, ...]:
        place = self._updates.get(len(self.log) + 1)
        if place is None or place >= tokens:
            return (self.version,) * tokens
        self.version += 1
        return (self.version - 1,) * place + (self.version,) * (tokens - place)


def truth_logp(
    context: Sequence[int], ids: Sequence[int], temperature: float, versions: Sequence[int]
) -> tuple[float, ...]:
    """Return the log-probs of *ids* after *context*: between -8 and 0, different for another token,
    another context, another temperature or another version.
    """
    digest = hashlib.blake2b(struct.pack(f"{len(context)}q", *context), digest_size=8)
    logps = []
    for token, version in zip(ids, versions, strict=True):
        digest.update(struct.pack("q", token))
        of_token = digest.copy()
        of_token.update(struct.pack("dq", temperature, version))
        logps.append(-8 * (int.from_bytes(of_token.digest(), "big") + 1) / 2**64)
    return tuple(logps)


def said(tokenizer: MergingTokenizer, ids: Sequence[int]) -> list[Message]:
    """Return the messages in *ids*, calls and thoughts left as text."""
    start, end = (tokenizer.encode(text)[0] for text in tokenizer.SPECIAL[:2])
    messages: list[Message] = []
    for part in _split(ids, start):
        body = _split(part, end)[0] if end in part else part
        role, _, content = tokenizer.decode(body).partition("\n")
        with suppress(ValueError):
            messages.append(Message(get_args(Role)[get_args(Role).index(role)], content))
    if messages and messages[-1] == Message("assistant", ""):
        messages.pop()  # the turn to come
    return messages


def _split(ids: Sequence[int], at: int) -> list[list[int]]:
    parts: list[list[int]] = [[]]
    for i in ids:
        if i == at:
            parts.append([])
        else:
            parts[-1].append(i)
    return parts


def _cut(
    tokenizer: MergingTokenizer, planned: _Planned, sampling: Sampling
) -> tuple[list[int], Finish, int | str | None]:
    """End where the first stop string is complete. A stop id ends the turn where the script does,
    so that an end inside of a reply can be scripted.
    """
    text = b""
    for n, token in enumerate(planned.ids, 1):
        text += tokenizer.bytes_of(token)
        found = [s for s in sampling.stop if s.encode() in text]
        if found:
            first = min(found, key=lambda s: text.find(s.encode()))
            return planned.ids[:n], "stop", first
    last = planned.ids[-1] if planned.ids else None
    stop = last if planned.reply.finish == "stop" and last in tokenizer.stop_ids else None
    return planned.ids, planned.reply.finish, stop


def _as_function(script: Script) -> Callable[[Sequence[Message], int], Any]:
    if callable(script):
        function = script
        plain = len(inspect.signature(function).parameters) == 1
        return (lambda messages, again: function(messages)) if plain else function
    replies = [script] if isinstance(script, (str, Reply, TokenReply)) else list(script)

    def turn(messages: Sequence[Message], again: int) -> Any:
        return replies[min(sum(m.role == "assistant" for m in messages), len(replies) - 1)]

    return turn
