"""What stands before vLLM's routes in a server that a run has placed on a cluster."""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from ..placed import SERVER_FOLDER, SERVER_TOKEN, unpack_folder

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Scope]]
Send = Callable[[Scope], Awaitable[None]]

FILE = "/quintain/file"
"""Where the run puts a file."""
FOLDER = "/quintain/folder"
"""Where it puts an archive of a folder."""


class RunOnly:
    """Middleware (ASGI) that answers nobody without the token of the server, on no route, and keeps
    one file in memory, and the last two folders, for the workers of this machine.

    vLLM's own key guards some routes, not those that take weights. The file has no name, so that it
    goes with the process. Of two folders the new one may still be on its way into the workers.
    """

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self._app = app
        self._expected = f"Bearer {os.environ[SERVER_TOKEN]}".encode()
        self._file: int | None = None
        self._folders: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan" and not self._knows(scope):
            refusal = {"error": "this server answers the run that started it"}
            await _answer(send, 401, refusal)
        elif scope["type"] != "http" or scope["path"] not in (FILE, FOLDER):
            await self._app(scope, receive, send)
        else:
            self._forget()
            if scope["method"] == "PUT":
                await self._receive(receive)
            path = "" if self._file is None else f"/proc/{os.getpid()}/fd/{self._file}"
            if path and scope["path"] == FOLDER:
                path = await asyncio.to_thread(self._unpacked, path)
                self._forget()
            await _answer(send, 200, {"path": path})

    def _unpacked(self, archive: str) -> str:
        """Return a new folder with the files of *archive*."""
        folder = tempfile.mkdtemp(dir=os.environ[SERVER_FOLDER])
        with open(archive, "rb") as packed:
            unpack_folder(packed, folder)
        self._folders.append(folder)
        if len(self._folders) > 2:
            shutil.rmtree(self._folders.pop(0), ignore_errors=True)
        return folder

    def _knows(self, scope: Scope) -> bool:
        said = dict(scope["headers"]).get(b"authorization", b"")
        return hmac.compare_digest(said, self._expected)

    async def _receive(self, receive: Receive) -> None:
        """Write what comes into a new file. Of a peer that goes away in between nothing is kept."""
        self._file = os.memfd_create("quintain-weights")
        with os.fdopen(self._file, "wb", closefd=False) as file:
            while (message := await receive())["type"] == "http.request":
                file.write(message.get("body", b""))
                if not message.get("more_body"):
                    return
        self._forget()

    def _forget(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


async def _answer(send: Send, status: int, body: Any) -> None:
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(body).encode()})
