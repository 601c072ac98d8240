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
from ..types.thought import split_thought
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

    def change_turn(self, turn: Turn, **changes: Any) -> Turn:
        """Change *turn* in the record; return the changed one.

        It is found by identity: other players may have taken turns since, some of them equal.
        """
        place = next(i for i in reversed(range(len(self.turns))) if self.turns[i] is turn)
        self.turns[place] = replace(turn, **changes)
        return self.turns[place]


class Session(Agent):
    """One conversation of one episode.

    *player* is whose conversation it is, if it is not the first one of a player.

    Attributes:
        trains: whether it is the policy's, and not of an engine of its own.
        engine: takes its turns.
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
        self.trains = engine is None
        self.engine: Engine = (
            episode.engine.for_player(name if player is None else player)
            if engine is None
            else engine.for_episode(episode.seed)
        )
        self.messages: list[Message] = []
        self._conversation: Conversation | None = None
        self._turns = 0
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
        if self._turns or (self._conversation is not None and self._conversation.messages):
            raise EnvironmentFault("agent.system() must come before the first turn")
        others = [m for m in self.messages if m.role != "system"]
        self.messages = [Message("system", text), *others]

    def user(self, content: str | Sequence[Message]) -> None:
        self.messages.extend(messages_of(content))

    async def turns(self) -> AsyncIterator[Turn]:
        while True:
            try:
                turn = await self.turn()
            except LimitReached as e:
                self._episode.limit_hit = e.limit
                return
            yield turn

    async def run(self, *tools: Tool | Callable[..., Any]) -> Turn:
        by_name = {tool.spec.name: tool for tool in map(as_tool, tools)}
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
            # A policy that never writes a readable call would go on until a limit ends it, and a
            # limit is no fault of its own.
            unreadable = unreadable + 1 if all(c.error for c in turn.calls) else 0
            if unreadable >= MALFORMED_CHANCES:
                raise PolicyFault(
                    f"{unreadable} turns in a row held no readable tool call: {turn.calls[0].error}"
                )
            calls = await run_calls(turn.calls, by_name, self._episode.clock)
            turn = self._episode.change_turn(turn, calls=calls)
            for call in calls:
                content = call.error or call.result or ""
                self.user([Message("tool", content, call_id=call.id, name=call.name)])

    def player(self, name: str, engine: Engine | None = None) -> Session:
        return self._opened(name, engine, None)

    def conversation(self, name: str) -> Session:
        player = self._name if self._player is None else self._player
        return self._opened(name, None if self.trains else self.engine, player)

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
        fork._turns = count
        fork._messages_after = self._messages_after[:count]
        # Of the whole conversation, also what came since the last turn.
        fork.messages = self.messages[:] if turns is None else self.messages[:end]
        fork._rewritten = self._rewritten
        fork._raw = self._raw
        if self._conversation is not None:
            fork._conversation = self._conversation.fork(count)
        return fork

    def policy_time(self) -> AbstractContextManager[None]:
        return self._episode.clock.chosen()

    def rewrite(self, messages: Sequence[Message]) -> None:
        self.record()
        self.messages = list(messages)
        if self._conversation is not None:
            # Turns that stay are rendered as they were sampled, so that their tokens stay, too.
            self._conversation.rewrite([self._raw.get(id(m), m) for m in messages])
        # No fork begins before the rewrite, so all turns up to now end with it.
        self._messages_after = [len(messages)] * self._turns
        self._rewritten = self._turns
        self.metric(rewrites=self._episode.metrics.get("rewrites", 0) + 1)

    async def compact(
        self, instruction: str = SUMMARISE, *, keep: int = 0, max_tokens: int | None = None
    ) -> Turn:
        # The task stays: system messages, and the first other one.
        first = next((i for i, m in enumerate(self.messages) if m.role != "system"), -1)
        head = self.messages[: first + 1]
        asked = Message("user", instruction)
        kept = self.messages[max(len(head), len(self.messages) - keep) :]
        # The summary is of what came before, so what is kept is taken out and put back behind it.
        if kept:
            self.rewrite(self.messages[: -len(kept)])
        self.user([asked])
        self._compacting = True
        try:
            turn = await self.turn(max_tokens=max_tokens)
        finally:
            self._compacting = False
        summary = Message("assistant", turn.reply)
        # Where the turn is nothing but its reply, take its own message, so that it is recorded once
        # and keeps its tokens. Thoughts and calls are not part of a summary.
        if self.messages[-1] == summary:
            summary = self.messages[-1]
        self.rewrite([*head, asked, summary, *kept])
        return turn

    def record(self) -> tuple[Message, ...]:
        """Return all messages that were ever in the context, in the order in which they came."""
        seen = set(map(id, self._seen))
        self._seen += [m for m in self.messages if id(m) not in seen]
        return tuple(self._seen)

    def metric(self, **values: float) -> None:
        for name, value in values.items():
            self._episode.metrics[name] = float(value)

    def transcript(self) -> Transcript | None:
        """Return the exact tokens of this player; ``None`` if its engine returns text only."""
        if self._conversation is None:
            return None
        temperature = self._episode.sampling.temperature
        return self._conversation.transcript(self.engine.name, temperature, self._player)

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
        if share and isinstance(self.engine, TokenEngine):
            await self._compact_if_full(self.engine, share)
        sampling = self._allowance(max_tokens, stop)
        with self._episode.clock.sampled() as span:
            if isinstance(self.engine, TokenEngine):
                turn = await self._sampled(self.engine, specs, sampling)
            else:
                sampling = sampling.replace(
                    response_format=response_format, tool_choice=tool_choice
                )
                turn = await self._replied(specs, sampling)
            if not self.trains:  # a partner's tokens are not the policy's
                turn = replace(turn, tokens=0)
            span.attributes.update(
                player=self._name,
                tokens=turn.tokens,
                finish=turn.finish,
                engine=self.engine.name,
            )
        self._turns += 1
        self._episode.turns.append(turn)
        message = Message("assistant", turn.reply, reasoning=turn.reasoning, calls=turn.calls)
        self.messages.append(message)
        if self._conversation is not None:
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
        if self._conversation is None or not self.trains or self._compacting:
            return
        # Without a turn since the last rewrite, there is nothing to sum up.
        if self._turns <= self._rewritten:
            return
        # A copy is rendered: the conversation itself would record the prompt, and begin a branch
        # with it once it is compacted.
        fork = self._conversation.fork(self._turns)
        fork.add(*self.messages[len(fork.messages) :])
        if len(fork.prompt_ids()) <= share * engine.context:
            return
        end = self._messages_after[-1]
        keep = len(self.messages) - end
        if self.messages[end - 1].calls:
            keep += 1  # results of calls have to stand after these
        summary = await self.compact(keep=keep)
        self._episode.change_turn(summary, summary=True)

    def _allowance(self, max_tokens: int | None, stop: Sequence[str]) -> Sampling:
        """Return the sampling settings of the next turn: its own seed, and at most the tokens that
        the limits leave.
        """
        episode = self._episode
        limits = episode.limits
        left: int | None = None
        if self.trains:
            if limits.turns is not None and episode.turns_taken >= limits.turns:
                raise LimitReached("turns", f"all {limits.turns} turns are taken")
            if limits.tokens is not None:
                left = limits.tokens - episode.spent
                if left <= 0:
                    raise LimitReached("tokens", f"all {limits.tokens} tokens are spent")
        maxima = [n for n in (max_tokens, episode.sampling.max_tokens, left) if n is not None]
        stops_of_turn = [stop] if isinstance(stop, str) else stop
        return episode.sampling.replace(
            # A seed of its own, so that what others sampled before changes nothing.
            seed=derived_seed(episode.seed, self._name, self._turns),
            max_tokens=min(maxima, default=None),
            stop=(*episode.sampling.stop, *stops_of_turn),
            thinking_budget=episode.sampling.thinking_budget if self.trains else None,
        )

    async def _replied(self, tools: Sequence[ToolSpec], sampling: Sampling) -> Turn:
        """Ask an engine that keeps no tokens: it gets all messages and returns parsed text."""
        reply: Reply = await self.engine.reply(self.messages, tools, sampling)
        text, reasoning = reply.text, reply.reasoning
        # A server without a parser of reasoning leaves it in the content.
        thought, rest = (reasoning, text) if reasoning else split_thought(text)
        if reasoning:
            text = f"<think>{reasoning}</think>{text}"
        return Turn(
            text=text,
            reply=rest.strip(),
            reasoning=thought,
            calls=reply.calls,
            finish=reply.finish,
            player=self._name,
            tokens=reply.usage.get("completion_tokens", 0),
        )

    async def _sampled(
        self, engine: TokenEngine, tools: Sequence[ToolSpec], sampling: Sampling
    ) -> Turn:
        if self._conversation is None:
            # All episodes of a group begin with the same prompt, which is rendered for the first.
            first = self._episode.first.setdefault(self._name, [])
            self._conversation = Conversation(engine.tokenizer, tools, first)
        elif tools:
            # first offered in a later turn: the template rewrites the system message, a new branch
            # begins
            self._conversation.tools = tuple(tools)
        self._conversation.add(*self.messages[len(self._conversation.messages) :])
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
        self.prompt = ids
        self.sampled = sampled
        turn = engine.tokenizer.parse(text, tools, finish=sampled.finish)
        return replace(turn, player=self._name, tokens=sampled.tokens)
