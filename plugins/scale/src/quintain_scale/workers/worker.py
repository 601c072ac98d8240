"""The inside of a worker process of `quintain_scale.workers.pool`: a loop that reads calls and answers
them.

Kept apart from the pool so that a fresh interpreter imports almost nothing before its first call.

Frames on the socket are a length (8 bytes, big-endian) and a pickle. The parent sends ``("load", n,
target)`` and ``("call", n, target, arguments, cpu_seconds)``; each is answered by ``(n, seconds,
ok, payload)``, where the payload is a pickle of the value, or of module, name, arguments, text and
traceback of the exception. Answers are plain data: their pickles name no class but those of
`PLAIN`, so that reading one runs no code of the function.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import io
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
from decimal import Decimal
from fractions import Fraction
from typing import Any

LENGTH = struct.Struct(">Q")
_PLAIN = (set, frozenset, bytearray, complex, Fraction, Decimal)
PLAIN = {f"{kind.__module__}.{kind.__qualname__}": kind for kind in _PLAIN}
"""Classes of plain data besides None, bool, int, float, str, bytes, list, tuple and dict."""
LONGEST_TEXT = 20_000
"""Characters of the message and of the traceback of an exception that are kept."""
PDEATHSIG = 1
"""Linux' prctl option: the signal to get when the parent dies."""


def serve(channel: int, memory: int | None = None) -> None:
    """Answer calls on the file descriptor *channel* until the parent closes it.

    Args:
        channel: a connected stream socket.
        memory: limit on the address space, bytes.
    """
    die_with_parent(channel)
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
        ok, payload = True, plain(value)
    except BaseException as e:  # noqa: BLE001  (whatever the function raised goes back, SystemExit too)
        ok, payload = False, packed(e)
    return pickle.dumps((number, time.monotonic() - began, ok, payload))


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        kind = value if isinstance(value, type) else type(value)
        if kind in _PLAIN:
            return NotImplemented
        raise TypeError(
            f"the function returned a {kind.__module__}.{kind.__qualname__}; a worker returns "
            "plain data: numbers, text, lists, tuples, dicts, sets"
        )


def plain(value: Any) -> bytes:
    """Return a pickle of plain data.

    Raises:
        TypeError: *value* is something else.
    """
    data = io.BytesIO()
    _Pickler(data).dump(value)
    return data.getvalue()


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return PLAIN[f"{module}.{name}"]
        except KeyError:
            raise pickle.UnpicklingError(f"{module}.{name} is no plain data") from None


def unpacked(data: bytes) -> Any:
    """Return the plain data of a pickle; what else it holds is refused before any of its code
    runs.
    """
    return _Unpickler(io.BytesIO(data)).load()


def resolve(target: str | bytes) -> Callable[..., Any]:
    """Return the callable behind ``"module:name"`` or behind a pickle."""
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
    """Return a pickle of module, name, arguments, text and traceback of *error*; without arguments
    if they are not plain.
    """
    where = "".join(traceback.format_exception(error)).rstrip()[-LONGEST_TEXT:]
    try:
        text = f"{type(error).__name__}: {error}"[:LONGEST_TEXT]
    except BaseException:  # noqa: BLE001  (its author wrote `__str__`)
        text = type(error).__name__
    module, name = type(error).__module__, type(error).__qualname__
    try:
        return plain((module, name, error.args, text, where))
    except Exception:  # noqa: BLE001  (not plain in any way its author managed)
        return plain((module, name, None, text, where))


def raised(packed_error: tuple[str, str, tuple[Any, ...] | None, str, str]) -> Exception:
    """Return the exception of `packed`, made without code of its class; a `RuntimeError` if this
    process has not the class.
    """
    module, name, args, text, where = packed_error
    kind: Any = sys.modules.get(module)
    for part in name.split("."):
        kind = getattr(kind, part, None)
    error: Exception = RuntimeError(text)
    if args is not None and isinstance(kind, type) and issubclass(kind, Exception):
        builtin = next(base for base in kind.__mro__ if base.__module__ == "builtins")
        with contextlib.suppress(Exception):  # arguments that do not fit
            error = builtin(*args) if builtin is kind else builtin.__new__(kind, *args)
    error.add_note(f"in a worker:\n{where}")
    return error


def die_with_parent(channel: int) -> None:
    """End with the parent, even while a call spins in C code with the interpreter's lock held,
    where no thread of ours would run.
    """
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PDEATHSIG, signal.SIGKILL)

    def watch() -> None:
        poll = select.poll()
        ends = getattr(select, "POLLRDHUP", 0)  # what a parent on another machine leaves
        poll.register(channel, ends)  # a hang-up is reported unasked
        ends |= select.POLLHUP | select.POLLNVAL | select.POLLERR
        while not any(event & ends for _, event in poll.poll()):
            pass
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def _protect_channel(channel: int) -> None:
    """Keep what the function prints, or a program it starts, from the protocol."""
    os.set_inheritable(channel, False)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)


def _fresh_errors() -> None:
    """Keep only what the present call writes to standard error (a file that the parent reads when a
    worker dies).
    """
    with contextlib.suppress(OSError):
        if os.fstat(2).st_size:
            os.ftruncate(2, 0)


def _limit_cpu(seconds: float) -> None:
    """Limit the CPU time, a second line behind the parent's clock, for when the parent is too busy
    to kill in time.
    """
    usage = resource.getrusage(resource.RUSAGE_SELF)
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    soft = int(usage.ru_utime + usage.ru_stime + seconds) + 2
    resource.setrlimit(
        resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard)
    )


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
