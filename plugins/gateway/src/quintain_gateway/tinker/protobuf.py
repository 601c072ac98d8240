"""Protobuf's wire format (protobuf.dev/programming-guides/encoding), as much of it as the API of
Tinker's SDK needs: fields in, fields out, without a schema.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from ..errors import invalid

__all__ = ["doubled", "fields", "number", "sized", "text", "varints"]

_VARINT, _FIXED64, _SIZED, _FIXED32 = 0, 1, 2, 5


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of each field of *message*, in order: a whole number for a varint,
    bytes for all others.

    Raises:
        ApiError: 400, it is no message.
    """
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield tag >> 3, value
            continue
        if kind == _SIZED:
            size, at = _varint(message, at)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise invalid(f"the body is no protobuf message: wire type {kind}")
        if at + size > len(message):
            raise invalid("the body is no protobuf message: a field is longer than the rest")
        yield tag >> 3, message[at : at + size]
        at += size


def varints(packed: bytes) -> list[int]:
    """Return the whole numbers in a packed list.

    Raises:
        ApiError: 400, the last one has no end.
    """
    values, at = [], 0
    while at < len(packed):
        value, at = _varint(packed, at)
        values.append(value)
    return values


def number(field: int, value: int) -> bytes:
    """Encode a whole number from 0; 0 itself is the default, which is left out."""
    return _encoded(field << 3 | _VARINT) + _encoded(value) if value else b""


def sized(field: int, content: bytes) -> bytes:
    """Encode bytes, or a message within the message."""
    return _encoded(field << 3 | _SIZED) + _encoded(len(content)) + content


def text(field: int, content: str) -> bytes:
    """Encode a string."""
    return sized(field, content.encode())


def doubled(field: int, value: float) -> bytes:
    """Encode a number of 64 bits."""
    return _encoded(field << 3 | _FIXED64) + struct.pack("<d", value)


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(message) and shift < 70:
        byte = message[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value & (1 << 64) - 1, at
    raise invalid("the body is no protobuf message: a number has no end")


def _encoded(value: int) -> bytes:
    parts = bytearray()
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    parts.append(value)
    return bytes(parts)
