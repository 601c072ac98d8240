"""The inside of a worker process of `quintain_workers.pool`: a loop that reads calls and answers them.

Kept apart from the pool so that a fresh interpreter imports almost nothing before its first call.

Frames on the socket are a length (8 bytes, big-endian) and a pickle. The parent sends ``("load", n, target)`` and
``("call", n, target, arguments, cpu_seconds)``; each is answered by ``(n, seconds, ok, payload)``, where the
payload is a pickle of the value, or of the exception and the text of its traceback.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import os
import pickle
import resource
import select
import signal
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

LENGTH = struct.Struct(">Q")
PDEATHSIG = 1
"""Linux' prctl option: the signal to get when the parent dies."""


def serve(channel: int, memory: int | None = None) -> None:
    """Answer calls on the file descriptor *channel* until the parent closes it.

    Args:
        channel: a connected stream socket.
        memory: limit on the address space, bytes.
    """
    _die_with_parent(channel)
    _protect_channel(channel)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory is not None:
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    faulthandler.enable()
    loaded: dict[Any, Callable[..., Any]] = {}
    while (frame := _receive(channel)) is not None:
        _fresh_errors()
        _send(channel, _answer(frame, loaded))


def _answer(frame: bytes, loaded: dict[Any, Callable[..., Any]]) -> bytes:
    request = pickle.loads(frame)
    number, target = request[1:3]
    began = time.monotonic()
    try:
        if target not in loaded:
            loaded[target] = resolve(target)
        value = None
        if request[0] == "call":
            arguments = pickle.loads(request[3])
            _limit_cpu(request[4])
            began = time.monotonic()
            value = loaded[target](*arguments)
        ok, payload = True, pickle.dumps(value)
    except BaseException as e:  # noqa: BLE001  (whatever the function raised goes back, SystemExit too)
        ok, payload = False, packed(e)
    return pickle.dumps((number, time.monotonic() - began, ok, payload))


def resolve(target: str | bytes) -> Callable[..., Any]:
    """The callable behind ``"module:name"`` or behind a pickle."""
    if isinstance(target, bytes):
        function: Callable[..., Any] = pickle.loads(target)
        return function
    module, _, name = target.partition(":")
    value: Any = importlib.import_module(module)
    for part in name.split("."):
        value = getattr(value, part)
    if not callable(value):
        raise TypeError(f"{target} is {type(value).__name__}, which cannot be called")
    return value  # type: ignore[no-any-return]


def packed(error: BaseException) -> bytes:
    """A pickle of *error* and the text of its traceback; a `RuntimeError` stands in for what does not survive that."""
    where = "".join(traceback.format_exception(error)).rstrip()
    text = f"{type(error).__name__}: {error}"
    if not isinstance(error, Exception):  # a SystemExit must not end the parent
        return pickle.dumps((RuntimeError(text), where))
    try:
        data = pickle.dumps((error, where))
        pickle.loads(data)
        return data
    except Exception:  # noqa: BLE001  (unpicklable in any way its author managed)
        return pickle.dumps((RuntimeError(text), where))


def _die_with_parent(channel: int) -> None:
    """Even while a call spins in C code with the interpreter's lock held, where no thread of ours would run."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PDEATHSIG, signal.SIGKILL)

    def watch() -> None:
        poll = select.poll()
        poll.register(channel, 0)  # a hang-up is reported unasked
        while not any(event & (select.POLLHUP | select.POLLNVAL | select.POLLERR) for _, event in poll.poll()):
            pass
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def _protect_channel(channel: int) -> None:
    """What the function prints, or a program it starts, must not reach the protocol."""
    os.set_inheritable(channel, False)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)


def _fresh_errors() -> None:
    """Keep only what the present call writes to standard error (a file that the parent reads when a worker dies)."""
    with contextlib.suppress(OSError):
        if os.fstat(2).st_size:
            os.ftruncate(2, 0)


def _limit_cpu(seconds: float) -> None:
    """A second line behind the parent's clock, for when the parent is too busy to kill in time."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    soft = int(usage.ru_utime + usage.ru_stime + seconds) + 2
    resource.setrlimit(resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


def _receive(channel: int) -> bytes | None:
    head = _exactly(channel, LENGTH.size)
    return None if head is None else _exactly(channel, LENGTH.unpack(head)[0])


def _exactly(channel: int, n: int) -> bytes | None:
    data = bytearray()
    while len(data) < n:
        chunk = os.read(channel, min(n - len(data), 1 << 20))
        if not chunk:
            return None
        data += chunk
    return bytes(data)


def _send(channel: int, payload: bytes) -> None:
    data = memoryview(LENGTH.pack(len(payload)) + payload)
    while data:
        data = data[os.write(channel, data) :]
