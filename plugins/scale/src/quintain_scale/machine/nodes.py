"""Machines that have joined a run, as the run sees them."""

from __future__ import annotations

import json
import logging
import os
import queue
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count
from multiprocessing import AuthenticationError
from typing import Any

from quintain.errors import RunError, UsageError
from quintain.process import welcomed

log = logging.getLogger(__name__)

TOKEN = "QUINTAIN_MACHINES_TOKEN"
"""Environment variable of what machines have to know."""
SHORTEST = 16
"""Characters of it at least."""
MAKE_TOKEN = "python -c 'import secrets; print(secrets.token_hex())'"


class JoinedMachine:
    """A machine, over its connection.

    Attributes:
        host: its address.
        devices: that it has, by name.
    """

    def __init__(self, peer: socket.socket, host: str, said: Mapping[str, Any]) -> None:
        self.host, self.devices = host, [str(name) for name in said["devices"]]
        self._peer, self._reading = peer, peer.makefile("r")
        self._numbers, self._lock = count(1), threading.Lock()
        self._ends: dict[int, queue.Queue[tuple[int, str]]] = {}
        self._is_gone = False
        threading.Thread(target=self._read, daemon=True).start()

    def run(
        self, words: Sequence[str], environment: Mapping[str, str], folder: str, number: int
    ) -> tuple[int, str]:
        """Run Python with *words* there, as the process *number*; return its exit code and last
        words. One of a machine that is gone has the exit code 1.
        """
        ended = self._ends.setdefault(number, queue.Queue())
        begin = {"start": number, "words": list(words), "folder": folder}
        self._send({**begin, "environment": dict(environment)})
        if self._is_gone:
            self._lose()
        end = ended.get()
        del self._ends[number]
        return end

    def next_number(self) -> int:
        """Return a number for a process."""
        return next(self._numbers)

    def kill(self, number: int) -> None:
        """Kill the process *number*."""
        self._send({"kill": number})

    def close(self) -> None:
        """Let the machine go."""
        with suppress(OSError):
            self._peer.shutdown(socket.SHUT_RDWR)
        self._peer.close()

    def _send(self, message: Mapping[str, Any]) -> None:
        try:
            with self._lock:
                self._peer.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self._lose()

    def _read(self) -> None:
        with suppress(OSError, ValueError):
            for line in self._reading:
                said = json.loads(line)
                if (ended := self._ends.get(said["ended"])) is not None:
                    ended.put((int(said["status"]), str(said["words"])))
        self._lose()

    def _lose(self) -> None:
        self._is_gone = True
        for ended in [*self._ends.values()]:
            ended.put((1, f"its machine {self.host} is gone"))


class RemoteProcess:
    """A process of a `JoinedMachine`, which can be killed."""

    def __init__(self, node: JoinedMachine, number: int) -> None:
        self._node, self._number = node, number

    def kill(self) -> None:
        """Kill it."""
        self._node.kill(self._number)


def joined(machines: int, rendezvous: str, devices: int, patience: float) -> list[JoinedMachine]:
    """Wait at *rendezvous* until so many *machines* with so many *devices* have joined; return them
    by their numbers.

    Raises:
        UsageError: there is no token, the address is none, or a machine has fewer devices.
        RunError: they have not come within *patience* seconds.
    """
    token = os.environ.get(TOKEN, "").encode()
    if len(token) < SHORTEST:
        raise UsageError(
            f"cluster machine: machines that join need a token of at least {SHORTEST} characters; make "
            f"one with `{MAKE_TOKEN}` and set it as {TOKEN} on all of them"
        )
    host, port = address_of(rendezvous)
    try:
        listening = socket.create_server((host, port))
    except OSError as error:
        raise RunError(
            f"cluster machine: cannot listen at {rendezvous}: {error.strerror}; "
            "cluster.args.rendezvous has to be an address of this machine, with a free port"
        ) from None
    nodes: dict[int, JoinedMachine] = {}
    deadline = time.monotonic() + patience
    with listening:
        listening.settimeout(1.0)
        while len(nodes) < machines:
            if time.monotonic() > deadline:
                missing = ", ".join(str(n) for n in range(machines) if n not in nodes)
                raise RunError(
                    f"cluster machine: machines {missing} of {machines} have not joined at {rendezvous} "
                    f"within {patience:.0f} s; start `python -m quintain_scale.machine.join "
                    f"{rendezvous}` on each (`quintain launch` prints the job)"
                )
            with suppress(TimeoutError):
                peer, origin = listening.accept()
                peer.settimeout(None)
                try:
                    said = welcomed(peer, token)
                    number, names = int(said["machine"]), said["devices"]
                except (AuthenticationError, OSError, EOFError, KeyError, ValueError) as error:
                    peer.close()
                    log.warning(
                        "cluster machine: refused a connection from %s: %s", origin[0], error
                    )
                    continue
                if not 0 <= number < machines or len(names) < devices:
                    raise UsageError(
                        f"cluster machine: machine {number} at {origin[0]} has {len(names)} devices; "
                        f"expected numbers from 0 to {machines - 1} and {devices} devices: change "
                        "cluster.args.machines or cluster.args.devices"
                    )
                nodes[number] = JoinedMachine(peer, origin[0], said)
    return [nodes[number] for number in range(machines)]


def address_of(rendezvous: str) -> tuple[str, int]:
    """Return host and port of *rendezvous*, in which ``$NAME`` is an environment variable.

    Raises:
        UsageError: it is none.
    """
    host, _, port = os.path.expandvars(rendezvous).rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise UsageError(
            f"cluster machine: the rendezvous is {rendezvous!r}; expected host:port, as in node0:29400"
        )
    return host.strip("[]"), int(port)
