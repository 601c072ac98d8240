"""The agent: the environment's side of a conversation with the policy, whatever engine samples
it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

from ..types.rollout import Turn
from ..types.task import Message
from .engine import Engine
from .tools import Tool, ToolSpec


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The most that one episode may use; ``None`` sets no limit.

    Attributes:
        turns: of the policy (over all its players).
        tokens: sampled by the policy, over the whole episode.
        seconds: of wall clock. Ending by it is our failure (`timeout`), unless more than half of it
            was the policy's (`Agent.policy_time`): then it is scored (`policy_timeout`).
        reward_seconds: of wall clock for one call of a reward; ending by it is our failure
            (`infrastructure_error`).
        compact_at: share of the context that a prompt may fill: where the next one would be longer,
            the conversation is compacted first (`Agent.compact`), without what came since the last
            turn. No engine without tokens does.
    """

    turns: int | None = 1
    tokens: int | None = None
    seconds: float | None = 600.0
    reward_seconds: float | None = 60.0
    compact_at: float | None = None

    def __post_init__(self) -> None:
        for name in ("turns", "tokens", "seconds", "reward_seconds", "compact_at"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"limits.{name} is {value}; expected more than 0, or none")
        if (self.compact_at or 0) > 1:
            raise ValueError(f"limits.compact_at is {self.compact_at}; expected a share, at most 1")


SUMMARISE = "Summarise this conversation: everything that is needed to go on without it."
"""What asks for a summary where the environment gives no instruction of its own."""


class Agent(Protocol):
    """One player of one episode.

    Attributes:
        messages: the context of the next turn.
    """

    messages: Sequence[Message]

    @property
    def rng(self) -> Random:
        """Random numbers, seeded by (run, task, sample) alone."""

    def system(self, text: str) -> None:
        """Set the system message; before the first turn only."""

    def user(self, content: str | Sequence[Message]) -> None:
        """Append user messages to the conversation."""

    async def turn(
        self,
        *tools: Tool | ToolSpec | Callable[..., Any],
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        response_format: str = "",
        tool_choice: str = "",
    ) -> Turn:
        """Sample the policy's next turn, which may call *tools*; nothing runs them, answer with
        tool messages.

        Args:
            max_tokens, stop: make the limit of the recipe smaller, and add stop strings to its own.
            response_format, tool_choice: as in `Sampling`; nothing forces a policy that trains.

        Raises:
            LimitReached: no turns, tokens or context are left; uncaught, it terminates the episode
                as `truncated`.
        """

    def turns(self) -> AsyncIterator[Turn]:
        """Yield turns until a limit; code after the loop still runs."""

    async def run(self, *tools: Tool | Callable[..., Any]) -> Turn:
        """Take turns with *tools*, whose calls run concurrently, until one calls none, or a limit;
        return the last turn.
        """

    def player(self, name: str, engine: Engine | None = None) -> Agent:
        """Open another player with its own conversation; without an engine it is the policy, and
        trains.

        Players are roles that score apart, as in self-play: each is compared with the same player
        of the other rollouts of the group.
        """

    def conversation(self, name: str) -> Agent:
        """Open another conversation of this player, from nothing: that of a sub-agent, or of a
        history that was rewritten.

        All conversations of a player are one sample: they share one advantage, and the rollout
        counts once in baselines.
        """

    def fork(self, name: str, turns: int | None = None) -> Agent:
        """Open another conversation of this player that continues this one after its first *turns*
        turns, by default as it is now.

        It begins with the exact tokens sampled here, which are trained only here.
        """

    def policy_time(self) -> AbstractContextManager[None]:
        """Count the time of a block as the policy's: it chose what runs there, such as its program.
        The calls of `run` are counted without it, except those of tools that are `ours`.

        If an episode ends by ``limits.seconds``, this time decides whose failure that is.
        """

    def rewrite(self, messages: Sequence[Message]) -> None:
        """Replace the context by *messages*, of which some may be those of `messages`.

        The tokens sampled so far train in the context in which they were sampled. In the new one
        they do not train.
        """

    async def compact(
        self, instruction: str = SUMMARISE, *, keep: int = 0, max_tokens: int | None = None
    ) -> Turn:
        """Sample a summary, which trains and counts as a turn, and continue from it.

        The new context has the system message, the first message after it, *instruction*, the
        summary without its reasoning, and the last *keep* messages before *instruction*.

        Raises:
            LimitReached: no turns, tokens or context are left for the summary.
        """

    def metric(self, **values: float) -> None:
        """Report numbers for the logs."""
