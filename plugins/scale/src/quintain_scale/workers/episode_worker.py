"""The inside of an episode process: makes the environments of the recipe, and plays what the run
asks for.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import logging
import mmap
import os
import pickle
import signal
import socket
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import Any, TypeVarTuple, Unpack

from quintain import Environment
from quintain.errors import QuintainError, UsageError
from quintain.process import PausingLoop
from quintain.recipe import ComponentTable, EnvironmentSpec, EnvironmentTable
from quintain.rollouts import RolloutContext, RolloutRequest, Span, record_spans, run_episode
from quintain.services import needed_by, started_services
from quintain.store import RunFolder, as_current_run
from quintain.types import AnyRollout

from .frames import (
    ANSWER,
    CANCEL,
    DONE,
    HELLO,
    LOG,
    MARK,
    OPEN,
    PING,
    PLAY,
    RAISED,
    READY,
    FrameStream,
    pickled,
    sendable,
    versions,
)
from .remote import (
    EPISODE,
    EngineCalls,
    EngineFacts,
    RemoteEngine,
    RemoteTokenEngine,
    RemoteTokenizer,
)
from .worker import die_with_parent

REQUESTS = 256
"""Requests that a process keeps, so that the episodes of a group share their first prompt and their
task is sent once. The run counts on the same number.
"""
BURST = 16
"""Episodes that begin in one step of the event loop."""
YOUNG_OBJECTS = 20_000
"""New objects between two collections of garbage."""
Arguments = TypeVarTuple("Arguments")
SENT = ("result", "termination", "metrics", "turns", "messages", "transcripts", "seed", "seconds")
"""The fields of a rollout that the run does not know."""


@dataclass(frozen=True, kw_only=True)
class Opening:
    """What a process needs to play the episodes of a run.

    Attributes:
        environments: tables of the recipe, by their place among the run's environments.
        services: the component of each slot.
        engines: those of the run that are asked from here, by slot; the empty one is the policy.
        run: the run folder; empty without one. Another machine may not have it.
    """

    environments: Mapping[int, EnvironmentTable]
    services: Mapping[str, ComponentTable] = field(default_factory=dict)
    engines: Mapping[str, EngineFacts] = field(default_factory=dict)
    run: str = ""


class MarkedLoop(PausingLoop):
    """An event loop that notes in *memory*, before each step of a task, whose episode it is.

    So the run knows which episode's code ended the process, or keeps it from answering.
    """

    def __init__(self, memory: mmap.mmap) -> None:
        super().__init__()
        self._memory = memory

    def call_soon(
        self,
        callback: Callable[[Unpack[Arguments]], object],
        *args: *Arguments,
        context: Context | None = None,
    ) -> asyncio.Handle:
        step: Any = self._step  # a type checker cannot follow arguments of arguments
        return super().call_soon(step, callback, *args, context=context)

    def _step(self, callback: Callable[..., object], *args: Any) -> None:
        MARK.pack_into(self._memory, 0, EPISODE.get())
        try:
            callback(*args)
        finally:
            MARK.pack_into(self._memory, 0, 0)


def main(channel: int, marks: int, texts: int) -> None:
    """Play episodes until the run closes *channel*.

    Args:
        channel: a connected stream socket.
        marks: a file of one number, shared with the run.
        texts: the socket on which the run answers for its tokenizer.
    """
    die_with_parent(channel)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run decides when to stop
    faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=False)
    faulthandler.enable()
    memory = mmap.mmap(marks, MARK.size)
    with asyncio.Runner(loop_factory=lambda: MarkedLoop(memory)) as runner:
        runner.run(EpisodeWorker(channel, texts).serve())
    os._exit(0)  # whatever threads an environment has left


class EpisodeWorker:
    """Plays the episodes of one process."""

    def __init__(self, channel: int, texts: int) -> None:
        self._channel, self._texts = channel, texts
        self._environments: Mapping[int, Environment[Any, Any]] = {}
        self._requests: OrderedDict[int, RolloutRequest] = OrderedDict()
        self._contexts: dict[int, RolloutContext] = {}
        self._episodes: dict[int, asyncio.Task[None]] = {}
        self._waiting: deque[tuple[Any, ...]] = deque()
        self._given_up: set[int] = set()  # of those that wait
        self._starter: asyncio.Task[None] | None = None

    async def serve(self) -> None:
        """Say hello, open what the run sends, and play until it is gone."""
        self._loop = asyncio.get_running_loop()
        self._gone = asyncio.Event()
        self._opened: asyncio.Future[Opening] = self._loop.create_future()
        self._frames = FrameStream(self._received, self._gone.set)
        self._calls = EngineCalls(self._frames)
        await self._frames.connect(socket.socket(fileno=self._channel))
        logging.getLogger().addHandler(_ToRun(self._frames))
        self._frames.send(HELLO, versions())
        opening = await self._opened
        async with AsyncExitStack() as stack:
            try:
                if (folder := _folder_of(opening)) is not None:
                    stack.enter_context(as_current_run(folder))
                self._environments = await self._made(opening, stack)
            except Exception as e:  # noqa: BLE001 - the run says it to the user
                error = (
                    e if isinstance(e, QuintainError) else UsageError(f"{type(e).__name__}: {e}")
                )
                self._frames.send(READY, sendable(error))
            else:
                _leave_old_objects_alone()
                self._frames.send(READY, None)
            await self._gone.wait()

    async def _made(
        self, opening: Opening, stack: AsyncExitStack
    ) -> dict[int, Environment[Any, Any]]:
        """Return the environments, with services of this process and engines of the run."""
        engines = {slot: self._engine(slot, facts) for slot, facts in opening.engines.items()}
        policy = engines[""]
        assert isinstance(policy, RemoteEngine)
        self._policy = policy
        available: dict[str, Any] = {"policy": policy, **engines}
        specs = {place: EnvironmentSpec.of(table) for place, table in opening.environments.items()}
        needed = {slot for spec in specs.values() for slot in spec.own_slots} - set(available)
        services = await stack.enter_async_context(
            started_services(needed_by(needed, opening.services), needed, available)
        )
        rewards = {slot: None for spec in specs.values() for slot in spec.slots}  # the run's
        return {place: spec.make({**rewards, **services}) for place, spec in specs.items()}

    def _engine(self, slot: str, facts: EngineFacts) -> RemoteEngine:
        if facts.context is None:
            return RemoteEngine(self._calls, slot, facts)
        tokenizer: Any = (
            pickle.loads(facts.tokenizer)
            if isinstance(facts.tokenizer, bytes)
            else RemoteTokenizer(os.dup(self._texts), slot, facts.tokenizer)
        )
        return RemoteTokenEngine(self._calls, slot, facts, tokenizer)

    # ---------------------------------------------------------------- what the run sends
    def _received(self, frame: tuple[Any, ...]) -> None:
        match frame:
            case (kind, number, value, error) if kind == ANSWER:
                self._calls.answered(number, value, error)
            case (kind, *play) if kind == PLAY:
                self._waiting.append(tuple(play))
                if self._starter is None or self._starter.done():
                    self._starter = self._loop.create_task(self._start())
            case (kind, number) if kind == CANCEL:
                if (task := self._episodes.get(number)) is not None:
                    task.cancel()
                elif any(number == waiting for waiting, *_ in self._waiting):
                    self._given_up.add(number)
            case (kind,) if kind == PING:
                self._frames.send(PING)
            case (kind, opening) if kind == OPEN:
                self._opened.set_result(pickle.loads(opening))

    async def _start(self) -> None:
        """Begin the waiting episodes, some in each step of the loop, so that it goes on to answer."""
        while self._waiting:
            for _ in range(min(BURST, len(self._waiting))):
                self._begin(*self._waiting.popleft())
            await asyncio.sleep(0)

    def _begin(
        self,
        number: int,
        key: int,
        request: bytes | None,
        settings_key: int,
        settings: dict[str, Any] | None,
        sample: int,
        attempt: int,
    ) -> None:
        """Take what is new to this process, and play an episode unless it was given up."""
        try:
            if settings is not None:
                self._contexts[settings_key] = RolloutContext(engine=self._policy, **settings)
            if request is not None:
                self._keep(key, request)
        except Exception as e:  # noqa: BLE001 - raised again in the run
            self._frames.send(RAISED, number, sendable(e))
            return
        if number in self._given_up:
            self._given_up.remove(number)
            return
        context = copy_context()
        context.run(EPISODE.set, number)
        play = self._play(
            number, self._requests[key], sample, self._contexts[settings_key], attempt
        )
        self._episodes[number] = self._loop.create_task(play, context=context)

    async def _play(
        self,
        number: int,
        request: RolloutRequest,
        sample: int,
        context: RolloutContext,
        attempt: int,
    ) -> None:
        """Play an episode, and tell the run how it ended."""
        calls = _ToolCalls()
        try:
            record_spans(calls)
            rollout = await run_episode(request, sample, context, attempt)
            self._frames.send(DONE, number, _sent(rollout), calls.spans)
        except asyncio.CancelledError:
            return
        except BaseException as e:  # noqa: BLE001 - raised again in the run
            self._frames.send(RAISED, number, sendable(e))
        finally:
            del self._episodes[number]

    def _keep(self, key: int, request: bytes) -> None:
        place, known = pickle.loads(request)
        self._requests[key] = RolloutRequest(environment=self._environments[place], **known)
        if len(self._requests) > REQUESTS:
            self._requests.popitem(last=False)


def _folder_of(opening: Opening) -> RunFolder | None:
    """Return the run folder, where this machine has it."""
    return RunFolder(opening.run, lock=False) if os.path.isdir(opening.run) else None


def _sent(rollout: AnyRollout) -> bytes:
    """Return a pickle of what the run does not know of *rollout*."""
    try:
        return pickled([getattr(rollout, name) for name in SENT])
    except Exception as e:
        raise UsageError(
            f"the result of an episode of {rollout.environment!r} cannot leave its process: {e}. "
            "Define its class at the top of a module"
        ) from e


def _leave_old_objects_alone() -> None:
    """Let the garbage collector look at new objects only, and less often, as a run does while
    episodes run.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 10, 1000)


class _ToolCalls:
    """Keeps the spans of tools. The run has those of turns itself."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, float, float, str, dict[str, Any]]] = []

    def begin(self, span: Span) -> None:
        """Do nothing."""

    def end(self, span: Span) -> None:
        if span.name == "tool":
            self.spans.append((span.name, span.began, span.ended, span.error, span.attributes))


class _ToRun(logging.Handler):
    """Sends log records to the run, which logs them under the same name."""

    def __init__(self, frames: FrameStream) -> None:
        super().__init__(logging.WARNING)
        self._frames = frames
        self._loop = asyncio.get_running_loop()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = (LOG, record.name, record.levelno, record.getMessage())
            self._loop.call_soon_threadsafe(self._frames.send, *line)
        except Exception:  # noqa: BLE001 - a bad format of an author's line, or a closed loop
            self.handleError(record)
