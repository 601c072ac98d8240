"""The policy of an episode: each thread of an agent is a conversation of its player. Models of other
names are players that do not train.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quintain import Engine, InfrastructureError, LimitReached, Message
from quintain.errors import EnvironmentFault

from .forwarding import ForwardedModels
from .request import PolicyTurn, Token, TurnRequest


class SessionPolicy:
    """Opens conversations of *agent*; the first one is *agent* itself. Each of them that brings no
    system message gets that of the recipe, which *agent* has.
    """

    def __init__(self, agent: Any, others: ForwardedModels | None = None) -> None:
        self._agent, self._others = agent, others
        self._free = True
        self._system = next((m.content for m in agent.messages if m.role == "system"), "")
        self.turns = 0
        self.limited: SessionConversation | None = None

    def conversation(self, name: str) -> SessionConversation:
        if self._free:
            self._free = False
            return SessionConversation(self, self._agent)
        return SessionConversation(self, self._agent.conversation(name), self._system)

    def untrained(self, model: str) -> UntrainedPolicy:
        """Return what answers to *model*, the name of another model than the policy."""
        engine = self._agent.engine if self._others is None else self._others.engine(model)
        return UntrainedPolicy(self._agent, model, engine)

    @property
    def engine(self) -> Engine:
        engine: Engine = self._agent.engine
        return engine

    async def mark_limit(self) -> None:
        """Let the episode end as truncated, though its environment returns a result."""
        if self.limited is not None:
            async for _ in self.limited.session.turns():  # ends at once, at the same limit
                break


class UntrainedPolicy(SessionPolicy):
    """A player whose turns are in the record and do not train: a simulated user or a judge that the
    agent's program asks at the policy's address. *engine* is the policy's, or that of a server.
    """

    def __init__(self, agent: Any, model: str, engine: Engine) -> None:
        super().__init__(agent)
        self._model, self._engine = model, engine
        self._system = ""  # the recipe's is the policy's

    def conversation(self, name: str) -> SessionConversation:
        player = self._agent.player(f"{self._model} {name}", self._engine)
        return SessionConversation(self, player)

    @property
    def engine(self) -> Engine:
        return self._engine


class SessionConversation:
    """One conversation of an episode; *system* is for one that brings no system message."""

    def __init__(self, policy: SessionPolicy, session: Any, system: str = "") -> None:
        self._policy, self.session, self._system = policy, session, system

    def add(self, messages: Sequence[Message]) -> None:
        if messages and messages[0].role == "system" and self._policy.turns == 0:
            self.session.system(messages[0].content)  # takes the place of the recipe's
            messages = messages[1:]
        elif self._system and not any(m.role == "system" for m in messages):
            self.session.system(self._system)
        self._system = ""  # for the first messages alone
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
