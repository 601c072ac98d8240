"""The watcher of an episode process, which a cluster starts for a run on another machine:
``python -m quintain_scale.workers.join HOST:PORT --seat NAME``.

It starts the process, says how much memory it holds, and how it ended. It ends with its cluster, and
the process ends with it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Coroutine, Mapping, Sequence
from multiprocessing import AuthenticationError
from typing import Any

from quintain.process import introduced

from .child import ChildProcess
from .frames import (
    ENDED,
    FAILED,
    FRAMES,
    HELD,
    KILL,
    LINE,
    SPAWN,
    SPAWNED,
    TEXTS,
    TOKEN,
    FrameStream,
    sendable,
)
from .venvs import python_with

PATIENCE = 60.0
"""Seconds that it waits for the run."""
BEAT = 1.0
"""Seconds between two words about memory."""
REFUSED, NOBODY = 2, 3
"""Exit codes: the run has another token; nobody is there."""


def main(words: Sequence[str] | None = None) -> int:
    """Serve a run until it is gone for good; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m quintain_scale.workers.join", description=__doc__
    )
    parser.add_argument("address", metavar="HOST:PORT", help="where the run listens")
    parser.add_argument("--seat", required=True, help="what the run calls this process")
    found = parser.parse_args(words)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run decides when to stop
    host, _, port = found.address.rpartition(":")
    watcher = Watcher((host.strip("[]"), int(port)), os.environ.get(TOKEN, "").encode(), found.seat)
    return asyncio.run(watcher.serve())


class Watcher:
    """Starts the processes of a seat, and watches them."""

    def __init__(self, address: tuple[str, int], token: bytes, seat: str) -> None:
        self._address, self._token, self._seat = address, token, seat
        self._children: dict[int, ChildProcess] = {}
        self._work: set[asyncio.Task[None]] = set()

    async def serve(self) -> int:
        """Connect to the run, again whenever the connection is lost; return the exit code."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                peer = await asyncio.to_thread(self._connected, self._seat)
            except AuthenticationError:
                print(f"the run has another token than {TOKEN}", file=sys.stderr)
                return REFUSED
            except (OSError, EOFError) as error:
                if time.monotonic() > deadline:
                    print(f"no run at {self._address}: {error}", file=sys.stderr)
                    return NOBODY
                await asyncio.sleep(1.0)
                continue
            await self._attend(peer)
            deadline = time.monotonic() + PATIENCE

    def _connected(self, name: str) -> socket.socket:
        said = {"name": name, "host": socket.gethostname()}
        return introduced(self._address, self._token, said)

    async def _attend(self, peer: socket.socket) -> None:
        """Do what the run says until it is gone, and its processes with it."""
        gone = asyncio.Event()
        frames = self._frames = FrameStream(self._received, gone.set)
        await frames.connect(peer)
        while not gone.is_set():
            for number, child in self._children.items():
                child.tidy()
                frames.send(HELD, number, child.held)
            try:
                async with asyncio.timeout(BEAT):
                    await gone.wait()
            except TimeoutError:
                pass
        for child in self._children.values():
            child.kill()
        await asyncio.gather(*self._work, return_exceptions=True)

    def _received(self, frame: tuple[Any, ...]) -> None:
        match frame:
            case (kind, number, names, requirements, path) if kind == SPAWN:
                self._begin(self._spawn(number, names, requirements, path))
            case (kind, number) if kind == KILL:
                if (child := self._children.get(number)) is not None:
                    child.kill()
            case (kind, number) if kind == LINE:
                if (child := self._children.get(number)) is not None:
                    self._begin(self._say_line(number, child))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    async def _say_line(self, number: int, child: ChildProcess) -> None:
        self._frames.send(LINE, number, await child.line())

    async def _spawn(
        self,
        number: int,
        names: Mapping[str, str],
        requirements: Sequence[str],
        path: Sequence[str] | None,
    ) -> None:
        """Start a process whose connections have these *names*; say how it ends."""
        frames = self._frames
        try:
            python = [sys.executable]
            if requirements:
                python = [str(await asyncio.to_thread(python_with, requirements)), "-I"]
            channel = await asyncio.to_thread(self._connected, names[FRAMES])
            texts = await asyncio.to_thread(self._connected, names[TEXTS])
            child = ChildProcess(python, None if path is None else here(path))
            with channel, texts:
                child.spawn(channel, texts)
        except Exception as error:  # noqa: BLE001 - raised again in the run
            frames.send(FAILED, number, sendable(error))
            return
        self._children[number] = child
        frames.send(SPAWNED, number, child.pid)
        end = await child.ended()
        del self._children[number]
        frames.send(ENDED, number, end)


def here(path: Sequence[str]) -> list[str]:
    """Return where a process of this machine finds modules: as the watcher, then where the run has
    them, if this machine has these folders.
    """
    return [*sys.path, *(p for p in path if p not in sys.path and os.path.exists(p))]


if __name__ == "__main__":
    sys.exit(main())
