"""The relay inside a sandbox: HTTP on 127.0.0.1 for the agent, messages on its own standard streams
for the trainer.

It starts the agent, forwards each request as messages, writes what comes back, and reports how the
agent ended. Messages are lines of JSON; `relay` has those that it sends. It has no rights that the
agent lacks, but the agent cannot reach its descriptors: it is not dumpable, so that its entries in
/proc are not the agent's.

It runs alone: standard library only, Python 3.9 or later.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ctypes
import json
import os
import queue
import shutil
import signal
import stat
import subprocess
import threading
from http import HTTPStatus
from typing import Any

SET_DUMPABLE, SET_CHILD_SUBREAPER = 4, 36
HEAD = 1 << 16
"""Most bytes of a request's head."""
PATH, AUTHORIZATION, METHOD, TYPE = 2048, 1024, 16, 256
"""Most characters of the parts of a head that are forwarded."""
PIECE = 48 << 10
"""Bytes of a body or of output in one message."""
PATIENCE = 5.0
"""Seconds for what killed processes leave in pipes, and for the rest of a request that was
refused.
"""


class Refused(Exception):
    """A request that is not forwarded. Its arguments are the status, a code and the message."""


class Host:
    """The trainer's side: frames to it within the window that it grants, frames from it by
    request.
    """

    def __init__(self, config: dict[str, Any], reads: Any, writes: int) -> None:
        self.window, self.most_open = config["window"], asyncio.Semaphore(config["open"])
        self.replies: dict[int, asyncio.Queue[dict[str, Any]]] = {}
        self.last = 0
        self._granted = asyncio.Event()
        self._reads, self._writes = reads, writes
        self._out: queue.Queue[bytes | None] = queue.Queue()
        self._loop = asyncio.get_running_loop()
        # Threads, because the streams are shared with whoever started this program, and stay
        # blocking.
        threading.Thread(target=self._read, daemon=True).start()
        self._writer = threading.Thread(target=self._write, daemon=True)
        self._writer.start()

    def send(self, do: str, **fields: Any) -> None:
        """Send a short message, whatever the window."""
        line = json.dumps({"do": do, **fields}).encode() + b"\n"
        self.window -= len(line)
        self._out.put(line)

    async def room(self) -> None:
        """Wait until the window has room."""
        while self.window <= 0:
            self._granted.clear()
            await self._granted.wait()

    async def send_data(self, do: str, data: bytes, **fields: Any) -> None:
        """Send *data* in pieces."""
        for start in range(0, len(data), PIECE):
            piece = base64.b64encode(data[start : start + PIECE]).decode()
            await self.room()
            self.send(do, data=piece, **fields)

    async def open(self, **head: str) -> tuple[int, asyncio.Queue[dict[str, Any]]]:
        """Begin a request: its number, and where its replies arrive."""
        await self.room()
        self.last += 1
        self.replies[self.last] = asyncio.Queue()
        self.send("open", id=self.last, **head)
        return self.last, self.replies[self.last]

    def close(self, number: int) -> None:
        """Say that a request is over for the agent."""
        del self.replies[number]
        self.send("done", id=number)

    def finish(self) -> None:
        """Wait until all is written."""
        self._out.put(None)
        self._writer.join()

    def _read(self) -> None:
        for line in self._reads:
            self._loop.call_soon_threadsafe(self._take, json.loads(line))
        os._exit(0)  # nobody listens any more

    def _take(self, frame: dict[str, Any]) -> None:
        if "taken" in frame:
            self.window += frame["taken"]
            self._granted.set()
        elif frame["id"] in self.replies:
            self.replies[frame["id"]].put_nowait(frame)

    def _write(self) -> None:
        while (line := self._out.get()) is not None:
            write_all(self._writes, line)


