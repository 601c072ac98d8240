"""Runs the tool calls of a turn."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace

from ..interfaces.tools import Tool
from ..types.task import ToolCall
from .policy_clock import PolicyClock
from .spans import Span


async def run_calls(
    calls: Sequence[ToolCall], tools: dict[str, Tool], clock: PolicyClock
) -> tuple[ToolCall, ...]:
    """Run *calls* concurrently, started in their order, so that tools which are plain functions run
    in that order.
    """

    async def outcome(call: ToolCall) -> ToolCall | BaseException:
        try:
            if call.error or call.name not in tools:
                reason = call.error or f"no tool {call.name!r}; there are: {', '.join(tools)}"
                return replace(call, error=f"error: {reason}")
            tool = tools[call.name]
            timed = nullcontext() if tool.ours else clock.chosen()
            with Span("tool", tool=call.name, call=call.id) as span, timed:
                answered = await tool.run(call)
                span.attributes["failed"] = bool(answered.error)
                return answered
        except KeyboardInterrupt:
            raise
        except BaseException as e:  # noqa: BLE001 - a `SystemExit` in a task of its own would end the event loop
            return e

    if len(calls) == 1:  # most turns have one, which needs no task of its own
        outcomes = [await outcome(calls[0])]
    else:
        outcomes = await asyncio.gather(*map(outcome, calls))
    answered: list[ToolCall] = []
    for found in outcomes:
        # Raised when all have ended, so that none goes on behind the back of the episode.
        if isinstance(found, BaseException):
            raise found
        answered.append(found)
    return tuple(answered)
