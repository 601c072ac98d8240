"""Agents that are programs in a sandbox: the trainer's side of the relay that is their only way
out.

The box has no network. `relay_main`, inside, serves HTTP on the box's own 127.0.0.1 and speaks with
this module over standard input and output. Requests are answered by the episode's endpoint, and by
nothing else. Messages come from a box that runs programs of a policy, so they are parsed strictly
and bounded; an invalid one ends the program.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from quintain import InfrastructureError
from quintain.errors import UsageError
from quintain_gateway import Endpoint
from quintain_gateway.api import ApiRequest, ApiResponse, answer, key_of, route
from quintain_gateway.errors import ApiError, too_large
from quintain_sandbox import LineTimeout, LineTooLong, ProbedSandbox, ProgramLimits, RunningProgram

from .processes import Ended

SOURCE = Path(__file__).with_name("relay_main.py").read_bytes()


def boot(size: int) -> str:
    """Return code that executes the *size* bytes that come first on standard input: no listing of
    processes shows them.
    """
    return (
        f"import os\nn, code = {size}, b''\nwhile n > len(code): code += os.read(0, n - "
        f"len(code))\nexec(code)"
    )


RELAY = ("python3", "-I", "-c", boot(len(SOURCE)))
START_SECONDS = 30.0
"""How long the relay may take to start on a loaded machine."""
MOST_OPEN = 256
"""Requests of an episode at one time; further ones wait in the box."""
WINDOW = 1 << 20
"""Bytes that the relay sends ahead of what was read here."""
UNREAD = 4 * WINDOW
"""Bytes that nobody has read yet, more than which ends the program; a relay that keeps the window
stays below it.
"""
UNSENT = 1 << 20
"""Bytes that wait to be read by the relay, from which on responses wait."""
BODIES = 2
"""Bodies of the largest size, or as many bytes in smaller ones, that are held for an episode at one
time.
"""
PIECE = 48 << 10
"""Bytes of a body in one message."""
LINE = 1 << 17
"""Most bytes of one message."""
FRAMES = 16
"""Messages after which other tasks run."""


class Stopped(Exception):
    """The program did not end by itself: a limit of the sandbox ended it (``late``: the one on
    time), or it broke the relay's protocol.
    """

    def __init__(self, message: str, *, late: bool = False) -> None:
        super().__init__(message)
        self.late = late


def _decoded(text: object) -> bytes:
    if not isinstance(text, str):
        raise ValueError("not a string")
    return base64.b64decode(text, validate=True)


_Bytes = Annotated[bytes, Field(min_length=1, max_length=PIECE), BeforeValidator(_decoded)]
_Id = Annotated[int, Field(ge=1, le=1 << 53)]


class _Frame(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class _Open(_Frame):
    do: Literal["open"]
    id: _Id
    method: Annotated[str, Field(max_length=16)]
    path: Annotated[str, Field(max_length=2048)]
    type: Annotated[str, Field(max_length=256)]
    authorization: Annotated[str, Field(max_length=1024)]
    api_key: Annotated[str, Field(max_length=1024)] = ""


class _Data(_Frame):
    do: Literal["data"]
    id: _Id
    data: _Bytes


class _End(_Frame):
    do: Literal["end"]
    id: _Id


class _Done(_Frame):
    do: Literal["done"]
    id: _Id


class _Output(_Frame):
    do: Literal["output"]
    stream: Literal["stdout", "stderr", "file"]
    data: _Bytes


class _Exited(_Frame):
    do: Literal["exited"]
    status: Annotated[int, Field(ge=0, le=255)]


class _Refused(_Frame):
    do: Literal["refused"]
    what: Literal["program", "loopback"]
    reason: Annotated[str, Field(max_length=8192)]


_FRAMES: TypeAdapter[Any] = TypeAdapter(
    Annotated[_Open | _Data | _End | _Done | _Output | _Exited, Field(discriminator="do")]
)
_REFUSALS = TypeAdapter(_Refused)


@dataclass(kw_only=True)
class _Request:
    """A request from its first message to the one that says that the agent is done with it."""

    head: _Open
    body: bytearray = field(default_factory=bytearray)
    size: int = 0
    error: ApiError | None = None
    task: asyncio.Task[None] | None = None


async def run(
    sandbox: ProbedSandbox,
    endpoint: Endpoint,
    argv: Sequence[str],
    stdin: bytes,
    variables: Mapping[str, str],
    *,
    files: Mapping[str, bytes],
    limits: ProgramLimits,
    most: int,
    most_body: int,
    result_file: str = "",
) -> Ended:
    """Run *argv* in a new box until it exits; whatever else it started ends with it, also by a
    cancellation.

    It finds an endpoint at the address of the variables that *endpoint* defines, with a key that is
    valid there alone.

    Args:
        variables: further environment variables.
        files: of its working directory.
        most: bytes of standard output, of standard error and of *result_file* that are kept.
        most_body: bytes of a request's body.

    Raises:
        Stopped: it did not end by itself.
        UsageError: the box has no such program, or *files* do not fit.
        InfrastructureError: the sandbox failed, or has no ``python3`` or no loopback device.
    """
    key = secrets.token_urlsafe(16)
    mine = endpoint.environment
    config = {
        "argv": list(argv),
        "stdin": base64.b64encode(stdin).decode(),
        "variables": {
            **variables,
            **{name: key for name, value in mine.items() if value == endpoint.api_key},
        },
        "addresses": {
            name: urlsplit(value).path for name, value in mine.items() if value != endpoint.api_key
        },
        "most": most,
        "file": result_file,
        "body": most_body,
        "window": WINDOW,
        "open": MOST_OPEN,
    }
    async with sandbox.start(files, RELAY, limits, unread=UNREAD) as program:
        await program.write(SOURCE + json.dumps(config).encode() + b"\n")
        await _ready(program)
        tunnel = Tunnel(program, endpoint, key, limits=limits, most=most, most_body=most_body)
        try:
            return await tunnel.serve()
        finally:
            await tunnel.close()


async def _ready(program: RunningProgram) -> None:
    """Wait until the relay listens; before that, nothing of a policy runs."""
    try:
        line = await program.read_line(seconds=START_SECONDS)
    except LineTimeout:
        line = b""
    try:
        if json.loads(line) == {"do": "ready"}:
            return
        refused = _REFUSALS.validate_json(line)
    except ValueError:
        result = await program.close()
        error_text = (
            result.stderr[-500:].decode("utf-8", "replace").strip() or f"status {result.status}"
        )
        raise InfrastructureError(
            f"an agent in a sandbox needs a python3 of 3.9 or later in the box: {error_text}"
        ) from None
    if refused.what == "program":
        raise UsageError(
            f"agent-sandboxed: {refused.reason} in the box; it has its own programs and the files "
            f"of `files`"
        )
    raise InfrastructureError(refused.reason)


class Tunnel:
    """Answers the requests of one program.

    Args:
        key: that requests must have.
        limits: of the program, for messages.
    """

    def __init__(
        self,
        program: RunningProgram,
        endpoint: Endpoint,
        key: str,
        *,
        limits: ProgramLimits,
        most: int,
        most_body: int,
    ) -> None:
        self._program, self._endpoint, self._key, self._limits = program, endpoint, key, limits
        self._most, self._most_body = most, most_body
        self._requests: dict[int, _Request] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._last = self._held = self._read = 0
        self._left = {"stdout": bytearray(), "stderr": bytearray(), "file": bytearray()}

    async def serve(self) -> Ended:
        """Answer requests until the program has exited; raises as `run`."""
        count = 0
        while True:
            frame = await self._next()
            if isinstance(frame, _Exited):
                if frame.status == 137 and (await self._program.close()).status == "memory":
                    self._stop("memory")
                streams = {
                    name: data.decode("utf-8", "replace") for name, data in self._left.items()
                }
                return Ended(status=frame.status, **streams)
            if isinstance(frame, _Output):
                left = self._left[frame.stream]
                left += frame.data
                if len(left) > self._most:
                    self._break(
                        f"{frame.stream} is longer than the {self._most} bytes that are kept"
                    )
            elif isinstance(frame, _Open):
                self._open(frame)
            else:
                self._advance(frame)
            count += 1
            if count % FRAMES == 0:  # a flood must not keep other episodes waiting
                await asyncio.sleep(0)

    async def close(self) -> None:
        """Cancel the requests."""
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _next(self) -> Any:
        try:
            line = await self._program.read_line(limit=LINE)
        except LineTooLong as e:
            self._break(str(e))
        if not line:
            result = await self._program.close()
            self._stop(result.status)
        self._read += len(line)
        if self._read >= WINDOW // 4:
            await self._program.write(json.dumps({"taken": self._read}).encode() + b"\n")
            self._read = 0
        try:
            return _FRAMES.validate_json(line)
        except ValidationError as e:
            first = e.errors(include_url=False, include_input=False)[0]
            self._break(f"{'.'.join(map(str, first['loc'])) or 'a message'}: {first['msg']}")

    def _open(self, frame: _Open) -> None:
        if frame.id <= self._last or len(self._requests) >= MOST_OPEN:
            self._break(f"request {frame.id} after {self._last}, with {len(self._requests)} open")
        self._last = frame.id
        self._requests[frame.id] = _Request(head=frame)

    def _advance(self, frame: _Data | _End | _Done) -> None:
        request = self._requests.get(frame.id)
        if request is None or (request.task is not None and not isinstance(frame, _Done)):
            self._break(f"{frame.do!r} of request {frame.id}, which is not open")
        if isinstance(frame, _Data):
            request.size += len(frame.data)
            self._keep(request, frame.data)
        elif isinstance(frame, _End):
            request.task = task = asyncio.get_running_loop().create_task(self._answer(request))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            del self._requests[frame.id]
            self._held -= len(request.body)
            request.body.clear()
            if request.task is not None:
                request.task.cancel()

    def _keep(self, request: _Request, data: bytes) -> None:
        """Add to a body, unless that is more than may be held."""
        if request.error is not None:
            return
        if request.size > self._most_body:
            request.error = too_large(self._most_body)
        elif self._held + len(data) > BODIES * self._most_body:
            message = (
                f"the bodies of {len(self._requests)} requests have {self._held:,} bytes; send "
                f"fewer at one time"
            )
            request.error = ApiError(429, "too_many_requests", message, retry=True)
        if request.error is None:
            request.body += data
            self._held += len(data)
        else:
            self._held -= len(request.body)
            request.body.clear()

    async def _answer(self, request: _Request) -> None:
        try:
            response = await self._response(request)
        except ApiError as e:
            response = ApiResponse.of(e, request.head.path)
        except Exception as e:
            logging.getLogger(__name__).exception("a request from a sandbox failed")
            error = ApiError(500, "internal_error", f"{type(e).__name__}: {e}")
            response = ApiResponse.of(error, request.head.path)
        length = len(response.body) if response.events is None else None
        head = {"status": response.status, "headers": dict(response.headers), "length": length}
        data = bytearray(response.body)
        for event in response.events or ():
            data += event.encode()
            if len(data) >= PIECE:
                head = await self._send(request.head.id, head, data)
        while len(data) > PIECE:
            head = await self._send(request.head.id, head, data)
        await self._send(request.head.id, head, data, end=True)

    async def _send(
        self, number: int, head: Mapping[str, Any], data: bytearray, *, end: bool = False
    ) -> dict[str, Any]:
        """Send the first piece of *data*, and take it away."""
        piece = base64.b64encode(data[:PIECE]).decode()
        del data[:PIECE]
        await self._program.write(
            json.dumps({"id": number, **head, "data": piece, "end": end}).encode() + b"\n"
        )
        await self._program.drain(UNSENT)
        return {}

    async def _response(self, request: _Request) -> ApiResponse:
        head = request.head
        path = head.path.partition("?")[0]
        route(head.method, path)
        key = key_of(head.authorization, head.api_key)
        if not secrets.compare_digest(key.encode(), self._key.encode()):
            raise ApiError(
                401,
                "invalid_api_key",
                "this is not the key of the episode; send the one that it was given",
            )
        if request.error is not None:
            raise request.error
        api_request = ApiRequest(
            method=head.method, path=path, content_type=head.type, body=bytes(request.body)
        )
        return await answer(self._endpoint, api_request)

    def _break(self, what: str) -> NoReturn:
        raise Stopped(f"the agent's program broke the protocol of the relay: {what[:300]}")

    def _stop(self, status: str) -> NoReturn:
        limits = self._limits
        reasons = {
            "memory": f"it took more memory than {limits.memory:,} bytes",
            "timeout": f"it took longer than {limits.seconds:g} s, or {limits.cpu_seconds:g} s of CPU",
            "output": f"it sent more than {UNREAD:,} bytes ahead of what was read",
        }
        raise Stopped(
            f"the sandbox ended the agent's program: {reasons.get(status, 'its relay was killed')}",
            late=status == "timeout",
        )
