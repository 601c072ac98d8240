"""The implementation of `Agent` over any engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from ..errors import EnvironmentFault, LimitReached, PolicyFault, UsageError
from ..interfaces.agent import Agent, Endpoint, Limits
from ..interfaces.engine import Engine, Reply, TokenEngine
from ..interfaces.tools import Tool, as_tool
from ..types.rollout import Turn
from ..types.sampling import Sampling, derived_seed
from ..types.task import Message, ToolCall, messages_of
from ..types.transcript import Transcript
from .chat.bridge import Conversation, stops
from .chat.thinking_budget import speak
from .chat.tool_calls import Parsed, parse

MALFORMED_CHANCES = 3
"""Unreadable tool calls in a row before the policy is at fault."""


@dataclass
class Ledger:
    """What one episode has used up and reported, over all its seats."""

    engine: Engine
    how: Sampling
    limits: Limits
    seed: int
    turns: list[Turn] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    spent: int = 0
    taken: int = 0
    hit: str = ""
    seats: dict[str, Session] = field(default_factory=dict)

    def transcripts(self) -> dict[str, Transcript]:
        """By seat: those of the policy, where the engine records tokens."""
        transcripts = {name: seat.transcript() for name, seat in self.seats.items() if seat.trains}
        return {name: t for name, t in transcripts.items() if t is not None}


class Session(Agent):
    """One seat of one episode (implements `Agent`)."""

    def __init__(self, ledger: Ledger, name: str = "", engine: Engine | None = None) -> None:
        self._ledger = ledger
        self._name = name
        self._engine: Engine = engine or ledger.engine.for_seat(name)
        self.trains = engine is None
        self.rng = Random(derived_seed(ledger.seed, "rng", name))
        self.messages: list[Message] = []
        self._conversation: Conversation | None = None
        self._pending: list[Message] = []
        self._turns = 0
        ledger.seats[name] = self

    def system(self, text: str) -> None:
        if self._turns:
            raise EnvironmentFault("agent.system() must come before the first turn")
        self._pending = [Message("system", text), *(m for m in self._pending if m.role != "system")]
        self.messages = [*self._pending]

    def user(self, content: str | Sequence[Message]) -> None:
        new = messages_of(content)
        self._pending.extend(new)
        self.messages.extend(new)

    async def turn(self) -> Turn:
        return await self._turn(())

    async def turns(self) -> AsyncIterator[Turn]:
        while True:
            try:
                turn = await self._turn(())
            except LimitReached as e:
                self._ledger.hit = e.limit
                return
            yield turn

    async def run(self, *tools: Tool | Callable[..., Any]) -> Turn:
        by_name = {t.spec.name: t for t in map(as_tool, tools)}
        unreadable = 0
        turn: Turn | None = None
        while True:
            try:
                turn = await self._turn(tuple(by_name.values()))
            except LimitReached as e:
                if turn is None:
                    raise
                self._ledger.hit = e.limit
                return turn
            if not turn.calls:
                return turn
            unreadable = unreadable + 1 if all(c.error for c in turn.calls) else 0
            if unreadable >= MALFORMED_CHANCES:
                raise PolicyFault(f"{unreadable} turns in a row held no readable tool call: {turn.calls[0].error}")
            done = tuple([await _called(c, by_name) for c in turn.calls])
            index = next(i for i in reversed(range(len(self._ledger.turns))) if self._ledger.turns[i] is turn)
            turn = self._ledger.turns[index] = replace(turn, calls=done)
            results = [Message("tool", c.error or c.result or "", call_id=c.id, name=c.name) for c in done]
            self._pending.extend(results)
            self.messages.extend(results)

    def seat(self, name: str, engine: Engine | None = None) -> Session:
        if name in self._ledger.seats:
            raise EnvironmentFault(f"there is a seat {name!r} already")
        return Session(self._ledger, name, engine)

    def endpoint(self) -> AbstractAsyncContextManager[Endpoint]:
        raise UsageError("agent.endpoint() needs the gateway for foreign agents, which this version does not bring")

    def metric(self, **values: float) -> None:
        self._ledger.metrics.update({k: float(v) for k, v in values.items()})

    def transcript(self) -> Transcript | None:
        """The exact tokens of this seat; ``None`` where its engine gives text only."""
        if self._conversation is None:
            return None
        return self._conversation.transcript(self._engine.name, self._ledger.how.temperature)

    async def _turn(self, tools: Sequence[Tool]) -> Turn:
        how = self._allowance()
        if isinstance(self._engine, TokenEngine):
            turn = await self._sampled(self._engine, tools, how)
        else:
            turn = await self._replied(tools, how)
        self._turns += 1
        self._ledger.turns.append(turn)
        self.messages.append(Message("assistant", turn.reply, reasoning=turn.reasoning, calls=turn.calls))
        if self.trains:
            self._ledger.taken += 1
            self._ledger.spent += turn.tokens
            self._ledger.hit = "tokens" if turn.finish == "length" else ""
        return turn

    def _allowance(self) -> Sampling:
        ledger = self._ledger
        how = ledger.how.but(seed=derived_seed(ledger.seed, self._name, self._turns))
        if not self.trains:
            return how.but(interrupt=None)
        if ledger.limits.turns is not None and ledger.taken >= ledger.limits.turns:
            raise LimitReached("turns", f"all {ledger.limits.turns} turns are taken")
        if ledger.limits.tokens is None:
            return how
        left = ledger.limits.tokens - ledger.spent
        if left <= 0:
            raise LimitReached("tokens", f"all {ledger.limits.tokens} tokens are spent")
        return how.but(max_tokens=min(left, how.max_tokens or left))

    async def _sampled(self, engine: TokenEngine, tools: Sequence[Tool], how: Sampling) -> Turn:
        if self._conversation is None:
            self._conversation = Conversation(engine.codec, [t.spec for t in tools])
        elif tools:  # offered later: the template then rewrites the beginning, and the transcript branches
            self._conversation.tools = tuple(t.spec for t in tools)
        for m in self._pending:
            self._conversation.add(m)
        self._pending.clear()
        ids = self._conversation.prompt()
        if len(ids) >= engine.context:
            message = f"the prompt has {len(ids)} tokens, the context of {engine.name} holds {engine.context}"
            if self._turns:
                raise LimitReached("context", message)
            raise EnvironmentFault(f"{message}: leave the task out or take an engine with a longer context")
        sampled = await speak(engine, ids, stops(engine.codec, how))
        text = self._conversation.said(sampled)
        return self._made(text, parse(text, tools=bool(tools)), sampled.finish, sampled.tokens)

    async def _replied(self, tools: Sequence[Tool], how: Sampling) -> Turn:
        self._pending.clear()
        reply: Reply = await self._engine.reply(self.messages, [t.spec for t in tools], how)
        text = f"<think>{reply.reasoning}</think>{reply.text}" if reply.reasoning else reply.text
        parsed = Parsed(reply=reply.text.strip(), reasoning=reply.reasoning, calls=reply.calls)
        return self._made(text, parsed, reply.finish, reply.usage.get("completion_tokens", 0))

    def _made(self, text: str, parsed: Parsed, finish: Any, tokens: int) -> Turn:
        reply, reasoning, calls = parsed.reply, parsed.reasoning, parsed.calls
        return Turn(
            text=text, reply=reply, reasoning=reasoning, calls=calls, finish=finish, seat=self._name, tokens=tokens
        )


async def _called(call: ToolCall, tools: dict[str, Tool]) -> ToolCall:
    """The call with its result, or with the error that the policy is told."""
    if call.error:
        return replace(call, error=f"error: {call.error}")
    tool = tools.get(call.name)
    if tool is None:
        return replace(call, error=f"error: no tool {call.name!r}; there are: {', '.join(tools)}")
    return replace(call, result=await tool.call(call.arguments))
