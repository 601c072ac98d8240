"""Messages with pictures, as a server of OpenAI's form gets them."""

from __future__ import annotations

import asyncio
import io
import json
from base64 import b64decode
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from PIL import Image

from quintain import Message, Sampling, ToolCall
from quintain.errors import UsageError
from quintain_engines.openai import protocol
from quintain_engines.openai.client import OpenAIEngine
from quintain_vision import message, picture, tool_picture

from .http_kit import openai_server


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUINTAIN_CACHE", str(tmp_path / "cache"))


def saved(colour: str, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (4, 2), colour).save(buffer, kind)
    return buffer.getvalue()


def asked(*messages: Message) -> list[Any]:
    """The messages in the request that a real server gets."""
    bodies: list[Any] = []

    async def chat(request: web.Request) -> web.Response:
        bodies.append(await request.json())
        said = {"role": "assistant", "content": "red"}
        choice = {"index": 0, "finish_reason": "stop", "message": said}
        return web.json_response({"choices": [choice]})

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m"}]})

    async def play() -> None:
        async with openai_server(chat, models) as url, OpenAIEngine(base_url=url) as engine:
            assert (await engine.reply(messages, (), Sampling())).text == "red"

    asyncio.run(play())
    found: list[Any] = bodies[0]["messages"]
    return found


def test_pictures_of_users_and_tools_are_data_urls() -> None:
    question = message(
        "user",
        [
            {"type": "text", "text": "Which colour "},
            {"type": "image", "image": saved("red")},
            {"type": "text", "text": " or "},
            {"type": "image", "image": saved("blue", "WEBP")},
        ],
    )
    call = ToolCall(name="look", id="c1")
    told = replace(
        message("tool", [{"type": "image", "image": saved("green", "JPEG")}]), call_id="c1"
    )
    user, turn, tool = asked(question, Message("assistant", "", calls=(call,)), told)
    assert [part["type"] for part in user["content"]] == ["text", "image_url", "text", "image_url"]
    assert [part["text"] for part in user["content"][::2]] == ["Which colour ", " or "]
    assert turn["content"] is None
    assert tool["tool_call_id"] == "c1"
    urls = [part["image_url"]["url"] for part in (*user["content"][1::2], *tool["content"])]
    kinds = [url.partition(";base64,")[0] for url in urls]
    assert kinds == ["data:image/png", "data:image/webp", "data:image/jpeg"]
    files = [b64decode(url.partition(",")[2]) for url in urls]
    assert files == [saved("red"), saved("blue", "WEBP"), saved("green", "JPEG")]


def test_what_the_policy_spells_is_sent_as_text() -> None:
    """Known or not, it is no picture and no error."""
    known = picture(saved("red"))
    for forged in (known, known.replace(known[-33:-1], "0" * 32), tool_picture(saved("red"))[:-1]):
        talk = [Message("user", "?"), Message("assistant", forged), Message("tool", forged)]
        assert [m["content"] for m in asked(*talk)] == ["?", forged, forged]


def test_a_picture_that_is_lost_ends_the_run() -> None:
    known = picture(saved("red"))
    with pytest.raises(UsageError, match="there is no picture"):
        asked(Message("user", known.replace(known[-33:-1], "0" * 32)))


def test_without_the_plugin_a_picture_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    text = picture(saved("red"))
    monkeypatch.setattr(protocol, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"quintain-engines\[pictures\]"):
        protocol.message_json(Message("user", text))
    assert protocol.message_json(Message("tool", text))["content"] == text


def test_a_picture_may_be_many_tokens() -> None:
    """A context is outgrown by the policy's fault or not, which the size of a file cannot tell."""
    talk = [Message("user", picture(saved("red")))]
    assert protocol.most_tokens(talk, ()) > 16_384


def test_what_a_server_replies_holds_no_picture() -> None:
    """An environment may repeat it in a message of the user."""
    forged = picture(saved("red"))
    call = {"id": "c", "function": {"name": "f", "arguments": json.dumps({"a": [forged]})}}
    said = {"role": "assistant", "content": forged, "reasoning": forged, "tool_calls": [call]}
    reply = protocol.reply_of({"choices": [{"index": 0, "message": said}]})
    assert forged[1:-1] in reply.text
    assert "\ufdd1" not in reply.text + reply.reasoning + str(reply.calls[0].arguments)
