"""Images that agents send, in all three APIs."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from quintain import InfrastructureError, Message, Sampling
from quintain.models import PICTURE_TOKENS
from quintain_vision import picture, tool_picture

from ...pictures import png
from .kit import ADD, Client, client

APIS = ["chat", "responses", "messages"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUINTAIN_CACHE", str(tmp_path / "cache"))


def url_of(data: bytes) -> str:
    return f"data:image/png;base64,{b64encode(data).decode()}"


def part(api: str, url: str) -> dict[str, Any]:
    """An image as each API has it."""
    if api == "chat":
        return {"type": "image_url", "image_url": {"url": url, "detail": "low"}}
    if api == "responses":
        return {"type": "input_image", "image_url": url, "detail": "auto"}
    if not url.startswith("data:"):
        return {"type": "image", "source": {"type": "url", "url": url}}
    source = {"type": "base64", "media_type": "image/png", "data": url.partition(",")[2]}
    return {"type": "image", "source": source}


def text(api: str, content: str) -> dict[str, Any]:
    return {"type": "input_text" if api == "responses" else "text", "text": content}


async def send(here: Client, api: str, *items: Any, **more: Any) -> tuple[int, Any]:
    path, name = {
        "chat": ("/chat/completions", "messages"),
        "responses": ("/responses", "input"),
        "messages": ("/messages", "messages"),
    }[api]
    return await here.post(path, {"model": "m", name: list(items), "max_tokens": 4, **more})


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": [*parts]}


def result(api: str, *parts: Any) -> list[Any]:
    """A call of a tool, and its result."""
    if api == "chat":
        function = {"name": "add", "arguments": "{}"}
        call = {"id": "c1", "type": "function", "function": function}
        asked = {"role": "assistant", "content": None, "tool_calls": [call]}
        return [asked, {"role": "tool", "tool_call_id": "c1", "content": [*parts]}]
    if api == "responses":
        return [
            {"type": "function_call", "name": "add", "arguments": "{}", "call_id": "c1"},
            {"type": "function_call_output", "call_id": "c1", "output": [*parts]},
        ]
    block = {"type": "tool_use", "id": "c1", "name": "add", "input": {}}
    told = {"type": "tool_result", "tool_use_id": "c1", "content": [*parts]}
    return [{"role": "assistant", "content": [block]}, user(told)]


def seen(here: Client) -> list[Message]:
    """The messages of the only conversation."""
    (conversation,) = here.policy.conversations.values()
    return conversation._conversation.messages


@pytest.mark.parametrize("api", APIS)
def test_images_of_users_and_tools_are_pictures(api: str) -> None:
    async def play() -> None:
        async with client() as here:
            status, body = await send(
                here,
                api,
                user(part(api, url_of(png())), text(api, "Look.")),
                *result(api, text(api, "seen"), part(api, url_of(png("blue")))),
            )
            assert status == 200, body
            contents = [m.content for m in seen(here)]
            assert contents[0] == f"{picture(png())}Look."
            assert contents[2] == f"seen{tool_picture(png('blue'))}"

    asyncio.run(play())


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    ("url", "code", "reason"),
    [
        ("https://example.org/a.png", "unsupported_parameter", "nothing is fetched"),
        ("file:///etc/passwd", "unsupported_parameter", "nothing is fetched"),
        (url_of(b"no picture"), "invalid_image", "no PNG, JPEG or WebP"),
        (url_of(png(size=(40, 28))[:60]), "invalid_image", "broken"),
        (url_of(png(size=(4097, 4096))), "invalid_image", "the limit is 16,777,216"),
    ],
)
def test_an_image_that_is_none_is_refused(api: str, url: str, code: str, reason: str) -> None:
    async def play() -> None:
        async with client() as here:
            for items in ([user(part(api, url))], [user(), *result(api, part(api, url))]):
                status, body = await send(here, api, *items)
                assert status == 400
                assert reason in body["error"]["message"]
                details = body["error"].get("details", {})
                assert code in (body["error"].get("code"), details.get("error_code"))

    asyncio.run(play())


@pytest.mark.parametrize("api", APIS)
def test_images_are_of_users_and_tools_and_no_more_than_16(api: str) -> None:
    async def play() -> None:
        async with client() as here:
            image = part(api, url_of(png()))
            status, body = await send(here, api, user(*[image] * 17))
            assert (status, "17 images" in body["error"]["message"]) == (400, True)
            turn = {"role": "assistant", "content": [image]}
            status, body = await send(here, api, user(text(api, "x")), turn, user(text(api, "y")))
            assert (status, "of users and tools" in body["error"]["message"]) == (400, True)

    asyncio.run(play())


@pytest.mark.parametrize("api", APIS)
def test_new_images_of_a_request_have_a_limit_of_pixels_together(
    api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others wait while they are decoded. Those of earlier requests are not decoded again."""
    monkeypatch.setattr("quintain_gateway.fields.MOST_NEW_PIXELS", 1000)
    # no other test, nor API, has these
    images = [png(f"#1234{APIS.index(api)}{i}", (20, 20)) for i in range(4)]
    parts = [part(api, url_of(one)) for one in images]

    async def play() -> None:
        async with client() as here:
            status, body = await send(here, api, user(*parts[:2]), *result(api, parts[2]))
            details = body["error"].get("details", {})
            assert (status, "have 1,200 pixels" in body["error"]["message"]) == (400, True)
            assert "invalid_image" in (body["error"].get("code"), details.get("error_code"))
            # the first two are known by now
            status, body = await send(here, api, user(*parts))
            assert status == 200, body

    asyncio.run(play())


