"""An episode of a Quintain environment as an `Env` of the cookbook: tokens in, tokens out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import tinker
from tinker_cookbook.renderers import Renderer, get_text_content
from tinker_cookbook.rl.types import Env, StepResult

from quintain import Message, Reply, Rollout, ToolCall
from quintain.errors import EnvironmentFault
from quintain_authoring import Asked, Stepwise

from ..trl import InTRL

__all__ = ["CookbookEpisode"]


class CookbookEpisode(Env):
    """One episode. Its turns are rendered by a renderer of the cookbook, and the score of the
    episode is the reward of the last one.

    Args:
        host: has the environment, and the thread that plays it.
        split, index: of the task.
        number: of the episode in its group, from which its random numbers are drawn.
        renderer: of the model that plays.
    """

    def __init__(
        self, host: InTRL, split: str, index: int, *, number: int, renderer: Renderer
    ) -> None:
        self._host, self._renderer = host, renderer
        task = host.task(split, index)
        self._steps = Stepwise(host.environment, task, host.services, seed=number)
        self._messages: list[Any] = []

    async def initial_observation(self) -> tuple[Any, Any]:
        """Begin the episode and return the prompt of its first turn, and where the turn ends.

        Raises:
            EnvironmentFault: it asks nothing, or several players.
        """
        asked = await asyncio.to_thread(self._host.run, self._begun())
        if isinstance(asked, Rollout):
            raise EnvironmentFault(f"the episode asks nothing: {asked.termination.reason}")
        return self._observed(asked)

    async def step(self, action: list[int], *, extra: Mapping[str, Any] | None = None) -> Any:
        """Give the tokens of a turn, and return what comes next.

        Raises:
            EnvironmentFault: the environment failed, which is no reward of 0.
        """
        message, termination = self._renderer.parse_response(action)
        cut = (extra or {}).get("stop_reason") == "length" or not termination.is_clean
        self._messages.append(message)
        reply = Reply(
            text=get_text_content(message),
            calls=_calls(message),
            finish="length" if cut else "stop",
        )
        found = await asyncio.to_thread(self._host.run, self._steps.next(reply))
        if isinstance(found, Asked):
            prompt, stop = self._observed(found)
            return StepResult(
                reward=0.0, episode_done=False, next_observation=prompt, next_stop_condition=stop
            )
        if found.outcome is None:
            reason = found.termination.reason
            raise EnvironmentFault(f"the episode failed: {found.termination.kind} {reason}")
        return StepResult(
            reward=found.outcome.total,
            episode_done=True,
            next_observation=tinker.ModelInput.empty(),
            next_stop_condition=self._renderer.get_stop_sequences(),
        )

    async def close(self) -> None:
        """End the episode, also one that still waits for a reply."""
        await asyncio.to_thread(self._host.run, self._steps.__aexit__())

    async def _begun(self) -> Asked | Rollout[Any, Any]:
        await self._steps.__aenter__()
        return await self._steps.next()

    def _observed(self, asked: Asked) -> tuple[Any, Any]:
        if asked.player:
            raise EnvironmentFault(
                f"the player {asked.player!r} has a turn, and an episode of the cookbook has one "
                "player; take an environment of one player"
            )
        new = [_message(one) for one in asked.messages]
        if not self._messages and asked.tools:
            system = new.pop(0)["content"] if new and new[0]["role"] == "system" else ""
            tools: list[Any] = [
                {"name": one.name, "description": one.description, "parameters": one.parameters}
                for one in asked.tools
            ]
            new = [*self._renderer.create_conversation_prefix_with_tools(tools, system), *new]
        self._messages += new
        prompt = self._renderer.build_generation_prompt(self._messages)
        return prompt, self._renderer.get_stop_sequences()


def _message(message: Message) -> Any:
    told: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.role == "tool":
        told |= {"tool_call_id": message.call_id, "name": message.name}
    return told


def _calls(message: Any) -> tuple[ToolCall, ...]:
    """Return the calls in *message*; those that do not parse stay in its text."""
    calls = []
    for number, call in enumerate(message.get("tool_calls") or ()):
        arguments = json.loads(call.function.arguments)
        name = call.function.name
        calls.append(ToolCall(name=name, arguments=arguments, id=call.id or f"call-{number}"))
    return tuple(calls)
