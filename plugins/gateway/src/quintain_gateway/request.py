"""A request of an agent in any API, and the answer of the policy."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from quintain import Engine, Message, Sampled, Sampling, ToolCall, ToolSpec, Turn
from quintain.types import derived_seed

__all__ = [
    "ANY_TOOL",
    "ExactTurn",
    "Policy",
    "PolicyConversation",
    "PolicyTurn",
    "Token",
    "TurnRequest",
    "arguments_of",
    "logprobs_of",
]

ANY_TOOL = "*"
"""`TurnRequest.must_call` of a request that leaves the choice of the tool to the policy."""


@dataclass(frozen=True, kw_only=True)
class TurnRequest:
    """What an agent asks of the policy.

    Attributes:
        messages: the whole conversation; tool messages carry the name of their tool where a call
            with their id is seen.
        history: the conversation without what each request of the responses API sends again.
        tools: offered.
        calls_allowed: false for ``tool_choice = "none"``: calls in the reply are left as text.
        must_call: name of the tool that ``tool_choice`` demands, `ANY_TOOL`, or empty. Nothing
            forces a policy whose tokens are recorded.
        one_call: the agent takes one call of a turn; others are answered with an error.
        schema: JSON schema that the reply is to fit; the messages say it, and nothing forces such a
            policy.
        response_format: the same in the form of the chat API, as JSON.
        n: number of replies.
        max_tokens, stop: of each reply.
        sampling: temperature, top_p and seed, as far as they were given; only an engine that is not
            trained heeds them.
        logprobs, top_logprobs, token_ids: what is reported of the reply's tokens.
        stream, stream_usage: in parts, and with a last part that has the usage.
        thoughts: whether the reply is to show them, in an API that asks.
        model: as the agent calls it.
    """

    messages: tuple[Message, ...]
    history: tuple[Message, ...] = ()
    tools: tuple[ToolSpec, ...] = ()
    calls_allowed: bool = True
    must_call: str = ""
    one_call: bool = False
    schema: Mapping[str, Any] | None = None
    response_format: str = ""
    n: int = 1
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    sampling: Mapping[str, Any] = field(default_factory=dict)
    logprobs: bool = False
    top_logprobs: int = 0
    token_ids: bool = False
    stream: bool = False
    stream_usage: bool = False
    thoughts: bool = False
    model: str = "default"

    def of_reply(self, index: int) -> TurnRequest:
        """Return the request of one of its ``n`` replies. A seed gives each another one, and the
        first is that of the request alone.
        """
        seed = self.sampling.get("seed")
        if seed is None or not index:
            return self
        seeds = {"seed": derived_seed(seed, "reply", index)}
        return replace(self, sampling={**self.sampling, **seeds})

    @property
    def tool_choice(self) -> str:
        """What `must_call` demands, in the form of the chat API, as JSON; empty for nothing."""
        named = {"type": "function", "function": {"name": self.must_call}}
        return (
            json.dumps("required" if self.must_call == ANY_TOOL else named)
            if self.must_call
            else ""
        )


@dataclass(frozen=True, kw_only=True)
class Token:
    """A sampled token as clients see it: its text and bytes where a tokenizer is at hand."""

    id: int
    logp: float
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class ExactTurn:
    """The exact tokens of a turn: those before it, those that were sampled, and how."""

    prompt: tuple[int, ...]
    sampled: Sampled
    sampling: Sampling


@dataclass(frozen=True, kw_only=True)
class PolicyTurn:
    """A turn of the policy.

    Attributes:
        turn: its calls have ids that are unique in the episode.
        prompt: tokens before the turn.
        tokens: the sampled tokens; empty unless asked for.
        prompt_ids: ids of the prompt; empty unless asked for.
        sampled: their number.
        stop: the stop string that ended the turn; empty if another thing did.
        version: of the weights that sampled the last token; ``None`` where the engine keeps no
            tokens.
        exact: what a record keeps; ``None`` where nothing is recorded.
    """

    turn: Turn
    prompt: int = 0
    sampled: int = 0
    tokens: tuple[Token, ...] = ()
    prompt_ids: tuple[int, ...] = ()
    stop: str = ""
    version: int | None = None
    exact: ExactTurn | None = None

    @property
    def text(self) -> str:
        """The reply as agents see it."""
        return self.turn.reply

    @property
    def cut(self) -> bool:
        """Whether a limit ended the reply."""
        return self.turn.finish == "length"


def arguments_of(call: ToolCall) -> str:
    """Return the arguments of a call, as JSON."""
    return json.dumps(dict(call.arguments), ensure_ascii=False)


def logprobs_of(request: TurnRequest, answer: PolicyTurn) -> list[dict[str, Any]]:
    """Return the tokens of *answer* with their log-probs. Engines report the sampled token alone,
    so it is the only one of ``top_logprobs``.
    """
    tokens: list[dict[str, Any]] = []
    for token in answer.tokens:
        one = {
            "token": token.text or f"token_id:{token.id}",
            "logprob": token.logp,
            "bytes": list(token.text.encode()) if token.text else None,
        }
        tokens.append(one | {"top_logprobs": [one] if request.top_logprobs else []})
    return tokens


class PolicyConversation(Protocol):
    """One conversation with the policy, which keeps the exact tokens."""

    def add(self, messages: Sequence[Message]) -> None:
        """Append messages to the conversation."""

    async def turn(self, request: TurnRequest) -> PolicyTurn:
        """Sample the next turn, with the tools and settings of *request*.

        A turn that failed or was cancelled leaves the conversation as it was before; the next call
        samples it again.
        """

    def fork(self, name: str, turns: int) -> PolicyConversation:
        """Return a new conversation that begins with the exact tokens of this one up to the end of
        its first *turns* turns.
        """


class Policy(Protocol):
    """Opens conversations with its engine."""

    @property
    def engine(self) -> Engine:
        """Return what takes the turns."""

    def conversation(self, name: str) -> PolicyConversation:
        """Return a new, empty conversation; the seeds of its turns depend on *name*."""
