"""A local HTTP server that speaks OpenAI's protocol as its handlers say."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from aiohttp import web

Handler = Callable[[web.Request], Awaitable[Any]]


@contextlib.asynccontextmanager
async def openai_server(answer: Handler, models: Handler, path: str = "/chat/completions") -> AsyncIterator[str]:
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
