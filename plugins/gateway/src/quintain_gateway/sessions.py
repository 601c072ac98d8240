"""The policy of an episode: each thread of an agent is a conversation of its player."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quintain import Engine, InfrastructureError, LimitReached, Message
from quintain.errors import EnvironmentFault

from .request import PolicyTurn, Token, TurnRequest


class SessionPolicy:
    """Opens conversations of *agent*; the first one is *agent* itself."""

    def __init__(self, agent: Any) -> None:
        self._agent = agent
        self._free = True
        self.turns = 0
        self.limited: SessionConversation | None = None

    def conversation(self, name: str) -> SessionConversation:
        if self._free:
            self._free = False
            return SessionConversation(self, self._agent)
        return SessionConversation(self, self._agent.conversation(name))

    @property
    def engine(self) -> Engine:
        engine: Engine = self._agent.engine
        return engine

    async def mark_limit(self) -> None:
        """Let the episode end as truncated, though its environment returns a result."""
        if self.limited is not None:
            async for _ in self.limited.session.turns():  # ends at once, at the same limit
                break


class SessionConversation:
    """One conversation of an episode."""

    def __init__(self, policy: SessionPolicy, session: Any) -> None:
        self._policy, self.session = policy, session

    def add(self, messages: Sequence[Message]) -> None:
        if messages and messages[0].role == "system" and self._policy.turns == 0:
            self.session.system(messages[0].content)  # takes the place of the recipe's
            messages = messages[1:]
        self.session.user(messages)

    async def turn(self, request: TurnRequest) -> PolicyTurn:
        try:
            turn = await self.session.turn(
                *request.tools,
                max_tokens=request.max_tokens,
                stop=request.stop,
                response_format=request.response_format,
                tool_choice=request.tool_choice,
            )
        except LimitReached:
            self._policy.limited = self._policy.limited or self
            raise
        except EnvironmentFault as e:  # the first prompt of a conversation does not fit
            if self._policy.turns == 0:
                raise
            raise LimitReached("context", str(e)) from e
        if turn.finish == "cancelled":
            raise InfrastructureError("the engine was stopped within a turn")
        self._policy.turns += 1
        sampled = self.session.sampled
        if sampled is None:
            return PolicyTurn(turn=turn, sampled=turn.tokens)
        wanted = request.logprobs or request.token_ids
        pairs = zip(sampled.ids, sampled.logps, strict=True) if wanted else ()
        return PolicyTurn(
            turn=turn,
            prompt=len(self.session.prompt),
            sampled=turn.tokens,
            tokens=tuple(Token(id=i, logp=logp) for i, logp in pairs),
            prompt_ids=tuple(self.session.prompt) if request.token_ids else (),
            stop=sampled.stop if isinstance(sampled.stop, str) else "",
            version=sampled.versions[-1] if sampled.versions else None,
        )

    def fork(self, name: str, turns: int) -> SessionConversation:
        return SessionConversation(self._policy, self.session.fork(name, turns))
