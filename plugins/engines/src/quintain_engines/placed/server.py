"""A server on a cluster, from the side of the run that asked for it."""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from quintain.errors import RunError
from quintain.interfaces import PlacedProcess, ProcessCluster, ProcessRequest
from quintain.process import keep_alive

from .folders import pack_folder
from .keeper import LAST, SERVER_TOKEN, SIZE

GREETING = 10.0
"""Seconds that a peer has to show that it knows the token."""
LOOK_SECONDS = 0.5
"""Between two looks at a process that has not come, or not ended, yet."""


class PlacedServer:
    """A server in a process of a cluster. It listens where the run reaches it, at a port of its own,
    and ends with the run, also if that is killed.

    It is not started again: who owns it asks for another one, which is elsewhere and knows nothing.

    Attributes:
        host, port: where it listens, once it is started.
        token: that it finds in the environment variable ``QUINTAIN_SERVER_TOKEN``, to refuse others.
            It crosses the network in clear text.
        pid: of the server, on its machine.
    """

    def __init__(self, cluster: ProcessCluster) -> None:
        self.host, self.port, self.pid = "", 0, 0
        self.token = secrets.token_hex()
        self._cluster = cluster
        self._placed: PlacedProcess | None = None
        self._files = b""
        self._tie: asyncio.StreamWriter | None = None
        self._came, self._gone = asyncio.Event(), asyncio.Event()

    async def start(
        self,
        words: Sequence[str],
        *,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
        gpus: float = 0,
        patience: float,
    ) -> Self:
        """Start Python with *words*; returns when the process is there, which may be before it
        answers requests.

        Args:
            words: see `quintain_engines.placed.keeper`; the words ``{host}``, ``{port}`` and ``{folder}``
                are filled in there.
            folder: whose files it gets a copy of. They are in memory on their way.
            environment: variables of the server.
            gpus: that it needs, all on one machine.
            patience: seconds that it may take until there is room and it has come.

        Raises:
            RunError: it has ended, or has not come.
        """
        if folder is not None:
            self._files = await asyncio.to_thread(pack_folder, folder)
        listening = await asyncio.start_server(self._greet, self._cluster.host, 0)
        address = f"{self._cluster.host}:{listening.sockets[0].getsockname()[1]}"
        request = ProcessRequest(
            role="replica",
            words=("-m", "quintain_engines.placed.keeper", address, *words),
            environment={**(environment or {}), SERVER_TOKEN: self.token},
            gpus=gpus,
            restarts=False,
        )
        try:
            await self._place(request)
            async with asyncio.timeout(patience):
                while not self._came.is_set():
                    await self._look()
        except TimeoutError:
            room = "" if await self._has_room() else ", for which it has no room"
            await self.close()
            raise RunError(
                f"the cluster has started no server within {patience:g} s{room}"
            ) from None
        except BaseException:
            await self.close()
            raise
        finally:
            listening.close()
            self._files = b""
        return self

    async def _place(self, request: ProcessRequest) -> None:
        starting = asyncio.ensure_future(asyncio.to_thread(self._cluster.start, [request]))
        try:
            (self._placed,) = await asyncio.shield(starting)
        except asyncio.CancelledError:  # it would stay for as long as the run
            (self._placed,) = await starting
            raise

    async def _look(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_SECONDS):
                await self._came.wait()
                return
        if (said := await self._ended()) is not None and not self._came.is_set():
            raise RunError(f"the server ended before it had a port: {said}")

    async def _ended(self) -> str | None:
        placed = self._placed
        return None if placed is None else await asyncio.to_thread(lambda: placed.ended)

    async def _has_room(self) -> bool:
        placed = self._placed
        return placed is not None and bool(await asyncio.to_thread(lambda: placed.host))

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer a peer that has connected; return when it is gone."""
        try:
            async with asyncio.timeout(GREETING):
                token = await reader.readline()
            if self._tie is not None or not hmac.compare_digest(token.strip(), self.token.encode()):
                return
            self._tie = writer
            keep_alive(writer.get_extra_info("socket"))
            writer.write(len(self._files).to_bytes(SIZE, "big") + self._files)
            await writer.drain()
            said: dict[str, Any] = json.loads(await reader.readline())
            self.host, self.port, self.pid = said["host"], said["port"], said["pid"]
            self._came.set()
            await reader.read()
        except (OSError, ValueError, TimeoutError):
            return  # whoever it was; a server that ends here is missed by its owner
        finally:
            writer.close()
            if self._tie is writer:
                self._gone.set()

    @property
    def address(self) -> str:
        """Where it listens, as part of a URL."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_gone(self) -> bool:
        """Whether it, or its machine, has ended since it came."""
        return self._gone.is_set()

    async def last_words(self) -> str:
        """Return what became of it, which the cluster may learn a little later than `is_gone`."""
        return await self._fate(within=4 * LOOK_SECONDS) or "its connection to the run ended"

    async def _fate(self, *, within: float) -> str:
        """Return its exit code and last words, once it has ended; empty if it has not *within* so
        many seconds.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                while (said := await self._ended()) is None:  # noqa: ASYNC110 -- a cluster has no event
                    await asyncio.sleep(LOOK_SECONDS / 5)
                return said
        return ""

    async def close(self) -> None:
        """End it: by its own means if it is there, else by those of the cluster."""
        if self._tie is not None and not self.is_gone:
            self._tie.close()
            await self._fate(within=2 * LAST)
        placed, self._placed = self._placed, None
        if placed is not None:
            await asyncio.to_thread(placed.end)
