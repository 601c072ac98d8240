"""Connections between the process of a run and its processes on other machines.

Nothing that a peer says is read before both sides have shown that they know a token, by the
challenges of `multiprocessing.connection`. What follows is neither encrypted nor signed.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Mapping
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any

GREETING = 5.0
"""Seconds that a peer has to show that it knows the token, and to say what it is."""
LONGEST_GREETING = 10_000
"""Bytes that it may take to say so."""


def welcomed(peer: socket.socket, token: bytes) -> dict[str, Any]:
    """Return what a *peer* that has connected says of itself. Waits at most `GREETING` seconds.

    Raises:
        AuthenticationError: it does not know the token.
        OSError, EOFError, ValueError: it does not speak as peers do.
    """
    keep_alive(peer)
    limit_waits(peer, GREETING)
    with Connection(os.dup(peer.fileno())) as connection:
        deliver_challenge(connection, token)
        answer_challenge(connection, token)
        said = json.loads(connection.recv_bytes(LONGEST_GREETING))
    if not isinstance(said, dict):
        raise ValueError("it does not say what it is")
    limit_waits(peer, 0)
    return said


def introduced(
    address: tuple[str, int], token: bytes, greeting: Mapping[str, Any]
) -> socket.socket:
    """Return a connection to the run that listens at *address*, after telling it *greeting*.

    Raises:
        AuthenticationError: the run does not know the token, or says that this side does not.
        OSError, EOFError: nobody listens there, or not for long.
    """
    peer = socket.create_connection(address, timeout=GREETING)
    try:
        keep_alive(peer)
        limit_waits(peer, GREETING)
        with Connection(os.dup(peer.fileno())) as connection:
            answer_challenge(connection, token)
            deliver_challenge(connection, token)
            connection.send_bytes(json.dumps(dict(greeting)).encode())
        limit_waits(peer, 0)
    except BaseException:
        peer.close()
        raise
    return peer


def limit_waits(peer: socket.socket, seconds: float) -> None:
    """Let reads and writes fail that wait for longer than *seconds*; 0 lets them wait."""
    value = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
    peer.settimeout(None)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)


def keep_alive(peer: socket.socket) -> None:
    """Let the kernel find a machine that is gone, within 20 s."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        for option, value in (
            (socket.TCP_KEEPIDLE, 5),
            (socket.TCP_KEEPINTVL, 5),
            (socket.TCP_KEEPCNT, 3),
            (socket.TCP_USER_TIMEOUT, 20_000),
        ):
            peer.setsockopt(socket.IPPROTO_TCP, option, value)