class Client(asyncio.StreamReaderProtocol):
    """One connection of the agent. If it is lost, its request is given up."""

    def __init__(self, host: Host, body_limit: int) -> None:
        self.host, self.body_limit = host, body_limit
        self.task: asyncio.Task[None] | None = None
        super().__init__(asyncio.StreamReader(limit=HEAD), self.connected)

    def eof_received(self) -> bool | None:
        self.give_up()
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.give_up()

    def give_up(self) -> None:
        if self.task is not None:
            self.task.cancel()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.task = asyncio.current_task()
        try:
            try:
                while await self.exchange(reader, writer):
                    pass
            except Refused as e:
                status, code, message = e.args
                error = {
                    "error": {
                        "message": message,
                        "type": "invalid_request_error",
                        "param": None,
                        "code": code,
                    }
                }
                body = json.dumps(error).encode()
                writer.write(
                    head_of(status, {"Content-Type": "application/json"}, len(body)) + body
                )
                # A close before the rest is read would take the response back.
                asyncio.get_running_loop().call_later(PATIENCE, writer.close)
                while await reader.read(HEAD):
                    pass
        except (OSError, EOFError, asyncio.CancelledError):
            pass  # the agent went away
        finally:
            writer.close()

    async def exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Handle one request and its response; return whether another may follow."""
        method, path, version, headers = await read_head(reader)
        body = await read_body(reader, writer, headers, self.body_limit)
        async with self.host.most_open:
            number, replies = await self.host.open(
                method=method[:METHOD],
                path=path,
                type=headers.get("content-type", "")[:TYPE],
                authorization=headers.get("authorization", "")[:AUTHORIZATION],
                api_key=headers.get("x-api-key", "")[:AUTHORIZATION],
            )
            try:
                await self.host.send_data("data", body, id=number)
                self.host.send("end", id=number)
                del body
                await forward(replies, writer, bare=method == "HEAD", chunks=version == "HTTP/1.1")
            finally:
                self.host.close(number)
        return version == "HTTP/1.1" and headers.get("connection", "").lower() != "close"


async def read_head(reader: asyncio.StreamReader) -> tuple[str, str, str, dict[str, str]]:
    """Read method, path, version and headers (names in lower case) of a request."""
    try:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    except asyncio.LimitOverrunError:
        raise Refused(431, "head_too_large", f"the head has more than {HEAD} bytes") from None
    method, _, rest = lines[0].partition(" ")
    path, _, version = rest.rpartition(" ")
    if version not in ("HTTP/1.1", "HTTP/1.0") or not 0 < len(path) <= PATH:
        raise Refused(
            400,
            "invalid_request",
            f"the first line is {lines[0][:80]!r}; expected a request of HTTP/1.1",
        )
    fields = (line.partition(":") for line in lines[1:] if line)
    return method, path, version, {name.strip().lower(): value.strip() for name, _, value in fields}


async def read_body(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, headers: dict[str, str], limit: int
) -> bytes:
    """Return the body of a request, of at most *limit* bytes."""
    chunked = "chunked" in headers.get("transfer-encoding", "").lower()
    length = headers.get("content-length", "0")
    if not chunked and not (length.isascii() and length.isdigit()):
        raise Refused(
            400, "invalid_request", f"Content-Length is {length[:80]!r}; expected a number"
        )
    if not chunked and int(length) > limit:
        raise Refused(413, "request_too_large", f"the body is larger than {limit:,} bytes")
    if headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    if not chunked:
        return await reader.readexactly(int(length))
    body = bytearray()
    while True:
        size = (await reader.readline()).partition(b";")[0].strip()
        try:
            count = int(size, 16)
        except ValueError:
            raise Refused(400, "invalid_request", f"a chunk has the length {size[:80]!r}") from None
        if not 0 <= count <= limit - len(body):
            raise Refused(413, "request_too_large", f"the body is larger than {limit:,} bytes")
        body += await reader.readexactly(count)
        line = await reader.readline()
        while count == 0 and line.strip():  # trailers
            line = await reader.readline()
        if count == 0:
            return bytes(body)


async def forward(
    replies: asyncio.Queue[dict[str, Any]],
    writer: asyncio.StreamWriter,
    *,
    bare: bool,
    chunks: bool,
) -> None:
    """Write the response that arrives; one without a length as chunks, or up to the end of the
    connection.
    """
    frame = await replies.get()
    length = frame["length"]
    writer.write(head_of(frame["status"], frame["headers"], length, chunks=chunks))
    while True:
        data = base64.b64decode(frame["data"])
        if data and not bare:
            framed = length is None and chunks
            writer.write(b"%x\r\n%b\r\n" % (len(data), data) if framed else data)
        if frame["end"]:
            break
        await writer.drain()
        frame = await replies.get()
    if length is None and chunks and not bare:
        writer.write(b"0\r\n\r\n")
    await writer.drain()


def head_of(
    status: int, headers: dict[str, str], length: int | None, *, chunks: bool = True
) -> bytes:
    """Return the head of a response."""
    lines = [
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        *(f"{k}: {v}" for k, v in headers.items()),
    ]
    if length is not None:
        lines.append(f"Content-Length: {length}")
    elif chunks:
        lines.append("Transfer-Encoding: chunked")
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace")


class Kept(asyncio.Protocol):
    """The first *limit* bytes of a stream; the rest is read and dropped."""

    def __init__(self, limit: int) -> None:
        self.limit, self.data = limit, bytearray()
        self.closed = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.data += data[: max(0, self.limit - len(self.data))]

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set_result(None)


class AgentProcess:
    """The agent's process and its streams."""

    def __init__(self, config: dict[str, Any], port: int) -> None:
        self.config, self.port = config, port
        self.loop = asyncio.get_running_loop()
        self.exit: asyncio.Future[int] = self.loop.create_future()
        self.pid = 0

    async def run(self) -> tuple[int, dict[str, bytes]]:
        """Start it and wait for its end; its status, and what it left. Nothing else of the box
        lives after that.
        """
        self.loop.add_signal_handler(signal.SIGCHLD, self.reap)
        address = f"http://127.0.0.1:{self.port}"
        addresses = {name: address + path for name, path in self.config["addresses"].items()}
        variables = {**self.config["variables"], **addresses}
        try:
            process = started(self.config["argv"], {**os.environ, **variables})
        except (OSError, ValueError) as e:
            return 126, {"stderr": f"{e}\n".encode()}
        self.pid = process.pid
        streams = {}
        for name in ("stdout", "stderr"):
            _, streams[name] = await self.loop.connect_read_pipe(
                lambda: Kept(self.config["most"]), getattr(process, name)
            )
        feed, _ = await self.loop.connect_write_pipe(asyncio.BaseProtocol, process.stdin)
        feed.write(base64.b64decode(self.config["stdin"]))
        feed.close()  # once it is written
        process.returncode = status = await self.exit
        kill_others()
        await asyncio.wait([s.closed for s in streams.values()], timeout=PATIENCE)
        left = {name: bytes(s.data) for name, s in streams.items()}
        if self.config["file"]:
            left["file"] = content(self.config["file"], self.config["most"])
        return (status if status >= 0 else 128 - status), left

    def reap(self) -> None:
        """Collect what ended, orphans too, which would count as processes."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid == self.pid and not self.exit.done():
                self.exit.set_result(os.waitstatus_to_exitcode(status))


def started(argv: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    return subprocess.Popen(
        argv,
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        env=environment,
        start_new_session=True,
        bufsize=0,
    )


def kill_others() -> None:
    """End all other processes of the box by SIGKILL; the call spares this one and the first."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)


