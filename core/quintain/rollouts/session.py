"""Implements `Agent` for any engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property
from random import Random
from typing import TYPE_CHECKING, Any

from ..errors import EnvironmentFault, LimitReached, PolicyFault
from ..interfaces.agent import SUMMARISE, Agent, Limits
from ..interfaces.engine import Engine, Reply, TokenEngine
from ..interfaces.tools import Tool, ToolSpec
from ..types.rollout import Turn
from ..types.sampling import Sampling, derived_seed
from ..types.task import Message, messages_of
from ..types.transcript import Sampled, Transcript
from .chat.bridge import Conversation, stops
from .chat.thinking_budget import sample_turn
from .function_tools import as_tool
from .loop_share import take_turn
from .policy_clock import PolicyClock
from .tool_calls import run_calls

MALFORMED_CHANCES = 3  # consecutive turns without a readable tool call that become a policy fault


@dataclass
class EpisodeState:
    """The turns, tokens and metrics of one episode, over all its players."""

    engine: Engine
    sampling: Sampling
    limits: Limits
    seed: int
    turns: list[Turn] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    spent: int = 0  # tokens that the policy sampled
    turns_taken: int = 0  # by the policy
    limit_hit: str = ""  # the limit that ended the last turn of the policy
    clock: PolicyClock = field(default_factory=PolicyClock)
    sessions: dict[str, Session] = field(default_factory=dict)  # by conversation
    # by conversation: the first prompt of the group's episodes
    first: dict[str, list[Any]] = field(default_factory=dict)


class Session(Agent):
    """One conversation of one episode.

    *player* is whose conversation it is, if it is not the first one of a player.
    """

    def __init__(
        self,
        episode: EpisodeState,
        name: str = "",
        engine: Engine | None = None,
        *,
        player: str | None = None,
    ) -> None:
        self._episode = episode
        self._name = name
        self._player = player
        self._engine: Engine = (
            engine.for_episode(episode.seed)
            if engine
            else episode.engine.for_player(name if player is None else player)
        )
        self.trains = engine is None
        self.messages: list[Message] = []
        self._conversation: Conversation | None = None
        self._pending: list[Message] = []
        self._turns = 0
        self.stop_string = ""  # that ended the last turn
        # of the last turn, if its engine keeps tokens: what it continued, and what was sampled
        self.prompt: Sequence[int] = ()
        self.sampled: Sampled | None = None
        self._messages_after: list[int] = []  # number of messages after each turn
        self._rewritten = 0  # turns before the last rewrite
        self._compacting = False
        self._seen: list[Message] = []  # up to the last `record`
        self._raw: dict[int, Message] = {}  # turns as they were sampled, by the id of their message
        episode.sessions[name] = self

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Name the methods of an agent for one that it does not have, as in
            ``agent.reply()``.
            """
            methods = ", ".join(sorted(name for name in vars(Agent) if not name.startswith("_")))
            raise AttributeError(
                f"Agent has no {name!r}; write `await agent.turn()` for a turn of the policy; it "
                f"has {methods}",
                name=name,
                obj=self,
            )

    @cached_property
    def rng(self) -> Random:
        return Random(derived_seed(self._episode.seed, "rng", self._name))

    def system(self, text: str) -> None:
        if self._turns:
            raise EnvironmentFault("agent.system() must come before the first turn")
        self._pending = [Message("system", text), *(m for m in self._pending if m.role != "system")]
        self.messages = [*self._pending]

    def user(self, content: str | Sequence[Message]) -> None:
        new = messages_of(content)
        self._pending.extend(new)
        self.messages.extend(new)

    async def turns(self) -> AsyncIterator[Turn]:
        while True:
            try:
                turn = await self.turn()
            except LimitReached as e:
                self._episode.limit_hit = e.limit
                return
            yield turn

    async def run(self, *tools: Tool | Callable[..., Any]) -> Turn:
        by_name = {t.spec.name: t for t in map(as_tool, tools)}
        if len(by_name) < len(tools):
            raise EnvironmentFault(f"agent.run() got two tools of one name: {', '.join(by_name)}")
        unreadable = 0
        turn: Turn | None = None
        while True:
            try:
                turn = await self.turn(*by_name.values())
            except LimitReached as e:
                if turn is None:
                    raise
                self._episode.limit_hit = e.limit
                return turn
            if not turn.calls:
                return turn
            unreadable = unreadable + 1 if all(c.error for c in turn.calls) else 0
            if unreadable >= MALFORMED_CHANCES:
                raise PolicyFault(
                    f"{unreadable} turns in a row held no readable tool call: {turn.calls[0].error}"
                )
            calls = await run_calls(turn.calls, by_name, self._episode.clock)
            # A tool may itself let another player take turns, so this turn need not be the last of
            # the episode.
            index = next(
                i
                for i in reversed(range(len(self._episode.turns)))
                if self._episode.turns[i] is turn
            )
            turn = self._episode.turns[index] = replace(turn, calls=calls)
            self.user(
                [
                    Message("tool", c.error or c.result or "", call_id=c.id, name=c.name)
                    for c in calls
                ]
            )

    def player(self, name: str, engine: Engine | None = None) -> Session:
        return self._opened(name, engine, None)

    def conversation(self, name: str) -> Session:
        player = self._name if self._player is None else self._player
        return self._opened(name, None if self.trains else self._engine, player)

    def _opened(self, name: str, engine: Engine | None, player: str | None) -> Session:
        if name in self._episode.sessions:
            raise EnvironmentFault(f"there is a player or a conversation {name!r} already")
        return Session(self._episode, name, engine, player=player)

    def fork(self, name: str, turns: int | None = None) -> Session:
        count = self._turns if turns is None else turns
        if not self._rewritten <= count <= self._turns:
            before = f", {self._rewritten} of them before its last rewrite"
            raise EnvironmentFault(
                f"agent.fork() after {turns} turns; the conversation has {self._turns}"
                + (before if self._rewritten else "")
            )
        fork = self.conversation(name)
        end = self._messages_after[count - 1] if count else 0
        fork._turns, fork._messages_after = count, self._messages_after[:count]
        fork.messages = self.messages[: None if turns is None else end]
        fork._pending = fork.messages[end:]
        fork._rewritten, fork._raw = self._rewritten, self._raw
        fork._conversation = self._conversation and self._conversation.fork(count)
        return fork

    def policy_time(self) -> AbstractContextManager[None]:
        return self._episode.clock.chosen()

    def rewrite(self, messages: Sequence[Message]) -> None:
        self.record()
        self.messages = list(messages)
        self._pending = [*messages]
        if self._conversation:
            self._conversation.rewrite([self._raw.get(id(m), m) for m in messages])
            self._pending = []
        self._messages_after = [len(messages)] * self._turns
        self._rewritten = self._turns
        self.metric(rewrites=self._episode.metrics.get("rewrites", 0) + 1)

    async def compact(
        self, instruction: str = SUMMARISE, *, keep: int = 0, max_tokens: int | None = None
    ) -> Turn:
        # system messages, and the first other one
        places = (i for i, m in enumerate(self.messages, 1) if m.role != "system")
        head, asked = self.messages[: next(places, 0)], Message("user", instruction)
        kept = self.messages[max(len(head), len(self.messages) - keep) :]
        if kept:
            self.rewrite(self.messages[: -len(kept)])
        self.user([asked])
        self._compacting = True
        try:
            turn = await self.turn(max_tokens=max_tokens)
        finally:
            self._compacting = False
        summary = Message("assistant", turn.reply)
        # the message of the turn itself, unless it holds more, so that it is recorded once
        summary = self.messages[-1] if self.messages[-1] == summary else summary
        self.rewrite([*head, asked, summary, *kept])
        return turn

    def record(self) -> tuple[Message, ...]:
        """Return all messages that were ever in the context, in the order in which they came."""
        seen = set(map(id, self._seen))
        self._seen += [m for m in self.messages if id(m) not in seen]
        return tuple(self._seen)

    def metric(self, **values: float) -> None:
        self._episode.metrics.update({k: float(v) for k, v in values.items()})

    def transcript(self) -> Transcript | None:
        """Return the exact tokens of this player; ``None`` if its engine returns text only."""
        if self._conversation is None:
            return None
        transcript = self._conversation.transcript(
            self._engine.name, self._episode.sampling.temperature
        )
        return replace(transcript, player=self._player)

    def prompt_tokens(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> int | None:
        """Return the length of the prompt of a new conversation that begins with *messages*;
        ``None`` if the engine returns text only.
        """
        if not isinstance(self._engine, TokenEngine):
            return None
        conversation = Conversation(self._engine.tokenizer, tools)
        conversation.add(*messages)
        return len(conversation.prompt_ids())

    async def turn(
        self,
        *tools: Tool | ToolSpec | Callable[..., Any],
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        response_format: str = "",
        tool_choice: str = "",
    ) -> Turn:
        if self._name not in self._episode.sessions:
            # code that catches everything and tries again must not block the others
            await asyncio.sleep(0)
            raise EnvironmentFault("the episode is over; its code asked for another turn")
        await take_turn()
        specs = [t if isinstance(t, ToolSpec) else as_tool(t).spec for t in tools]
        share = self._episode.limits.compact_at
        if share and isinstance(self._engine, TokenEngine):
            await self._compact_if_full(self._engine, share)
        sampling = self._allowance(max_tokens, stop)
        with self._episode.clock.sampled() as span:
            if isinstance(self._engine, TokenEngine):
                turn = await self._sampled(self._engine, specs, sampling)
            else:  # the engine keeps no tokens: it gets all messages and returns parsed text
                self._pending.clear()
                sampling = sampling.replace(
                    response_format=response_format, tool_choice=tool_choice
                )
                reply: Reply = await self._engine.reply(self.messages, specs, sampling)
                text = (
                    f"<think>{reply.reasoning}</think>{reply.text}"
                    if reply.reasoning
                    else reply.text
                )
                # a partner's are not the policy's
                tokens = reply.usage.get("completion_tokens", 0) if self.trains else 0
                turn_fields: Any = {"finish": reply.finish, "player": self._name, "tokens": tokens}
                turn = Turn(
                    text=text,
                    reply=reply.text.strip(),
                    reasoning=reply.reasoning,
                    calls=reply.calls,
                    **turn_fields,
                )
            span.attributes.update(
                player=self._name,
                tokens=turn.tokens,
                finish=turn.finish,
                engine=self._engine.name,
            )
        self._turns += 1
        self._episode.turns.append(turn)
        message = Message("assistant", turn.reply, reasoning=turn.reasoning, calls=turn.calls)
        self.messages.append(message)
        if self._conversation:
            self._raw[id(message)] = Message("assistant", turn.text)
        self._messages_after.append(len(self.messages))
        if self.trains:  # limits count the policy's own turns only
            self._episode.turns_taken += 1
            self._episode.spent += turn.tokens
            self._episode.limit_hit = "tokens" if turn.finish == "length" else ""
        return turn

    async def _compact_if_full(self, engine: TokenEngine, share: float) -> None:
        """Compact what was said up to the last turn, if the next prompt would fill more than
        *share* of the context.
        """
        if self._conversation and self.trains and not self._compacting:
            fork, end = self._conversation.fork(self._turns), self._messages_after[-1]
            fork.add(*self._pending)
            if self._turns > self._rewritten and len(fork.prompt_ids()) > share * engine.context:
                # results stand after their calls
                keep = len(self.messages) - end + bool(self.messages[end - 1].calls)
                summary, turns = await self.compact(keep=keep), self._episode.turns
                place = next(i for i, turn in enumerate(turns) if turn is summary)
                turns[place] = replace(summary, summary=True)

    def _allowance(self, max_tokens: int | None, stop: Sequence[str]) -> Sampling:
        """Return the sampling settings of the next turn: its own seed, and at most the tokens that
        the limits leave.
        """
        episode, limits = self._episode, self._episode.limits
        allowed_tokens = min(
            (
                allowed_tokens
                for allowed_tokens in (max_tokens, episode.sampling.max_tokens)
                if allowed_tokens is not None
            ),
            default=None,
        )
        changes: dict[str, Any] = {
            "seed": derived_seed(episode.seed, self._name, self._turns),
            "max_tokens": allowed_tokens,
        }
        changes["stop"] = (*episode.sampling.stop, *([stop] if isinstance(stop, str) else stop))
        if not self.trains:
            return episode.sampling.replace(**changes, thinking_budget=None)
        if limits.turns is not None and episode.turns_taken >= limits.turns:
            raise LimitReached("turns", f"all {limits.turns} turns are taken")
        if limits.tokens is not None:
            left = limits.tokens - episode.spent
            if left <= 0:
                raise LimitReached("tokens", f"all {limits.tokens} tokens are spent")
            changes["max_tokens"] = min(left, allowed_tokens or left)
        return episode.sampling.replace(**changes)

    async def _sampled(
        self, engine: TokenEngine, tools: Sequence[ToolSpec], sampling: Sampling
    ) -> Turn:
        if self._conversation is None:
            self._conversation = Conversation(
                engine.tokenizer, tools, self._episode.first.setdefault(self._name, [])
            )
        elif tools:
            # first offered in a later turn: the template rewrites the system message, a new branch
            # begins
            self._conversation.tools = tuple(tools)
        self._conversation.add(*self._pending)
        self._pending.clear()
        ids = self._conversation.prompt_ids()
        if len(ids) >= engine.context:
            message = (
                f"the prompt has {len(ids)} tokens, the context of {engine.name} holds "
                f"{engine.context}"
            )
            # a partner's context, and a first prompt that is too long, are not its own
            if self._turns and self.trains:
                raise LimitReached("context", message)
            raise EnvironmentFault(
                f"{message}: leave the task out or take an engine with a longer context"
            )
        sampled = await sample_turn(engine, ids, stops(engine.tokenizer, sampling))
        text = self._conversation.add_sampled(sampled)
        self.prompt, self.sampled = ids, sampled
        self.stop_string = sampled.stop if isinstance(sampled.stop, str) else ""
        turn = engine.tokenizer.parse(text, tools, finish=sampled.finish)
        return replace(turn, player=self._name, tokens=sampled.tokens if self.trains else 0)
