"""One episode process as the run sees it: its start, its episodes, the engine calls that it makes,
and how it ended.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import Any

from quintain import Engine, InfrastructureError, Rollout, TokenEngine
from quintain.data import checked_turn
from quintain.errors import UsageError
from quintain.rollouts import RolloutContext, RolloutRequest, Span, add_span
from quintain.types import AnyRollout

from .child import Child, End
from .episode_worker import REQUESTS, SENT
from .frames import (
    ANSWER,
    ASK,
    CANCEL,
    DONE,
    DROP,
    HELLO,
    LENGTH,
    LOG,
    OPEN,
    PING,
    PLAY,
    RAISED,
    READY,
    FrameStream,
    Stream,
    packed,
    pickled,
    sendable,
    unpacked_ids,
)

LINGERS = 1.0
"""Seconds that a process gets to end after it has closed its connection."""
_log = logging.getLogger("quintain.workers")


class Death(Exception):
    """The process of an episode ended before the episode did.

    Attributes:
        how: for people, such as ``"ended with status 3"``.
        ours: it was killed from outside, or nobody's code ran, so that no episode is to blame.
        own: whether the code of the episode that hears of it ran then.
    """

    def __init__(self, how: str, *, ours: bool, own: bool) -> None:
        super().__init__(how)
        self.how, self.ours, self.own = how, ours, own


@dataclass(frozen=True, kw_only=True)
class Launch:
    """How a process starts.

    Attributes:
        python: the interpreter, with the arguments before ``-c``; on another machine that machine's.
        path: where it finds modules; ``None`` leaves its own.
        requirements: of the virtual environment of the interpreter; empty without one.
        opening: a pickle of the `Opening`.
        versions: that it must have.
        start_seconds: how long it may take.
        fix: the next thing to do if it does not start.
    """

    python: Sequence[str]
    path: Sequence[str] | None
    requirements: tuple[str, ...]
    opening: bytes
    versions: Mapping[str, str]
    start_seconds: float
    fix: str = ""


@dataclass(eq=False)
class _Playing:
    """An episode that a process plays."""

    request: RolloutRequest
    context: RolloutContext
    ended: asyncio.Future[Any]
    values: Context  # of the task that asked for it, by which a reproducible engine knows it
    calls: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    engines: dict[Any, Engine] = field(default_factory=dict)


class EpisodeProcess:
    """A running process.

    Attributes:
        load: episodes that it plays.
        played: episodes that it was given.
        spent: another one is to take its place.
        draining: it gets no more episodes.
        how: it ended, once it is `dead`.
    """

    def __init__(
        self, launch: Launch, engines: Mapping[str, Engine], name: str, child: Child
    ) -> None:
        self._launch, self._engines, self.name, self._child = launch, engines, name, child
        self.played, self.spent, self.draining = 0, False, False
        self._playing: dict[int, _Playing] = {}
        self._of_call: dict[int, _Playing] = {}
        self._requests: OrderedDict[int, tuple[int, RolloutRequest]] = OrderedDict()
        self._settings: dict[Any, int] = {}
        self._serial = 0
        self._frames: FrameStream | None = None
        self.dead = asyncio.Event()
        self.how = self._why = self._words = ""
        self._pinged, self._silent = -1, 0.0

    # ---------------------------------------------------------------- start and end
    async def start(self) -> None:
        """Start it, and wait until it can play.

        Raises:
            InfrastructureError: it ends, is too slow, or has other versions.
            UsageError: an environment or a service does not start in it.
        """
        self._loop = asyncio.get_running_loop()
        self._hello: asyncio.Future[dict[str, str]] = self._loop.create_future()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        try:
            ours, texts = await self._child.start()
        except BaseException:
            self.dead.set()
            raise
        self.name += self._child.where
        frames, self._texts = FrameStream(self._received, self._lost), _Texts(self._engines)
        self._frames = frames
        connecting = asyncio.gather(frames.connect(ours), self._texts.connect(texts))
        try:
            await asyncio.shield(connecting)  # so that both are there to be closed
            async with asyncio.timeout(self._launch.start_seconds):
                self._check_versions(await self._hello)
                self._send(OPEN, self._launch.opening)
                await self._ready
        except TimeoutError as e:
            self.kill()
            await self.dead.wait()
            raise InfrastructureError(
                f"{self.name} did not start within {self._launch.start_seconds:g} s{self._words}. "
                "Fix: raise workers.args.start_seconds"
            ) from e
        finally:
            if not self._can_play:
                self.kill()
                await self.dead.wait()

    @property
    def _can_play(self) -> bool:
        return self._ready.done() and not self._ready.cancelled() and not self._ready.exception()

    def _check_versions(self, theirs: Mapping[str, str]) -> None:
        for name, wanted in self._launch.versions.items():
            if (found := theirs.get(name, "none")) != wanted:
                raise InfrastructureError(
                    f"{self.name} has {name} {found}, the run has {wanted}{self._launch.fix}"
                )

    def _send(self, *frame: Any) -> None:
        if self._frames is not None:
            self._frames.send(*frame)

    @property
    def pid(self) -> int:
        """The number of the process on its machine."""
        return self._child.pid

    @property
    def load(self) -> int:
        return len(self._playing)

    def kill(self, why: str = "") -> None:
        """End it and all that it started, by SIGKILL; *why* says it to those who wait."""
        self._why = self._why or why
        self._child.kill()
        if self._frames is not None:
            self._frames.close()

    def _lost(self) -> None:
        self._loop.create_task(self._bury(), name="quintain-episode-process-ends")

    async def _bury(self) -> None:
        """Find out how the process ended, and tell it those who wait for it."""
        end = await self._child.ended(LINGERS)
        if end is None:
            self._why = self._why or "closed its connection"
            self._child.kill()
            end = await self._child.ended() or End(why="was lost")
        self._words = end.words
        how = (self._why or end.how) + end.words
        ours = not end.episode or (not self._why and end.killed)
        for future in (self._hello, self._ready):
            if not future.done():
                future.set_exception(InfrastructureError(f"{self.name} {how}{self._launch.fix}"))
                future.exception()  # whoever waits for it gets it; nobody may
        for number, playing in [*self._playing.items()]:
            for task in playing.calls.values():
                task.cancel()
            if not playing.ended.done():
                playing.ended.set_exception(Death(how, ours=ours, own=number == end.episode))
        self.how = how
        self._texts.close()
        self.dead.set()

    def resident_bytes(self) -> int:
        """Return the memory that it holds; 0 where the system does not say."""
        return self._child.held

    def blocked(self, seconds: float) -> float:
        """Return for how long it has not answered, where *seconds* have passed since the last call."""
        assert self._frames is not None
        if self._frames.heard != self._pinged:
            self._pinged, self._silent = self._frames.heard, 0.0
            self._send(PING)
        else:
            self._silent += seconds
        self._child.tidy()
        return self._silent

    async def end_blocked(self, seconds: float) -> None:
        """Kill it because its loop does not answer; the message has the line that runs."""
        where = await self._child.line()
        self.kill(
            f"did not answer for {seconds:.0f} s, blocked by {where or 'its code'}. "
            "Fix: await it (asyncio.to_thread), or raise workers.args.stall_seconds"
        )

    # ---------------------------------------------------------------- episodes
    async def drained(self) -> None:
        """Wait until it plays no episode, or is dead."""
        ends = [playing.ended for playing in self._playing.values()]
        if ends:
            await asyncio.wait(ends)

    def knows(self, request: RolloutRequest) -> bool:
        """Return whether it has *request* already."""
        return id(request) in self._requests

    async def play(
        self,
        place: int,
        request: RolloutRequest,
        sample: int,
        context: RolloutContext,
        attempt: int,
        number: int,
    ) -> AnyRollout:
        """Play an episode of the environment at *place*, under a *number* of its own.

        Raises:
            Death: the process ended first.
        """
        playing = _Playing(request, context, self._loop.create_future(), copy_context())
        settings = {"sampling": context.sampling, "run_seed": context.run_seed}
        settings_key = self._settings.get((context.sampling, context.run_seed))
        new_settings = settings_key is None
        if settings_key is None:
            settings_key = len(self._settings)
            self._settings[context.sampling, context.run_seed] = settings_key
        key, payload = self._sent(place, request)
        self._playing[number] = playing
        self.played += 1
        self._send(
            PLAY,
            number,
            key,
            payload,
            settings_key,
            settings if new_settings else None,
            sample,
            attempt,
        )
        try:
            data, tool_calls = await playing.ended
        except asyncio.CancelledError:
            self._send(CANCEL, number)
            for task in playing.calls.values():
                task.cancel()
            raise
        finally:
            del self._playing[number]
        for *span, attributes in tool_calls:
            add_span(*span, **attributes)
        known = dict(zip(SENT, _loaded(data, request), strict=True))
        return Rollout(
            task=request.task,
            environment=request.name,
            group=request.index,
            sample=sample,
            **known,
        )

    def _sent(self, place: int, request: RolloutRequest) -> tuple[int, bytes | None]:
        """Return the key of *request* in the process, and what to send of it: nothing again."""
        known = self._requests.get(id(request))
        if known is not None:
            return known[0], None
        self._serial += 1
        fields = {
            name: getattr(request, name)
            for name in ("task", "group_size", "name", "index", "visit", "system", "seed", "step")
        }
        try:
            payload = pickled((place, fields))
        except Exception as e:
            raise UsageError(
                f"a task of {request.name!r} cannot be sent to an episode process: {e}. Define its "
                "class at the top of a module, with fields of plain data"
            ) from e
        # it holds the request, so that no other one gets its id
        self._requests[id(request)] = self._serial, request
        if len(self._requests) > REQUESTS:
            self._requests.popitem(last=False)
        return self._serial, payload

    def _received(self, frame: tuple[Any, ...]) -> None:
        match frame:
            case (kind, episode, number, address, method, arguments) if kind == ASK:
                self._serve(episode, number, address, method, arguments)
            case (kind, episode, data, tool_calls) if kind == DONE:
                playing = self._playing.get(episode)
                if playing is not None and not playing.ended.done():
                    playing.ended.set_result((data, tool_calls))
            case (kind, episode, error) if kind == RAISED:
                playing = self._playing.get(episode)
                if playing is not None and not playing.ended.done():
                    playing.ended.set_exception(error)
            case (kind, number) if kind == DROP:
                playing = self._of_call.get(number)
                if playing is not None:
                    playing.calls[number].cancel()
            case (kind, name, level, message) if kind == LOG:
                logging.getLogger(name).log(level, "%s", message)
            case (kind, theirs) if kind == HELLO:
                if not self._hello.done():
                    self._hello.set_result(theirs)
            case (kind, error) if kind == READY:
                if self._ready.done():
                    pass
                elif error is None:
                    self._ready.set_result(None)
                else:
                    self._ready.set_exception(error)

    # ---------------------------------------------------------------- calls of engines
    def _serve(
        self, episode: int, number: int, address: Any, method: str, arguments: tuple[Any, ...]
    ) -> None:
        playing = self._playing.get(episode)
        if playing is None and episode:  # it was cancelled
            return
        if playing is None:  # a service of the process asks
            work = self._answer(number, self._engines[address[0]], "", method, arguments)
            self._loop.create_task(work)
            return
        try:
            engine = self._engine_of(playing, address)
        except Exception as e:  # noqa: BLE001 - an engine of a plugin may raise anything
            self._send(ANSWER, number, None, sendable(e))
            return
        self._of_call[number] = playing
        task = playing.calls[number] = self._loop.create_task(
            self._answer(number, engine, address[1], method, arguments),
            context=playing.values.copy(),
        )

        def ended(_: asyncio.Task[None]) -> None:
            del playing.calls[number], self._of_call[number]

        task.add_done_callback(ended)

    def _engine_of(self, playing: _Playing, address: tuple[str, str, int | None]) -> Engine:
        """Return the engine that a session in this process would ask."""
        engine = playing.engines.get(address)
        if engine is None:
            slot, player, seed = address
            if slot:
                engine = self._engines[slot]
            else:
                engine = playing.context.engine.for_task(playing.request.task)
            engine = engine.for_player(player) if seed is None else engine.for_episode(seed)
            playing.engines[address] = engine
        return engine

    async def _answer(
        self, number: int, engine: Engine, player: str, method: str, arguments: tuple[Any, ...]
    ) -> None:
        value: Any = None
        error: BaseException | None = None
        try:
            if method == "score":
                assert isinstance(engine, TokenEngine)
                ids = unpacked_ids(arguments[0])
                value = [*await engine.score(ids, *arguments[1:])]
            else:
                with Span("turn", player=player, engine=engine.name) as span:
                    if method == "reply":
                        value = await engine.reply(*arguments)
                        span.attributes["finish"] = value.finish
                    else:
                        assert isinstance(engine, TokenEngine)
                        ids = unpacked_ids(arguments[0])
                        sampled = await engine.sample(ids, *arguments[1:])
                        # its session knows no version but those of what it gets
                        sampled = checked_turn(engine, len(ids), arguments[1], sampled)
                        value = packed(sampled)
                        span.attributes.update(tokens=sampled.tokens, finish=sampled.finish)
        except asyncio.CancelledError:
            return
        except Exception as e:  # noqa: BLE001 - whatever it is, the session meets it
            error = sendable(e)
        self._send(ANSWER, number, value, error)


def _loaded(data: bytes, request: RolloutRequest) -> list[Any]:
    try:
        values: list[Any] = pickle.loads(data)
    except Exception as e:
        raise UsageError(
            f"the result of an episode of {request.name!r} cannot be read in the run: {e}. Define "
            "its class in a module that needs none of the environment's other packages"
        ) from e
    return values


class _Texts(Stream):
    """Answers what a process asks of a tokenizer."""

    def __init__(self, engines: Mapping[str, Engine]) -> None:
        super().__init__()
        self._engines = engines

    def data_received(self, data: bytes) -> None:
        self._arrived += data
        while len(self._arrived) >= LENGTH.size:
            end = LENGTH.size + LENGTH.unpack_from(self._arrived)[0]
            if len(self._arrived) < end:
                return
            slot, method, arguments, named = pickle.loads(self._arrived[LENGTH.size : end])
            del self._arrived[:end]
            engine = self._engines[slot]
            assert isinstance(engine, TokenEngine)
            value: Any = None
            error: BaseException | None = None
            try:
                value = getattr(engine.tokenizer, method)(*arguments, **named)
            except Exception as e:  # noqa: BLE001 - such as a template that refuses messages
                error = sendable(e)
            payload = pickle.dumps((value, error))
            if self._transport is not None:
                self._transport.write(LENGTH.pack(len(payload)) + payload)