@pytest.mark.parametrize("api", APIS)
def test_a_text_of_an_agent_spells_no_picture(api: str) -> None:
    """An agent may send what the policy wrote as a message of its user."""
    forged = [picture(png()), tool_picture(png())]

    async def play() -> None:
        async with client() as here:
            items = [user(text(api, forged[0])), *result(api, text(api, forged[1]))]
            more = {"instructions": forged[0]} if api == "responses" else {}
            more |= {"system": forged[0]} if api == "messages" else {}
            status, body = await send(here, api, *items, tools=[], **more)
            assert status == 200, body
            assert not any(one in m.content for m in seen(here) for one in forged)
            if api == "responses":
                await send(here, api)
                status, _ = await here.post("/responses", {"input": forged[0]})
                assert status == 200
                assert not any(
                    forged[0] in m.content
                    for c in here.policy.conversations.values()
                    for m in c._conversation.messages
                )

    asyncio.run(play())


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("by_a_tool", [False, True])
def test_a_store_that_cannot_be_written_fails_the_episode(
    api: str, by_a_tool: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("QUINTAIN_CACHE", str(tmp_path / "file"))

    async def play() -> None:
        async with client() as here:
            image = part(api, url_of(png()))
            items = [user(), *result(api, image)] if by_a_tool else [user(image)]
            status, body = await send(here, api, *items)
            assert (status, str(tmp_path) in str(body)) == (500, False)
            details = body["error"].get("details", {})
            assert "internal_error" in (body["error"].get("code"), details.get("error_code"))
            assert isinstance(here.endpoint.failure, InfrastructureError)
            status, _ = await send(here, api, user(text(api, "Go on.")))
            assert (status, here.endpoint.failure is None) == (200, False)

    asyncio.run(play())


def test_without_the_plugin_an_image_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quintain_gateway.fields.find_spec", lambda name: None)

    async def play() -> None:
        async with client() as here:
            status, body = await send(here, "chat", user(part("chat", url_of(png()))))
            assert status == 400
            assert "quintain-gateway[pictures]" in body["error"]["message"]

    asyncio.run(play())


@pytest.mark.slow
def test_a_vision_model_sees_what_an_agent_sends(tmp_path: Path) -> None:
    """Two turns, with a picture in each: the second continues the tokens of the first."""
    from quintain.engine import EmbeddedEngine
    from quintain.models import load_model

    from ..vision import tiny

    loaded = load_model(tiny.save(tmp_path / "model", "smolvlm"))
    engine: Any = EmbeddedEngine.sharing(loaded.module, loaded.tokenizer)

    async def play() -> None:
        async with engine, client(engine=engine, sampling=Sampling(max_tokens=4, seed=3)) as here:
            items = [user(part("chat", url_of(png())), text("chat", "What?"))]
            _, body = await send(here, "chat", *items, return_token_ids=True)
            first = body["prompt_token_ids"]
            assert sum(i >= PICTURE_TOKENS for i in first) == 20
            items += [body["choices"][0]["message"], *result("chat", text("chat", "x"))]
            items[-1]["content"].append(part("chat", url_of(png("blue"))))
            _, body = await send(here, "chat", *items, return_token_ids=True, tools=[ADD])
            pictures = [i for i in body["prompt_token_ids"] if i >= PICTURE_TOKENS]
            assert len(pictures) == 40
            assert pictures[:20] == [i for i in first if i >= PICTURE_TOKENS]

    asyncio.run(play())


@pytest.mark.slow
def test_a_model_of_text_refuses_images_of_users(tmp_path: Path) -> None:
    from tests.core.models.tiny import save_tiny

    from quintain.engine import EmbeddedEngine
    from quintain.models import load_model

    loaded = load_model(save_tiny(tmp_path / "model"))
    engine: Any = EmbeddedEngine.sharing(loaded.module, loaded.tokenizer)

    async def play() -> None:
        async with engine, client(engine=engine, sampling=Sampling(max_tokens=4)) as here:
            for path in ("/messages", "/messages/count_tokens"):
                asked = {"messages": [user(part("messages", url_of(png())))], "max_tokens": 4}
                status, body = await here.post(path, asked)
                assert status == 400
                assert body["error"]["details"]["error_code"] == "unsupported_messages"
                assert "model of text" in body["error"]["message"]

    asyncio.run(play())
