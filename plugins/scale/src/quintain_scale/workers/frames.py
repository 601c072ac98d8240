"""What the run and its episode processes say to each other, and how it is packed.

A frame is a length (4 bytes, big-endian) and a pickle of a tuple whose first element is its kind.
Tokens cross as columns of machine numbers, not as lists of Python numbers.
"""

from __future__ import annotations

import asyncio
import io
import pickle
import socket
import struct
import sys
from array import array
from collections.abc import Callable, Sequence
from dataclasses import fields
from importlib.metadata import distributions
from operator import attrgetter
from typing import Any

from quintain import Message, Reply, Sampled, Sampling, ToolCall, ToolSpec, Turn
from quintain.types import Finish

LENGTH = struct.Struct(">I")
MARK = struct.Struct("=q")
"""The number of the episode whose code a process runs now, in memory that it shares with the run;
0 for none.
"""

HELLO, OPEN, READY, PLAY, CANCEL, ASK, DROP, ANSWER, DONE, RAISED, PING, LOG = range(12)
"""Kinds of frames. A process says HELLO with its versions and gets OPEN with what it plays; READY
says that it can, or why not. PLAY and CANCEL are about an episode, DONE and RAISED end it. ASK is a
call of an engine within an episode, ANSWER its end, DROP gives it up. PING is sent back.
"""

SPAWN, KILL, LINE, SPAWNED, FAILED, ENDED, HELD = range(7)
"""Kinds of frames between a run and a watcher, each about the process of a number. The run says
SPAWN, KILL and LINE; a watcher says SPAWNED or FAILED, ENDED, HELD and LINE.
"""
FRAMES, TEXTS = "frames", "texts"
"""The two connections of a process."""

TOKEN = "QUINTAIN_WORKERS_TOKEN"
"""Environment variable of what watchers have to know."""

Packed = tuple[
    bytes, bytes, bytes | int, Finish, str | int | None, tuple[int, int], tuple[str, ...]
]


class Stream(asyncio.Protocol):
    """One end of a connection, which can be closed at any time."""

    def __init__(self) -> None:
        self._arrived = bytearray()
        self._transport: asyncio.WriteTransport | None = None
        self._closed = False

    async def connect(self, peer: socket.socket) -> None:
        """Take *peer*, which is connected to the other end."""
        await asyncio.get_running_loop().create_connection(lambda: self, sock=peer)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport
        if self._closed:  # while it was connected
            transport.close()

    def close(self) -> None:
        """Close this end."""
        self._closed = True
        if self._transport is not None:
            self._transport.close()


class FrameStream(Stream):
    """One end of a stream of frames.

    Frames that are sent in one step of the event loop leave in one write.

    Args:
        received: called with every frame.
        lost: called once, when the other end is gone.
    """

    def __init__(self, received: Callable[[Any], None], lost: Callable[[], None]) -> None:
        super().__init__()
        self._received, self._lost = received, lost
        self._leaving: list[bytes] = []
        self._loop = asyncio.get_running_loop()
        self.heard = 0
        """Chunks that have arrived: that it grows shows that the other end lives."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._lost()

    def data_received(self, data: bytes) -> None:
        self.heard += 1
        arrived = self._arrived
        arrived += data
        start, end = 0, len(arrived)
        while end - start >= LENGTH.size:
            after = start + LENGTH.size + LENGTH.unpack_from(arrived, start)[0]
            if after > end:
                break
            frame = pickle.loads(memoryview(arrived)[start + LENGTH.size : after])
            start = after
            self._received(frame)
        del arrived[:start]

    def send(self, *frame: Any) -> None:
        """Send a frame; nothing happens once the other end is gone."""
        payload = pickled(frame)
        if not self._leaving:
            self._loop.call_soon(self._flush)
        self._leaving += (LENGTH.pack(len(payload)), payload)

    def _flush(self) -> None:
        leaving, self._leaving = self._leaving, []
        if self._transport is not None:
            self._transport.write(b"".join(leaving))


_RECORDS: tuple[Any, ...] = (Turn, Message, ToolCall, Sampling, ToolSpec, Reply)
_NAMES = [[field.name for field in fields(kind)] for kind in _RECORDS]
_SETTERS = [
    [vars(kind)[name].__set__ for name in names]
    for kind, names in zip(_RECORDS, _NAMES, strict=True)
]


def _restored(number: int, values: Sequence[Any]) -> Any:
    """Return the record of the class of that *number* with *values*."""
    record = object.__new__(_RECORDS[number])
    for set_field, value in zip(_SETTERS[number], values, strict=True):
        set_field(record, value)
    return record


def _reduction(number: int, names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    values = attrgetter(*names)
    return lambda record: (_restored, (number, values(record)))


_REDUCTIONS = {
    kind: _reduction(number, names)
    for number, (kind, names) in enumerate(zip(_RECORDS, _NAMES, strict=True))
}
"""A dataclass with slots is pickled and read field by field in Python: most of what a rollout
costs. These classes take a third of that.
"""


def pickled(value: Any) -> bytes:
    """Return a pickle of *value* for the other end."""
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer, pickle.HIGHEST_PROTOCOL)
    pickler.dispatch_table = _REDUCTIONS
    pickler.dump(value)
    return buffer.getvalue()


_WIDE = b"q"


def packed_ids(ids: Sequence[int]) -> bytes:
    """Return token ids as a column of 32-bit numbers; of 64 bits and a byte more where there are
    pictures.
    """
    try:
        return array("i", ids).tobytes()
    except OverflowError:
        return array("q", ids).tobytes() + _WIDE


def unpacked_ids(data: bytes) -> array[int]:
    """Return the ids of `packed_ids`, as sessions give them to engines."""
    return _column("q", data[:-1]) if len(data) % 2 else _column("i", data)


def _column(code: str, data: bytes) -> array[Any]:
    column: array[Any] = array(code)
    column.frombytes(data)
    return column


def packed(sampled: Sampled) -> Packed:
    """Return the columns of *sampled*; its versions are one number where all are equal."""
    versions = sampled.versions
    return (
        packed_ids(sampled.ids),
        array("d", sampled.logps).tobytes(),
        versions[0] if len(set(versions)) == 1 else array("q", versions).tobytes(),
        sampled.finish,
        sampled.stop,
        sampled.forced,
        sampled.experts,
    )


def unpacked(columns: Packed) -> Sampled:
    """Return the `Sampled` of `packed`, bit for bit."""
    packed_tokens, packed_logps, packed_versions, finish, stop, forced, experts = columns
    ids = tuple(unpacked_ids(packed_tokens))
    return Sampled(
        ids=ids,
        logps=tuple(_column("d", packed_logps)),
        versions=(packed_versions,) * len(ids)
        if isinstance(packed_versions, int)
        else tuple(_column("q", packed_versions)),
        finish=finish,
        stop=stop,
        forced=forced,
        experts=experts,
    )


def sendable(error: BaseException) -> BaseException:
    """Return *error*, or a `RuntimeError` with its text where it cannot be pickled and read again."""
    try:
        copy = pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - its author wrote how it is pickled
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error if type(copy) is type(error) else RuntimeError(f"{type(error).__name__}: {error}")


def versions() -> dict[str, str]:
    """Return the versions of Python, of Quintain and of its plugins in this process."""
    found = {"python": ".".join(map(str, sys.version_info[:2]))}
    for distribution in distributions():
        name = (distribution.metadata["Name"] or "").lower()
        if name == "quintain" or name.startswith("quintain-"):
            found[name] = distribution.version
    return found
