"""A replica in a process of its own, which can be killed at any moment."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from quintain import InfrastructureError, Sampled, Sampling, TokenEngine, Weights
from quintain.errors import RunError
from quintain_authoring.byte_tokenizer import ByteTokenizer

from .replica_server import token

SERVER = Path(__file__).parent / "replica_server.py"
PIECES = 6


def pieces_of(weights: Weights) -> list[str]:
    """The digests of the tensors of *weights*, in pieces."""
    digests = [
        hashlib.blake2b(f"{name} {tensor.numpy().tobytes().hex()}".encode()).hexdigest()
        for name, tensor in weights.tensors().items()
    ]
    return ["".join(digests[start::PIECES]) for start in range(PIECES)]


def content_of(weights: Weights) -> str:
    """What a server computes with once it has all of *weights*."""
    return hashlib.blake2b("".join(pieces_of(weights)).encode(), digest_size=8).hexdigest()


class ProcessReplica(TokenEngine):
    """Samples with a server that it starts.

    Attributes:
        processes: of all replicas, of those that run.
        transfers: of the processes that are taking weights.
        contents: by version, what was published.
    """

    name = "process-replica"
    processes: ClassVar[set[asyncio.subprocess.Process]] = set()
    transfers: ClassVar[set[asyncio.subprocess.Process]] = set()
    contents: ClassVar[dict[int, str]] = {}

    def __init__(self, *, context: int = 256) -> None:
        self.tokenizer, self.context = ByteTokenizer(), context
        self._process: asyncio.subprocess.Process | None = None
        self._host, self._port = "127.0.0.1", 0

    async def __aenter__(self) -> ProcessReplica:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-S", "-E", str(SERVER), stdin=pipe, stdout=pipe
        )
        self._process = process
        self.processes.add(process)
        assert process.stdout is not None
        try:
            line = await process.stdout.readline()
            if not line:
                raise InfrastructureError("the server ended before it had a port")
        except BaseException:
            await self.__aexit__()
            raise
        self._port = int(line)
        return self

    async def __aexit__(self, *exc: object) -> None:
        process, self._process = self._process, None
        if process is not None:
            self.processes.discard(process)
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _call(self, **call: Any) -> Any:
        try:
            reader, writer = await asyncio.open_connection(self._host, self._port, limit=1 << 20)
            try:
                writer.write(json.dumps(call).encode() + b"\n")
                line = await reader.readline()
            finally:
                writer.close()
        except OSError as error:
            raise InfrastructureError(f"the server does not answer: {error}") from error
        if not line.endswith(b"\n"):
            raise InfrastructureError("the server ended in the middle of an answer")
        return json.loads(line)

    async def probe(self) -> None:
        await self._call(do="health")

    async def sample(self, ids: Sequence[int], sampling: Sampling) -> Sampled:
        count = min(sampling.max_tokens or self.context, self.context - len(ids))
        answer = await self._call(do="sample", ids=list(ids), seed=sampling.seed, count=count)
        return Sampled(
            ids=tuple(answer["ids"]),
            logps=(-5.0,) * count,
            versions=tuple(answer["versions"]),
            finish="length",
        )

    async def score(
        self, ids: Sequence[int], start: int, temperature: float = 1.0
    ) -> Sequence[float]:
        return [-5.0] * (len(ids) - start)

    async def outdated(self, weights: Weights) -> str:
        answer = await self._call(do="health")
        return "" if answer["content"] == content_of(weights) else "a tensor"

    async def update(self, weights: Weights) -> int:
        process, content = self._process, content_of(weights)
        if process is None:
            raise InfrastructureError("the server has ended")
        self.transfers.add(process)
        try:
            return await self.send(weights, content)
        finally:
            self.transfers.discard(process)

    async def send(self, weights: Weights, content: str) -> int:
        """Send *weights*, whose server computes with *content* then, and check the canary."""
        assert self.contents.setdefault(weights.version, content) == content, "torn weights"
        for piece in pieces_of(weights):
            await self._call(do="piece", piece=piece)
        answer = await self._call(do="finish", version=weights.version)
        if answer["canary"] != token([1, 2, 3], 0, content):
            raise RunError(f"the canary of version {weights.version} differs")
        self.version = weights.version
        return self.version
