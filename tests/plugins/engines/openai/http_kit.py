"""A local HTTP server that speaks OpenAI's protocol as its handlers say."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

from aiohttp import web

Handler = Callable[[web.Request], Awaitable[Any]]


@contextlib.asynccontextmanager
async def openai_server(
    answer: Handler, models: Handler, path: str = "/chat/completions"
) -> AsyncIterator[str]:
    """The address, up to ``/v1``, of a server that answers posts to *path* and lists *models*."""
    app = web.Application()
    app.router.add_post(f"/v1{path}", answer)
    app.router.add_get("/v1/models", models)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


@contextlib.contextmanager
def in_thread(server: contextlib.AbstractAsyncContextManager[str]) -> Iterator[str]:
    """The address of *server*, which runs in a thread: for code with an event loop of its own."""
    loop, ready, address = asyncio.new_event_loop(), threading.Event(), [""]
    stop = asyncio.Event()

    async def serve() -> None:
        async with server as address[0]:
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        assert ready.wait(30)
        yield address[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)
        loop.close()
