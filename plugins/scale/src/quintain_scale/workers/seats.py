"""Episode processes on other machines, as the run sees them: a cluster starts a watcher for each,
`quintain_scale.workers.join`, which starts the process and says how it ended.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections.abc import Callable
from functools import partial
from itertools import count
from multiprocessing import AuthenticationError
from typing import Any

from quintain import InfrastructureError
from quintain.interfaces import PlacedProcess, ProcessCluster, ProcessRequest
from quintain.process import welcomed

from .child import End
from .episode_process import Launch
from .frames import (
    ENDED,
    FAILED,
    FRAMES,
    HELD,
    KILL,
    LINE,
    SPAWN,
    SPAWNED,
    TEXTS,
    TOKEN,
    FrameStream,
)

LOOK = 1.0
"""Seconds between two looks at a watcher that does not come."""
TOLD = 10.0
"""Seconds that a watcher gets to say how a process ended that was killed."""
_log = logging.getLogger("quintain.workers")


class Door:
    """Where watchers and their processes come to: a port of this machine.

    Args:
        host: address at which they reach it.
    """

    def __init__(self, host: str) -> None:
        family = socket.getaddrinfo(host, 0)[0][0]
        self._server = socket.create_server((host, 0), family=family, backlog=1024)
        self._server.setblocking(False)
        self.address = f"{host}:{self._server.getsockname()[1]}"
        self.token = secrets.token_hex()
        self._awaited: dict[str, Callable[[socket.socket, str], None]] = {}
        self._loop = asyncio.get_running_loop()
        self._work = {self._loop.create_task(self._serve())}

    def expect(self, name: str, take: Callable[[socket.socket, str], None]) -> None:
        """Give *take* the connections of peers that call themselves *name*, and their machine."""
        self._awaited[name] = take

    def forget(self, name: str) -> None:
        """Refuse peers of that *name*."""
        self._awaited.pop(name, None)

    async def _serve(self) -> None:
        while True:
            try:
                peer, origin = await self._loop.sock_accept(self._server)
            except OSError as error:  # such as too many open files
                _log.warning("nobody can come to %s: %s", self.address, error)
                await asyncio.sleep(LOOK)
                continue
            task = self._loop.create_task(self._welcome(peer, str(origin[0])))
            self._work.add(task)
            task.add_done_callback(self._work.discard)
            # Cancelled before its first step, it closes nothing itself.
            task.add_done_callback(partial(_close_if_cancelled, peer))

    async def _welcome(self, peer: socket.socket, origin: str) -> None:
        try:
            said = await asyncio.to_thread(welcomed, peer, self.token.encode())
            take = self._awaited.get(str(said["name"]))
            if take is None:  # it was late, or comes back to a run that ends
                peer.close()
            else:
                take(peer, str(said["host"]))
        except (AuthenticationError, OSError, EOFError, ValueError, LookupError) as error:
            peer.close()
            reason = str(error) or "it does not speak as episode processes do"
            _log.warning("refused a connection from %s: %s", origin, reason)

    async def close(self) -> None:
        """Listen no more."""
        work = [*self._work]
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)
        self._server.close()


def _close_if_cancelled(peer: socket.socket, task: asyncio.Task[None]) -> None:
    if task.cancelled():
        peer.close()


class Seat:
    """A place on the cluster for an episode process, with the watcher there.

    Attributes:
        name: for people.
        host: the machine of the watcher; empty while there is none.
    """

    def __init__(self, cluster: ProcessCluster, door: Door, name: str) -> None:
        self._cluster, self._door, self.name, self.host = cluster, door, name, ""
        self._key = secrets.token_hex(4)
        self._placed: PlacedProcess | None = None
        self._watcher: FrameStream | None = None
        self._came = asyncio.Event()
        self._children: dict[int, SeatedProcess] = {}
        self._numbers = count(1)

    def process(self, launch: Launch) -> SeatedProcess:
        """Return a process that can start here."""
        return SeatedProcess(self, self._door, launch, next(self._numbers), self._key)

    def hear(self, number: int, child: SeatedProcess) -> None:
        """Pass on what the watcher says of the process of that *number*."""
        self._children[number] = child

    def forget(self, number: int) -> None:
        """Ignore what the watcher says of a process that has ended."""
        self._children.pop(number, None)

    async def reach(self, seconds: float) -> None:
        """Wait for the watcher, which the cluster starts if it has not.

        Raises:
            InfrastructureError: it ends, or is not there within *seconds*.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while self._watcher is None:
            if self._placed is None:
                self._door.expect(self._key, self._taken)
                (self._placed,) = await asyncio.to_thread(self._cluster.start, [self._job()])
            self._came.clear()
            try:
                async with asyncio.timeout(LOOK):
                    await self._came.wait()
                continue
            except TimeoutError:
                pass
            if (said := await asyncio.to_thread(_ended, self._placed)) is not None:
                await self.end()
                raise InfrastructureError(
                    f"{self.name} ended on the cluster before it came to {self._door.address}: {said}"
                )
            if loop.time() > deadline:
                where = await asyncio.to_thread(_host, self._placed)
                raise InfrastructureError(
                    f"{self.name} has not come from "
                    + (where or "the cluster, which has no room for it,")
                    + f" to {self._door.address} within {seconds:g} s. Fix: raise "
                    "workers.args.start_seconds"
                )

    def _job(self) -> ProcessRequest:
        return ProcessRequest(
            role="worker",
            words=("-m", "quintain_scale.workers.join", self._door.address, "--seat", self._key),
            environment={TOKEN: self._door.token},
        )

    def _taken(self, peer: socket.socket, host: str) -> None:
        """Take a watcher, in place of one that has started again."""
        if self._watcher is not None:
            self._watcher.close()
            self._lost(self._watcher)
        stream = FrameStream(self._received, lambda: self._lost(stream))
        self._watcher, self.host = stream, host
        connecting = asyncio.get_running_loop().create_task(stream.connect(peer))
        connecting.add_done_callback(lambda _: self._came.set())

    def _lost(self, stream: FrameStream) -> None:
        if stream is self._watcher:
            self._watcher = None
            for child in [*self._children.values()]:
                child.lost(f"was lost with its watcher on {self.host}")

    def _received(self, frame: tuple[Any, ...]) -> None:
        kind, number, *rest = frame
        if (child := self._children.get(number)) is not None:
            child.received(kind, *rest)

    def send(self, *frame: Any) -> None:
        """Tell the watcher, if there is one."""
        if self._watcher is not None:
            self._watcher.send(*frame)

    async def end(self) -> None:
        """End the watcher, and give its room back."""
        self._door.forget(self._key)  # a watcher comes again whenever its connection is lost
        if self._watcher is not None:
            self._watcher.close()
        placed, self._placed = self._placed, None
        if placed is not None:
            await asyncio.to_thread(placed.end)


