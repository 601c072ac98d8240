"""A replica whose server is started by a cluster."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from quintain import InfrastructureError, Weights
from quintain.interfaces import ProcessCluster
from quintain_engines.placed import PlacedServer

from ..schedules.process_replica import SERVER, ProcessReplica, content_of


class PlacedReplica(ProcessReplica):
    """Samples with a server that *cluster* starts.

    Attributes:
        servers: of all replicas, oldest first.
    """

    name = "placed-replica"
    servers: ClassVar[list[PlacedServer]] = []

    def __init__(self, *, context: int = 256, cluster: ProcessCluster | None = None) -> None:
        super().__init__(context=context)
        assert cluster is not None
        self._server = PlacedServer(cluster)

    async def __aenter__(self) -> PlacedReplica:
        await self._start()
        self.servers.append(self._server)
        self._host, self._port = self._server.host, self._server.port
        try:
            while not await self._listens():  # noqa: ASYNC110 -- another process is waited for
                await asyncio.sleep(0.02)
        except BaseException:
            await self._server.close()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._server.close()

    async def _start(self) -> None:
        words = ["-S", "-E", str(SERVER), "{host}", "{port}"]
        await self._server.start(words, patience=120)

    async def _listens(self) -> bool:
        if self._server.is_gone:
            raise InfrastructureError(f"it does not start: {await self._server.last_words()}")
        try:
            await super().probe()
        except InfrastructureError:
            return False
        return True

    async def probe(self) -> None:
        if self._server.is_gone:
            raise InfrastructureError(f"the server is gone: {await self._server.last_words()}")
        await super().probe()

    async def update(self, weights: Weights) -> int:
        return await self.send(weights, content_of(weights))
