"""Connections between the driver and ranks on other machines: authenticated, then pickled messages.

Nothing is unpickled before both sides have shown that they know the token, by the challenges of
`multiprocessing.connection`. What follows is neither encrypted nor signed, as nothing is that torch
sends between ranks.
"""

from __future__ import annotations

import fcntl
import json
import os
import pickle
import socket
import struct
import threading
from collections.abc import Mapping
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path
from typing import Any

from quintain.errors import UsageError

TOKEN = "QUINTAIN_RANKS_TOKEN"
"""Environment variable of the token."""
SHORTEST = 16
"""Characters of a token, at least."""
GREETING = 5.0
"""Seconds that a peer has to show that it knows the token."""
LONGEST_GREETING = 10_000
SIOCGIFADDR = 0x8915
"""See netdevice(7): the address of an interface."""


class Wire:
    """A connection whose messages are pickled without shared memory. Several threads may send."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def send(self, message: Any) -> None:
        """Send *message*.

        Raises:
            OSError: the other side has ended, or takes nothing for too long.
        """
        data = pickle.dumps(message, protocol=5)
        with self._lock:
            self._connection.send_bytes(data)

    def recv(self) -> Any:
        """Return the next message.

        Raises:
            EOFError: the other side has ended.
            OSError: the other side is gone, or has stopped in the middle of a message.
        """
        return pickle.loads(self._connection.recv_bytes())

    def poll(self) -> bool:
        """Return whether `recv` has something to return or to raise."""
        return self._connection.poll()

    def fileno(self) -> int:
        """Return the descriptor, to wait for."""
        return self._connection.fileno()

    def close(self) -> None:
        """End the connection."""
        self._connection.close()


def token_of(file: str | None) -> bytes:
    """Return the token of *file*, or of the environment.

    Raises:
        UsageError: there is none, or it is too short.
    """
    how = (
        "make one with `python -c 'import secrets; print(secrets.token_hex())'` and give it to the "
        f"run and to all ranks, as the environment variable {TOKEN} or in a file"
    )
    if file is not None:
        try:
            token = Path(file).read_text().strip()
        except OSError as error:
            raise UsageError(
                f"cannot read the token file {file}: {error.strerror}; {how}"
            ) from None
    else:
        token = os.environ.get(TOKEN, "").strip()
    if len(token) < SHORTEST:
        raise UsageError(
            f"ranks on other machines need a token of at least {SHORTEST} characters; {how}"
        )
    return token.encode()


def address_of(text: str, *, least: int = 1) -> tuple[str, int]:
    """Return host and port, which is at *least* that, of ``host:port``.

    Raises:
        UsageError: it is something else.
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not least <= int(port) < 2**16:
        raise UsageError(f"the rendezvous is {text!r}; expected host:port, as in node0:29400")
    return host.strip("[]"), int(port)


def accepted(peer: socket.socket, token: bytes, *, silence: float) -> tuple[Wire, dict[str, Any]]:
    """Return the wire to a *peer* that has connected, and what it says of itself.

    Args:
        silence: seconds after which a peer that sends or takes nothing in the middle of a message
            is given up.

    Raises:
        AuthenticationError: it does not know the token.
        OSError, EOFError, ValueError: it does not speak as ranks do.
    """
    _keep_alive(peer)
    _limit(peer, GREETING)
    connection = Connection(peer.detach())
    try:
        deliver_challenge(connection, token)
        answer_challenge(connection, token)
        said = json.loads(connection.recv_bytes(LONGEST_GREETING))
    except BaseException:
        connection.close()
        raise
    with socket.socket(fileno=os.dup(connection.fileno())) as same:
        _limit(same, silence)
    return Wire(connection), said


def connected(
    address: tuple[str, int], token: bytes, greeting: Mapping[str, Any]
) -> tuple[Wire, str]:
    """Return a wire to the driver at *address*, and the address of this side.

    Raises:
        AuthenticationError: the driver does not know the token, or says that this side does not.
        OSError, EOFError: nobody listens there, or not for long.
    """
    peer = socket.create_connection(address, timeout=GREETING)
    peer.settimeout(None)
    _keep_alive(peer)
    _limit(peer, GREETING)
    own = str(peer.getsockname()[0])
    connection = Connection(peer.detach())
    try:
        answer_challenge(connection, token)
        deliver_challenge(connection, token)
        connection.send_bytes(json.dumps(dict(greeting)).encode())
    except BaseException:
        connection.close()
        raise
    with socket.socket(fileno=os.dup(connection.fileno())) as same:
        _limit(same, 0)  # until a command comes
    return Wire(connection), own


def interface_of(address: str) -> str | None:
    """Return the network interface that has the IPv4 *address*."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(any_socket, SIOCGIFADDR, request)
            except OSError:  # it has no address
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None


def _keep_alive(peer: socket.socket) -> None:
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


def _limit(peer: socket.socket, seconds: float) -> None:
    """Let reads and writes fail that wait for longer; 0 lets them wait."""
    value = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
    peer.settimeout(None)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)


__all__ = ["AuthenticationError", "Wire", "accepted", "address_of", "connected", "token_of"]