def content(path: str, limit: int) -> bytes:
    """Return the first bytes of a regular file; none if there is none."""
    data = b""
    with contextlib.suppress(OSError, ValueError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            with os.fdopen(descriptor, "rb") as file:
                data = file.read(limit)
    return data


def write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def tell(descriptor: int, do: str, **fields: Any) -> None:
    """Send a message before there is a `Host`."""
    write_all(descriptor, json.dumps({"do": do, **fields}).encode() + b"\n")


async def serve(config: dict[str, Any], reads: Any, writes: int) -> None:
    """Listen, run the agent, report."""
    loop = asyncio.get_running_loop()
    if shutil.which(config["argv"][0]) is None:
        tell(
            writes,
            "refused",
            what="program",
            reason=f"there is no executable {config['argv'][0]!r}",
        )
        return
    # filled before anybody can connect, for the port is told to the agent alone
    hosts: list[Host] = []

    def connection() -> Client:
        return Client(hosts[0], config["body"])

    try:
        server = await loop.create_server(connection, "127.0.0.1", 0, backlog=1024)
    except OSError as e:
        tell(writes, "refused", what="loopback", reason=f"the box cannot listen on 127.0.0.1: {e}")
        return
    tell(writes, "ready")
    host = Host(config, reads, writes)
    hosts.append(host)
    status, left = await AgentProcess(config, server.sockets[0].getsockname()[1]).run()
    server.close()
    for stream, data in left.items():
        await host.send_data("output", data, stream=stream)
    host.send("exited", status=status)
    host.finish()


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # which the first process of a box ignores
    libc = ctypes.CDLL(None)
    libc.prctl(SET_DUMPABLE, 0, 0, 0, 0)
    libc.prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    reads, writes = os.fdopen(os.dup(0), "rb"), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(null, descriptor)
    asyncio.run(serve(json.loads(reads.readline()), reads, writes))
    os._exit(0)  # threads that wait for the trainer do not hold it


main()
