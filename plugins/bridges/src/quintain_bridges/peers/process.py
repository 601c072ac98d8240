"""The service `peer`: processes of another virtual environment, which play tasks of a library."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import AllowInfNan, BaseModel, Strict, TypeAdapter, ValidationError

from quintain import InfrastructureError, Service
from quintain.errors import EnvironmentFault, UsageError
from quintain_scale.workers import python_with

SIDES = Path(__file__).parent / "sides"
LARGEST = 64 << 20
"""Bytes of a line at most."""
END_SECONDS = 5.0
"""That a process may take to end once its output has."""
Kind = Literal["inspect", "verifiers", "verifiers_server"]
Number = Annotated[float, Strict(), AllowInfNan(False)]


class ListedTask(BaseModel):
    """A task, as the other process lists it."""

    prompt: str | None
    answer: Any = None


class TextPart(BaseModel, extra="forbid"):
    """A text of a message."""

    text: str


class FilePart(BaseModel, extra="forbid"):
    """A picture of a message: the path of a file that the task itself names."""

    file: str


class DataPart(BaseModel, extra="forbid"):
    """A picture of a message: a ``data:`` URL."""

    data: str


class Said(BaseModel):
    """A message to the policy."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | list[TextPart | FilePart | DataPart]


class Done(BaseModel, extra="forbid"):
    """A score."""

    value: Number | None
    reason: str = ""
    parts: dict[str, Number] = {}


class Asks(BaseModel):
    """A step that asks the policy."""

    ask: list[Said]


class Ends(BaseModel):
    """The last step."""

    done: Done


STEP: TypeAdapter[Asks | Ends] = TypeAdapter(Asks | Ends)
TASKS = TypeAdapter(list[ListedTask])


def _first(error: ValidationError) -> str:
    found = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, found['loc']))}: {found['msg']}"[:300]


