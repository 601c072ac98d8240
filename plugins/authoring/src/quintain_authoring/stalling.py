"""Whose failure it is if a policy stalls: episodes of an environment with a policy that never comes
to an end, with calls that take for ever, and with an engine that does.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import Any

from quintain import (
    Environment,
    InfrastructureError,
    Limits,
    Message,
    Reply,
    Rollout,
    Tool,
    ToolCall,
    ToolSpec,
    as_tool,
    reward,
)

from .scripted import ScriptedEngine
from .suites import EnvironmentSuite

TURNS, PATIENCE, LIMIT = 200, 0.5, 0.1
"""Turns and seconds after which an episode counts as one without an end; ``limits.seconds`` of the
episodes with something slow.
"""
FOREVER = 3600.0
ENDLESS = "the probe ended an episode that had no end"
EXAMPLES = {"integer": 1, "number": 1.0, "boolean": True, "array": [], "object": {}, "null": None}


@reward
def unscored(rollout: Rollout[Any, Any]) -> float:
    """Return 0: only the termination is read."""
    return 0.0


class Watch:
    """What an environment does with its agent in one episode.

    Attributes:
        tools: those offered with the last turn.
        ran: whether calls ran in `Agent.run`, of tools that are not ``ours``.
        early: the environment counted time as the policy's before the first turn.
        waited: it waited after a turn with calls, outside of `Agent.run` and `Agent.policy_time`.
    """

    def __init__(self, *, slow_calls: bool = False) -> None:
        self.tools: Sequence[ToolSpec] = ()
        self.ran = self.early = self.waited = False
        self._slow_calls, self._turns, self._chosen, self._running = slow_calls, 0, 0, 0
        self._after: asyncio.Handle | None = None

    def on(self, agent: Any) -> None:
        """Watch *agent*, by attributes that hide its methods."""
        turn, run, policy_time = agent.turn, agent.run, agent.policy_time

        async def watched_turn(*tools: Any, **options: Any) -> Any:
            self.end()
            # An environment that runs the calls itself offers specifications alone.
            self.tools = [t if isinstance(t, ToolSpec) else as_tool(t).spec for t in tools]
            taken = await turn(*tools, **options)
            self._turns += 1
            if taken.calls and not self._running:
                # Runs as soon as the environment waits for something.
                self._after = asyncio.get_running_loop().call_soon(self._waits)
            return taken

        async def watched_run(*tools: Any) -> Any:
            made = [as_tool(tool) for tool in tools]
            self.ran |= any(not tool.ours for tool in made)
            self._running += 1
            try:
                return await run(*(map(slowed, made) if self._slow_calls else made))
            finally:
                self._running -= 1

        @contextmanager
        def watched_time() -> Iterator[None]:
            self.early |= not self._turns
            self._chosen += 1
            try:
                with policy_time():
                    yield
            finally:
                self._chosen -= 1

        agent.turn, agent.run, agent.policy_time = watched_turn, watched_run, watched_time

    def _waits(self) -> None:
        self.waited |= not self._chosen

    def end(self) -> None:
        """End the time after the last turn."""
        if self._after is not None:
            self._after.cancel()


def slowed(tool: Tool) -> Tool:
    """Return *tool* with calls that take for ever, if the policy can make them slow."""

    async def call(arguments: Mapping[str, Any]) -> str:
        await asyncio.sleep(FOREVER)
        return ""

    return tool if tool.ours else replace(tool, call=call)


def stalling(suite: EnvironmentSuite) -> str:
    """Return where a policy that stalls would be tried again and left out, instead of scored; empty
    if nowhere.

    Raises:
        AssertionError: it never ends, is the failure of another, or others' slowness is the
            policy's.
    """
    environment = suite.build()
    limits, warnings = environment.limits, []
    watch = Watch()
    endless = played(suite, environment, watch, limits)
    assert not watch.early, (
        "`agent.policy_time()` begins before the first turn: what runs there is not what the policy "
        "chose, and its time would be scored as the policy's"
    )
    if ENDLESS in endless.reason:
        if limits.turns is None and limits.tokens is None:
            without_end = "a policy that never comes to an end is ended by limits.seconds alone"
            assert limits.seconds is not None, (
                "a policy that never comes to an end never ends: set Limits(turns=), "
                "Limits(tokens=) or Limits(seconds=)"
            )
            warnings.append(
                f"{without_end}: if its turns take more than half of these {limits.seconds:g} s, "
                "that is a timeout, which is tried again and left out; set Limits(turns=) or "
                "Limits(tokens=), which are scored"
            )
    else:
        assert not endless.ours, (
            f"a policy that never comes to an end ends with {endless.kind}: {endless.reason}; a "
            "failure of ours is tried again and left out, never scored"
        )
    if watch.waited:
        warnings.append(
            "after a turn with calls it waits outside of `agent.policy_time()`: if the policy's "
            "calls run there, one that takes for ever is a timeout, which is tried again and left "
            "out; write `with agent.policy_time():` around them, or use `agent.run(*tools)`"
        )
    if limits.seconds is None:
        return "\n".join(warnings)
    short = replace(limits, seconds=min(limits.seconds, LIMIT))
    if watch.ran:
        late = played(suite, environment, Watch(slow_calls=True), short)
        assert not late.ours, (
            f"a call that takes for ever ends with {late.kind}: {late.reason}; it is tried again and "
            "left out, never scored"
        )
    slow = played(suite, environment, Watch(), short, delay=FOREVER)
    assert slow.cause != "policy", (
        f"an engine that takes for ever ends with {slow.kind}: {slow.reason}; it would be scored as "
        "the policy's"
    )
    return "\n".join(warnings)


def played(
    suite: EnvironmentSuite,
    environment: Environment[Any, Any],
    watch: Watch,
    limits: Limits,
    delay: float = 0.0,
) -> Any:
    """Return how an episode of the first task ends, with a policy that calls the tools that it is
    offered, one after the other, or else says the same again.
    """

    class Watched(Environment[Any, Any]):
        reward = unscored
        system, early = environment.system, environment.early

        async def rollout(self, task: Any, agent: Any) -> Any:
            watch.on(agent)
            try:
                return await environment.rollout(task, agent)
            finally:
                watch.end()

    Watched.limits = limits
    began = time.monotonic()
    turns = 0

    def again(messages: Sequence[Message], rng: Random) -> Reply:
        nonlocal turns
        turns += 1
        if turns > TURNS or time.monotonic() - began > PATIENCE:
            raise InfrastructureError(ENDLESS)
        if not watch.tools:
            return Reply(text="once more")
        spec = watch.tools[turns % len(watch.tools)]
        call = ToolCall(name=spec.name, arguments=example(spec.parameters))
        return Reply(text="", calls=(call,))

    tasks = suite.tasks(suite.splits[0], 1)
    engine = ScriptedEngine(replies=again, delay=delay)
    (rollout,) = suite.play(engine, tasks=tasks, environment=Watched())
    return rollout.termination


def example(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments that a call may have: the required ones, of their types."""
    properties = schema.get("properties", {})

    def value(of: Mapping[str, Any]) -> Any:
        return of["enum"][0] if of.get("enum") else EXAMPLES.get(str(of.get("type")), "1")

    return {name: value(properties.get(name, {})) for name in schema.get("required", ())}
