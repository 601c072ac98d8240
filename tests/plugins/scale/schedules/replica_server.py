"""The process of a replica, without a model: `python replica_server.py [HOST PORT]`. It needs no
package.

Without an address it chooses a port, prints it, and ends when its input does. Its tokens are a
function of the prefix, of the seed, and of the bytes of the weights that it was sent, which arrive
in pieces.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from typing import Any

SECONDS = 0.002
"""Of a token, and of a piece of the weights."""


def token(prefix: list[int], seed: int, content: str) -> int:
    """The token after *prefix*; less than 250, so that it never stops a turn."""
    named = repr((prefix, seed, content)).encode()
    return hashlib.blake2b(named, digest_size=1).digest()[0] % 250


class Server:
    def __init__(self) -> None:
        self.version, self.content, self.pieces = 0, "nothing", list[str]()
        self.whole = asyncio.Event()
        self.whole.set()

    async def answer(self, call: dict[str, Any]) -> dict[str, Any]:
        if call["do"] == "sample":
            new, versions, contents = list[int](), list[int](), list[str]()
            for _ in range(call["count"]):
                await asyncio.sleep(SECONDS)
                await self.whole.wait()  # as engines do, it decodes nothing while weights arrive
                new.append(token([*call["ids"], *new], call["seed"], self.content))
                versions.append(self.version)
                contents.append(self.content)
            return {"ids": new, "versions": versions, "contents": contents}
        if call["do"] == "piece":
            await asyncio.sleep(SECONDS)
            self.content = "half of the weights"
            self.whole.clear()
            self.pieces.append(call["piece"])
        if call["do"] == "finish":
            self.content = hashlib.blake2b("".join(self.pieces).encode(), digest_size=8).hexdigest()
            self.version, self.pieces = call["version"], []
            self.whole.set()
        return {"canary": token([1, 2, 3], 0, self.content), "content": self.content}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        call = json.loads(await reader.readline())
        writer.write(json.dumps(await self.answer(call)).encode() + b"\n")
        await writer.drain()
        writer.close()


async def main(host: str = "", port: str = "0") -> None:
    address = host or "127.0.0.1", int(port)
    server = await asyncio.start_server(Server().serve, *address, limit=1 << 20)
    if host:
        await asyncio.Event().wait()
    print(server.sockets[0].getsockname()[1], flush=True)
    loop = asyncio.get_running_loop()
    # its parent holds the other end: the process ends with it
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
