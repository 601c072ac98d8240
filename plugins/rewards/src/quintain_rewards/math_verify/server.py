"""The fork server and its children: processes that compute, apart from the caller's.

The server is a fresh interpreter that imports sympy once and forks a child for each request, so
that a replacement is ready in milliseconds. It never reads an answer itself. A child reads one
request at a time, as JSON in a frame with its length, and answers with JSON; nothing that a child
sends is ever unpickled or executed.

The parent kills children by process id. The server reaps a child only when the parent has said that
it is done with the id, so that an id never belongs to another process while the parent may still
use it.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import struct
import sys
import time
from typing import Any

LENGTH = struct.Struct(">I")
LARGEST = 1 << 20
PDEATHSIG = 1
"""Linux' prctl option: the signal to get when the parent dies."""


def serve(channel: int, memory: int, cpu_seconds: float) -> None:
    """Fork children on request until the parent closes *channel*.

    Args:
        memory: limit on the address space of a child, bytes.
        cpu_seconds: of one request, after which the kernel kills the child if the parent does not.
    """
    from . import judge  # the import that children inherit

    judge.warm_up()
    control = socket.socket(fileno=channel)
    while True:
        try:
            message, descriptors, _, _ = socket.recv_fds(control, 64, 1)
        except InterruptedError:
            continue
        if not message:
            break
        kind, _, number = message.decode("ascii").partition(" ")
        if kind == "fork":
            control.send(str(_fork(control, descriptors[0], memory, cpu_seconds)).encode("ascii"))
            os.close(descriptors[0])
        else:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(int(number), 0)
            control.send(b"0")
    os.killpg(0, signal.SIGKILL)


def _fork(control: socket.socket, descriptor: int, memory: int, cpu_seconds: float) -> int:
    child = os.fork()
    if child:
        return child
    try:
        if sys.platform == "linux":
            import ctypes

            ctypes.CDLL(None).prctl(PDEATHSIG, signal.SIGKILL)
        control.close()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with (
            contextlib.nullcontext()
            if sys.platform == "linux"
            else contextlib.suppress(ValueError, OSError)
        ):
            resource.setrlimit(resource.RLIMIT_AS, (memory, memory))  # macOS may refuse it
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        _answer_all(socket.socket(fileno=descriptor), cpu_seconds)
    finally:
        os._exit(0)
    return 0


def _answer_all(channel: socket.socket, cpu_seconds: float) -> None:
    from . import judge

    while (request := receive(channel)) is not None:
        used = time.process_time()
        hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
        resource.setrlimit(resource.RLIMIT_CPU, (int(used + cpu_seconds) + 2, hard))
        try:
            reply: Any = judge.answer(request)
        except MemoryError:
            reply = {"kind": "too_large", "reason": "it takes more memory than a worker may have"}
        except RecursionError:
            reply = {"kind": "too_large", "reason": "nested too deep"}
        except Exception as e:  # noqa: BLE001  whatever sympy fails on is reported, not raised
            reply = {"kind": "error", "reason": f"{type(e).__name__}: {e}"[:200]}
        send(channel, reply)


def send(channel: socket.socket, value: Any) -> None:
    """Write *value* as JSON in one frame."""
    data = json.dumps(value).encode("utf-8")
    channel.sendall(LENGTH.pack(len(data)) + data)


def receive(channel: socket.socket) -> Any:
    """Return the next frame of a blocking socket, parsed; ``None`` at its end."""
    head = _exactly(channel, LENGTH.size)
    if head is None:
        return None
    data = _exactly(channel, min(LENGTH.unpack(head)[0], LARGEST))
    return None if data is None else json.loads(data)


def _exactly(channel: socket.socket, n: int) -> bytes | None:
    data = bytearray()
    while len(data) < n:
        chunk = channel.recv(n - len(data))
        if not chunk:
            return None
        data += chunk
    return bytes(data)