class Peer(Service):
    """Plays tasks of a library in a virtual environment of its own. An episode is a few lines of
    JSON each way; the library decides what the policy is asked, and scores.

    Args:
        kind: whose tasks: ``inspect``, ``verifiers``, or ``verifiers_server`` (the environment of
            that name).
        python: the interpreter of the virtual environment, which need not have Quintain.
        requirements: what pip installs into a virtual environment in place of *python*, such as
            ``["verifiers==0.4.0"]``. It is made once, and kept (docs/workers.md).
        target: the tasks: ``FILE.py:function`` or ``module:function`` of Inspect, a module with a
            taskset of verifiers.
        args: of the function or of the configuration of the taskset; of ``verifiers_server`` the
            fields of the environment, and the ``address`` of a server that runs.
        seconds: that a step may take, or that a server may be silent.
        limit: tasks that are read, as some are endless.
        pictures: a folder in which samples of Inspect may name pictures, beside those of the tasks
            and of their data.
    """

    def __init__(
        self,
        *,
        kind: Kind,
        target: str,
        python: str = "",
        requirements: Sequence[str] = (),
        args: Mapping[str, Any] | None = None,
        seconds: float = 120.0,
        limit: int = 10_000,
        pictures: str = "",
    ) -> None:
        if not (SIDES / f"{kind}_side.py").is_file():
            kinds = ", ".join(get_args(Kind))
            raise UsageError(f"peer: kind is {kind!r}; expected one of {kinds}")
        if bool(python) == bool(requirements):
            raise UsageError("peer: give either `python` or `requirements`")
        if python and not Path(python).expanduser().exists():
            raise UsageError(f"peer: there is no interpreter {python}")
        self.kind, self.seconds = kind, seconds
        self._python, self._requirements = python, tuple(requirements)
        settings = {"args": dict(args or {}), "limit": limit, "seconds": seconds}
        settings["pictures"] = pictures
        self._words = [str(SIDES / f"{kind}_side.py"), target, json.dumps(settings)]
        self._tasks: list[Mapping[str, Any]] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._waiting: dict[int, asyncio.Queue[Mapping[str, Any]]] = {}
        self._numbers = count()
        self._start = asyncio.Lock()

    @cached_property
    def _command(self) -> list[str]:
        """The program and its arguments; a virtual environment that is not there yet is made.

        Raises:
            InfrastructureError: pip cannot install the requirements.
        """
        if self._requirements:
            return [str(python_with(self._requirements)), *self._words]
        return [str(Path(self._python).expanduser()), *self._words]

    def tasks(self) -> Sequence[Mapping[str, Any]]:
        """Return the tasks, each with a ``prompt``, an ``answer`` where it has one, and an ``id``.

        Raises:
            UsageError: the library cannot read them.
            InfrastructureError: its virtual environment cannot be made.
        """
        if self._tasks is None:
            done = subprocess.run(
                [*self._command, "tasks"], capture_output=True, text=True, check=False
            )
            if done.returncode:
                said = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
                raise UsageError(f"peer: {self.kind} cannot read the tasks: {said[:400]}")
            try:
                listed = TASKS.validate_json((done.stdout.splitlines() or [""])[-1])
            except ValidationError as e:
                raise UsageError(f"peer: {self.kind} lists no tasks: {_first(e)}") from e
            self._tasks = [task.model_dump() for task in listed]
        return self._tasks

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.tasks)
        return self

    async def __aexit__(self, *exc: object) -> None:
        process, self._process = self._process, None
        if self._reader is not None:
            self._reader.cancel()
        if process is not None:
            await _killed(process)

    @asynccontextmanager
    async def episode(
        self, index: int, endpoint: Mapping[str, str] | None = None
    ) -> AsyncIterator[PeerEpisode]:
        """Begin the episode of a task; at the end the other process forgets it.

        Args:
            endpoint: the ``url`` and ``key`` at which the policy is asked over HTTP.

        Raises:
            InfrastructureError: the process does not start.
        """
        await self._started()
        number = next(self._numbers)
        self._waiting[number] = asyncio.Queue()
        try:
            await self._send({"id": number, "start": index, "endpoint": endpoint})
            yield PeerEpisode(self, number)
        finally:
            del self._waiting[number]
            if self._process is not None:
                await self._send({"id": number, "end": True})

    async def said(self, number: int, seconds: float | None) -> Mapping[str, Any]:
        """Return what the episode *number* says next.

        Args:
            seconds: at most; ``None`` for no limit of its own.

        Raises:
            EnvironmentFault: the library raised.
            InfrastructureError: the process ended, took too long, lost its own server, or said what
                cannot be read.
            UsageError: the task needs what is not played.
        """
        try:
            told = await asyncio.wait_for(self._waiting[number].get(), seconds)
        except TimeoutError as e:
            raise InfrastructureError(f"{self.kind} did not go on within {seconds:g} s") from e
        if error := told.get("error"):
            if told.get("refused"):
                raise UsageError(f"peer: {self.kind}: {error}")
            kind = InfrastructureError if told.get("lost") else EnvironmentFault
            raise kind(f"{self.kind}: {error}")
        try:
            return STEP.validate_python(told).model_dump()
        except ValidationError as e:
            raise InfrastructureError(f"{self.kind} said what is no step: {_first(e)}") from e

    async def reply(self, number: int, text: str) -> None:
        """Give the reply of the policy."""
        await self._send({"id": number, "reply": text})

    async def _started(self) -> None:
        async with self._start:
            if self._process is not None and self._process.returncode is None:
                return
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                "play",
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                limit=LARGEST,
                start_new_session=True,
            )
            self._reader = asyncio.create_task(self._read(self._process))

    async def _send(self, message: Mapping[str, Any]) -> None:
        process = self._process
        if process is None or process.stdin is None or process.returncode is not None:
            return  # `_read` tells all episodes that it ended
        process.stdin.write(json.dumps(message).encode() + b"\n")
        try:
            await process.stdin.drain()
        except ConnectionError:
            return

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        try:
            async for line in process.stdout:
                told = json.loads(line)
                if told["id"] in self._waiting:
                    self._waiting[told["id"]].put_nowait(told)
            said = f"its process ended with {await _status(process)}"
        except (ValueError, TypeError, KeyError, RecursionError) as e:
            # a line without end is a ValueError, too
            said = f"its process wrote what cannot be read: {str(e)[:200]}"
            await _killed(process)
        for queue in self._waiting.values():
            queue.put_nowait({"error": said, "lost": True})


async def _status(process: asyncio.subprocess.Process) -> int | None:
    """Return the status of a process whose output has ended; it has nothing more to say."""
    try:
        return await asyncio.wait_for(process.wait(), END_SECONDS)
    except TimeoutError:
        await _killed(process)
        return process.returncode


async def _killed(process: asyncio.subprocess.Process) -> None:
    """End a process and those that it started, which would hold its pipes."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), END_SECONDS)


class PeerEpisode:
    """An episode that another process plays.

    Args:
        number: by which the process knows it.
    """

    def __init__(self, peer: Peer, number: int) -> None:
        self._peer, self._number = peer, number

    async def next(self, reply: str | None = None) -> Mapping[str, Any]:
        """Give *reply*, where something was asked. Return what is asked next, ``ask``, or the
        score, ``done``.

        Raises:
            As `Peer.said`.
        """
        if reply is not None:
            await self._peer.reply(self._number, reply)
        return await self._peer.said(self._number, self._peer.seconds)

    async def score(self) -> Mapping[str, Any]:
        """Return the score of an episode whose policy is asked at its endpoint, however long the
        turns take.

        Raises:
            As `Peer.said`.
        """
        told = await self._peer.said(self._number, None)
        done: Mapping[str, Any] = told["done"]
        return done
