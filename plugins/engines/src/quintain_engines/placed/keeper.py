"""Start a server for a run elsewhere, say where it listens, and end it with the connection to the
run: ``python -m quintain_engines.placed.keeper HOST:PORT WORDS``.

WORDS are arguments of Python, in which ``{host}``, ``{port}`` and ``{folder}`` are replaced by the
address at which the server has to listen, and by a folder with the files that the run sends.
"""

from __future__ import annotations

import ctypes
import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from tempfile import TemporaryDirectory

from quintain.process import keep_alive

from .folders import unpack_folder

SERVER_TOKEN = "QUINTAIN_SERVER_TOKEN"
"""Environment variable of the secret that run, keeper and server share."""
SERVER_FOLDER = "QUINTAIN_SERVER_FOLDER"
"""Environment variable of the server: a folder for what else it gets, which ends with it."""
SIZE = 8
"""Bytes of the length of the files."""
LAST = 20.0
"""Seconds that a server gets to end by itself."""


def main(words: Sequence[str]) -> int:
    """Keep a server until it, or the connection to the run, ends; return its exit code, or that of a
    shell for one that was killed.
    """
    host, _, port = words[0].rpartition(":")
    with (
        socket.create_connection((host.strip("[]"), int(port))) as run,
        TemporaryDirectory(prefix="quintain-server-") as folder,
    ):
        keep_alive(run)
        run.sendall(os.environ[SERVER_TOKEN].encode() + b"\n")
        _receive_files(run, folder)
        own = str(run.getsockname()[0])  # by which the run is reached, and reaches this machine
        with socket.socket(run.family) as free:
            free.bind((own, 0))
            place = {"{host}": own, "{port}": str(free.getsockname()[1]), "{folder}": folder}
        server = subprocess.Popen(
            [sys.executable, *(place.get(word, word) for word in words[1:])],
            stdin=subprocess.DEVNULL,
            env=os.environ | {SERVER_FOLDER: folder},
            start_new_session=True,
            preexec_fn=_end_with_parent,
        )

        def told_to_end(*_: object) -> None:
            with suppress(OSError):  # the run is gone already
                run.shutdown(socket.SHUT_RD)

        # As with the end of the connection, the server's own processes end, too.
        signal.signal(signal.SIGTERM, told_to_end)
        said = {"host": own, "port": int(place["{port}"]), "pid": server.pid}
        run.sendall(json.dumps(said).encode() + b"\n")
        ended = os.pidfd_open(server.pid)
        select.select([run.fileno(), ended], [], [])
        os.close(ended)
        status = _ended(server)
    return status if status >= 0 else 128 - status


def _receive_files(run: socket.socket, folder: str) -> None:
    with run.makefile("rb") as stream:
        size = stream.read(SIZE)
        if len(size) < SIZE:
            sys.exit("the run has ended, or does not know this server")
        if packed := stream.read(int.from_bytes(size, "big")):
            unpack_folder(io.BytesIO(packed), folder)


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def _ended(server: subprocess.Popen[bytes]) -> int:
    """End what is left of *server* and of the processes of its session; return its exit code."""
    for end in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(server.pid, end)
        with suppress(subprocess.TimeoutExpired):
            server.wait(LAST)
    return server.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
