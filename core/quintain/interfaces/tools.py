"""Tools: what a model is told of one, and what runs its calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import InfrastructureError, ToolError
from ..types.task import ToolCall


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolSpec:
    """A tool as the model sees it: name, description and the JSON schema of the parameters."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(
        default_factory=lambda: {"type": "object", "properties": {}}
    )

    def to_json(self) -> dict[str, Any]:
        """Return the form chat templates and OpenAI-compatible servers take."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": dict(self.parameters),
            },
        }


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A spec and what runs it.

    Attributes:
        call: takes the arguments, returns the result as text; it raises `ToolError` for an error
            that the policy reads.
        seconds: that a call may take; the policy then reads that it took too long. ``None``: the
            limits of the episode.
        characters: of a result or error that the policy reads; the rest is cut off and counted.
        idempotent: a call that failed with `InfrastructureError` is made once more.
        ours: the policy cannot make a call slow, so the time of a call is not the policy's
            (`Agent.policy_time`).
    """

    spec: ToolSpec
    call: Callable[[Mapping[str, Any]], Awaitable[str]]
    seconds: float | None = None
    characters: int = 100_000
    idempotent: bool = False
    ours: bool = False

    async def run(self, call: ToolCall) -> ToolCall:
        """Return *call* with its result, or with the error that the policy reads.

        Raises:
            InfrastructureError: a failure that is ours.
        """
        attempts = 2 if self.idempotent else 1
        while True:
            attempts -= 1
            try:
                async with asyncio.timeout(self.seconds) as timer:
                    return replace(call, result=self._cut(await self.call(call.arguments)))
            except ToolError as e:
                return replace(call, error=self._cut(f"error: {e}"))
            except TimeoutError:
                if not timer.expired():
                    raise
                return replace(call, error=f"error: {call.name} took over {self.seconds:g} s")
            except InfrastructureError:
                if not attempts:
                    raise

    def _cut(self, text: str) -> str:
        cut = len(text) - self.characters
        return text if cut <= 0 else f"{text[: self.characters]}\n[{cut} more characters]"