def _ended(placed: PlacedProcess) -> str | None:
    return placed.ended


def _host(placed: PlacedProcess) -> str:
    return placed.host


class SeatedProcess:
    """A process at a seat, see `Child`."""

    def __init__(self, seat: Seat, door: Door, launch: Launch, number: int, key: str) -> None:
        self._seat, self._door, self._launch, self._number = seat, door, launch, number
        self._names = {end: f"{key}/{number}/{end}" for end in (FRAMES, TEXTS)}
        self.pid = self.held = 0
        self._loop = asyncio.get_running_loop()
        self._connections: dict[str, asyncio.Future[socket.socket]] = {
            end: self._loop.create_future() for end in self._names
        }
        self._spawned: asyncio.Future[int] = self._loop.create_future()
        self._end: asyncio.Future[End] = self._loop.create_future()
        self._line: asyncio.Future[str] = self._loop.create_future()
        self._killed = False

    async def start(self) -> tuple[socket.socket, socket.socket]:
        seconds, wanted = self._launch.start_seconds, self._launch.requirements
        try:
            await self._seat.reach(seconds)
            for end, name in self._names.items():
                self._door.expect(name, partial(self._take, end))
            self._seat.hear(self._number, self)
            self._seat.send(SPAWN, self._number, self._names, wanted, self._launch.path)
            async with asyncio.timeout(None if wanted else seconds):  # pip takes its time
                self.pid = await self._spawned
                return await self._connections[FRAMES], await self._connections[TEXTS]
        except BaseException as error:
            self.kill()
            self._seat.forget(self._number)
            for connection in self._connections.values():
                if connection.done() and not connection.cancelled():
                    connection.result().close()
            if isinstance(error, TimeoutError):
                raise InfrastructureError(
                    f"{self._seat.name} was not started on {self._seat.host} within {seconds:g} s. "
                    "Fix: raise workers.args.start_seconds"
                ) from error
            raise
        finally:
            for name in self._names.values():
                self._door.forget(name)

    def _take(self, end: str, peer: socket.socket, host: str) -> None:
        self._door.forget(self._names[end])
        self._connections[end].set_result(peer)

    @property
    def where(self) -> str:
        return f" on {self._seat.host}"

    def received(self, kind: int, *rest: Any) -> None:
        """Take a word of the watcher."""
        if kind == HELD:
            (self.held,) = rest
        elif kind == SPAWNED and not self._spawned.done():
            self._spawned.set_result(*rest)
        elif kind == FAILED and not self._spawned.done():
            self._spawned.set_exception(*rest)
            self._spawned.exception()  # whoever waits for it gets it; nobody may
        elif kind == ENDED and not self._end.done():
            self._end.set_result(*rest)
            self._seat.forget(self._number)
        elif kind == LINE and not self._line.done():
            self._line.set_result(*rest)

    def lost(self, why: str) -> None:
        """Take it as ended: nobody says how."""
        self._seat.forget(self._number)
        if not self._spawned.done():
            self._spawned.set_exception(InfrastructureError(f"{self._seat.name} {why}"))
            self._spawned.exception()  # whoever waits for it gets it; nobody may
        if not self._end.done():
            self._end.set_result(End(why=why))

    def kill(self) -> None:
        self._killed = True
        self._seat.send(KILL, self._number)

    async def ended(self, seconds: float | None = None) -> End | None:
        if seconds is None and self._killed:
            seconds = TOLD
        await asyncio.wait({self._end}, timeout=seconds)
        return self._end.result() if self._end.done() else None

    async def line(self) -> str:
        self._line = self._loop.create_future()
        self._seat.send(LINE, self._number)
        await asyncio.wait({self._line}, timeout=TOLD)
        return self._line.result() if self._line.done() else ""

    def tidy(self) -> None:
        """Do nothing: the watcher does it."""
