"""Conversations straight with an engine, outside of episodes: what `quintain serve` answers
with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from quintain import LimitReached, Message, Sampled, Sampling, TokenEngine, Transcript
from quintain.rollouts import Conversation, sample_turn, stops
from quintain.types import derived_seed

from .request import ExactTurn, PolicyTurn, Token, TurnRequest

__all__ = ["EngineConversation", "EnginePolicy", "Observer"]

Observer = Callable[[str, Sampled, Sampling], None]
"""Called with the name of a conversation, a turn and its settings."""


class EnginePolicy:
    """Opens conversations with *engine*.

    Args:
        sampling: of a turn whose request says nothing else.
        heed: take temperature, top_p and seed of requests.
        observe: called with every turn.
    """

    def __init__(
        self,
        engine: TokenEngine,
        sampling: Sampling,
        *,
        heed: bool = True,
        observe: Observer | None = None,
    ) -> None:
        self.engine, self.sampling, self.heed, self.observe = engine, sampling, heed, observe
        self.conversations: dict[str, EngineConversation] = {}

    def conversation(self, name: str) -> EngineConversation:
        self.conversations[name] = EngineConversation(self, name)
        return self.conversations[name]

    def transcripts(self) -> dict[str, Transcript]:
        """Return the exact tokens of each conversation, by name."""
        return {name: one.transcript() for name, one in self.conversations.items()}


class EngineConversation:
    """One conversation with an engine."""

    def __init__(self, policy: EnginePolicy, name: str) -> None:
        self._policy, self._name = policy, name
        self._conversation = Conversation(policy.engine.tokenizer)
        self._turns = 0

    def add(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self._conversation.add(message)

    async def turn(self, request: TurnRequest) -> PolicyTurn:
        engine, conversation = self._policy.engine, self._conversation
        if request.tools:
            conversation.tools = request.tools
        ids = conversation.prompt_ids()
        if len(ids) >= engine.context:
            raise LimitReached(
                "context", f"the prompt has {len(ids)} tokens, the context holds {engine.context}"
            )
        sampling = self._sampling(request)
        sampled = await sample_turn(engine, ids, stops(engine.tokenizer, sampling))
        text = conversation.add_sampled(sampled)
        if self._policy.observe is not None:
            self._policy.observe(self._name, sampled, sampling)
        parsed = engine.tokenizer.parse(text, request.tools, finish=sampled.finish)
        turn = replace(parsed, tokens=sampled.tokens)
        self._turns += 1
        recorded = self._policy.observe is not None
        wanted = request.logprobs or request.token_ids
        pairs = zip(sampled.ids, sampled.logps, strict=True) if wanted else ()
        return PolicyTurn(
            turn=turn,
            prompt=len(ids),
            sampled=sampled.tokens,
            tokens=tuple(
                Token(id=i, logp=logp, text=engine.tokenizer.decode([i])) for i, logp in pairs
            ),
            prompt_ids=tuple(ids) if request.token_ids else (),
            stop=sampled.stop if isinstance(sampled.stop, str) else "",
            version=sampled.versions[-1] if sampled.versions else engine.version,
            exact=ExactTurn(prompt=tuple(ids), sampled=sampled, sampling=sampling)
            if recorded
            else None,
        )

    def fork(self, name: str, turns: int) -> EngineConversation:
        other = self._policy.conversation(name)
        other._conversation, other._turns = self._conversation.fork(turns), turns
        return other

    def transcript(self) -> Transcript:
        return self._conversation.transcript(
            self._policy.engine.name, self._policy.sampling.temperature
        )

    def _sampling(self, request: TurnRequest) -> Sampling:
        seed = derived_seed(self._policy.sampling.seed, self._name, self._turns)
        changes: dict[str, Any] = {"seed": None if self._policy.sampling.seed is None else seed}
        if self._policy.heed:
            changes |= request.sampling
        if request.max_tokens is not None:
            limit = self._policy.sampling.max_tokens
            changes["max_tokens"] = min(request.max_tokens, limit or request.max_tokens)
        if request.stop:
            changes["stop"] = (*self._policy.sampling.stop, *request.stop)
        return self._policy.sampling.replace(**changes)
