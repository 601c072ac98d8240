"""Connections between the driver and ranks on other machines: authenticated, then pickled messages.

Nothing is unpickled before both sides have shown that they know the token. What follows is neither
encrypted nor signed, as nothing is that torch sends between ranks.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import socket
import struct
import threading
from collections.abc import Mapping
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from quintain.errors import UsageError
from quintain.process import introduced, limit_waits, welcomed

TOKEN = "QUINTAIN_RANKS_TOKEN"
"""Environment variable of the token."""
SHORTEST = 16
"""Characters of a token, at least."""
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
    """Return the host and the port of *text*, which is ``host:port``.

    Args:
        least: the lowest port that is accepted.

    Raises:
        UsageError: *text* is something else, or its port is lower.
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
    try:
        said = welcomed(peer, token)
    except BaseException:
        peer.close()
        raise
    limit_waits(peer, silence)
    return Wire(Connection(peer.detach())), said


def connected(
    address: tuple[str, int], token: bytes, greeting: Mapping[str, Any]
) -> tuple[Wire, str]:
    """Return a wire to the driver at *address*, and the address of this side.

    Raises:
        AuthenticationError: the driver does not know the token, or says that this side does not.
        OSError, EOFError: nobody listens there, or not for long.
    """
    peer = introduced(address, token, greeting)
    own = str(peer.getsockname()[0])
    return Wire(Connection(peer.detach())), own


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


__all__ = ["AuthenticationError", "Wire", "accepted", "address_of", "connected", "token_of"]
