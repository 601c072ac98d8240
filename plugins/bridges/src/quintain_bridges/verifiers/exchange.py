"""The exchange of one player of an episode with verifiers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import verifiers.v1 as vf

from quintain import Message, Reply, Rollout, ToolCall, ToolSpec
from quintain.errors import EnvironmentFault
from quintain_authoring import Asked, Stepwise

OVER = "The episode is over."
State = Asked | Rollout[Any, Any]


class PlayerExchange:
    """What one player is asked and answers. A call of a tool is a turn of the episode, and so is
    the text that ends a turn of verifiers.

    Args:
        episode: that asks.
        data: of the task of this player.
    """

    def __init__(self, episode: Stepwise, data: vf.TaskData) -> None:
        self._episode, self._data = episode, data
        self._interaction: Any = None
        self._has_tools = False
        self._state: State | None = None
        self._fault: Exception | None = None

    def begin(self, interaction: Any, has_tools: bool) -> None:
        """Take the open exchange of verifiers, and whether it has the tools of `EpisodeServer`."""
        self._interaction, self._has_tools = interaction, has_tools

    @property
    def trace(self) -> Any:
        """What verifiers records of the exchange."""
        return self._interaction.trace

    @property
    def tools(self) -> Sequence[ToolSpec]:
        """The tools that the player may call now."""
        return self._state.tools if isinstance(self._state, Asked) else ()

    async def turn(self, asked: Asked) -> tuple[bool, State]:
        """Let the player answer a question. Return whether verifiers ended the exchange, and what
        the episode asks then, or the episode, if it ended.

        Raises:
            EnvironmentFault: the player gets tools that it did not have at first, or another
                player is asked before the result of a call.
        """
        if asked.tools and not self._has_tools:
            raise EnvironmentFault("a player without tools got some in a later turn")
        self._state = asked
        segment = await self._interaction.turn(text_of(asked.messages, self._data))
        if self._fault is not None:
            raise self._fault
        if isinstance(self._state, Asked) and not segment.terminated:
            self._state = await self._episode.next(Reply(text=segment.last_reply))
        return bool(segment.terminated), self._state

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Call a tool of the environment, and return its answer."""
        if not isinstance(self._state, Asked) or self._fault is not None:
            return OVER
        player = self._state.player
        try:
            call = ToolCall(name=name, arguments=dict(arguments))
            self._state = await self._episode.next(Reply(calls=(call,)))
            if not isinstance(self._state, Asked):
                return OVER
            if self._state.player != player:
                raise EnvironmentFault(
                    f"player {self._state.player!r} is asked before {player!r} has the answer of "
                    f"its call of {name}"
                )
        except Exception as e:  # noqa: BLE001 - `turn` raises it: this is a request of the program
            self._fault = e
            return OVER
        return text_of(self._state.messages, self._data)


def text_of(messages: Sequence[Message], data: vf.TaskData) -> str:
    """Return messages as one text, without the system prompt that the task has."""
    shown = [m for m in messages if m.role != "system" or m.content != data.system_prompt]
    if len(shown) == 1:
        return shown[0].content
    plain = ("user", "tool")
    return "\n\n".join(m.content if m.role in plain else f"{m.role}: {m.content}" for m in shown)
