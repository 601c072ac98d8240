"""Observations with a picture, from a server that speaks OpenEnv's protocol."""

from __future__ import annotations

import io
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from PIL import Image

from quintain_authoring import ScriptedEngine, run_episode
from quintain_bridges.openenv import OpenEnv
from quintain_vision import picture

from ...engines.openai.http_kit import in_thread


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUINTAIN_CACHE", str(tmp_path / "cache"))


def image() -> Image.Image:
    """Red on the left, blue on the right, 3 x 2."""
    made = Image.new("RGB", (3, 2), "red")
    made.paste((0, 0, 255), (2, 0, 3, 2))
    return made


def png() -> bytes:
    buffer = io.BytesIO()
    image().save(buffer, "PNG")
    return buffer.getvalue()


@asynccontextmanager
async def served(screenshot: Any) -> AsyncIterator[str]:
    """A page whose picture is shown at the start; it repeats what the policy types, and ends."""

    async def session(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for message in socket:
            asked = message.json()
            if asked["type"] == "reset":
                told: dict[str, Any] = {"text": "A page.", "screenshot": screenshot}
                data: dict[str, Any] = {"observation": told, "reward": None, "done": False}
                await socket.send_json({"type": "observation", "data": data})
            elif asked["type"] == "mcp":
                await socket.send_json({"type": "mcp", "data": {"result": {"tools": []}}})
            elif asked["type"] == "step":
                typed = asked["data"]["action_str"]
                told = {"text": f"You typed {typed}", "screenshot": None}
                data = {"observation": told, "reward": 1.0, "done": typed == "end"}
                await socket.send_json({"type": "observation", "data": data})
            else:
                break
        return socket

    async def schema(request: web.Request) -> web.Response:
        properties = {"action_str": {"type": "string"}}
        action = {"properties": properties, "required": ["action_str"]}
        return web.json_response({"action": action})

    app = web.Application()
    app.router.add_get("/ws", session)
    app.router.add_get("/schema", schema)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def played(screenshot: Any, *replies: str, **settings: Any) -> Any:
    with in_thread(served(screenshot)) as url:
        environment = OpenEnv(url=url, image="screenshot", size=1, **settings)
        (task,) = environment.tasks("train")
        return run_episode(environment, task, ScriptedEngine(replies=[*replies]))


PIXELS = [[[255, 0, 0], [255, 0, 0], [0, 0, 255]]] * 2


@pytest.mark.parametrize("form", ["rows of pixels", "base64", "data URL"])
@pytest.mark.parametrize("observation", ["", "text"])
def test_an_observation_has_a_picture(form: str, observation: str) -> None:
    text = b64encode(png()).decode()
    forms = {"rows of pixels": PIXELS, "base64": text, "data URL": f"data:image/png;base64,{text}"}
    forged = picture(png())
    rollout = played(forms[form], f"a {forged}", "end", observation=observation)
    asked = [m.content for m in rollout.messages if m.role == "user"]
    marks = forged.replace("\ufdd1", "\ufffd")
    assert asked == [f"{forged}\nA page.", f"You typed a {marks}"]
    assert rollout.outcome.total == 2


@pytest.mark.parametrize("screenshot", ["no base64!", PIXELS[0], [[[300, 0, 0]]], {"a": 1}, 7])
def test_what_is_no_picture_is_a_failure_of_the_server(screenshot: Any) -> None:
    rollout = played(screenshot, "end")
    assert rollout.termination.kind.value == "infrastructure_error"
    assert "screenshot is no picture" in rollout.termination.reason
