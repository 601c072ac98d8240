"""`POST /v1/feedback`: what is written, what is refused, what survives."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from quintain.errors import UsageError
from quintain_authoring.scripted import fake_logp
from quintain_gateway.serving import ModelServer
from quintain_gateway.traffic import FEEDBACK, RESPONSES, TrafficJournal, version_of

from .kit import talk
from .test_serve import serving

Calls = Callable[..., Awaitable[tuple[int, dict[str, Any]]]]


def calls(server: ModelServer, http: aiohttp.ClientSession) -> Calls:
    async def post(path: str, body: dict[str, Any], key: str = "one") -> tuple[int, dict[str, Any]]:
        head = {"Authorization": f"Bearer {key}"}
        async with http.post(server.base_url + path, json=body, headers=head) as answer:
            return answer.status, await answer.json()

    return post


def lines(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


ASK = {"messages": talk("a"), "temperature": 0.5, "user": "ann"}


def test_a_reply_is_written_with_its_exact_tokens_before_it_is_rated(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving("hi", record=tmp_path) as (server, http):
            post = calls(server, http)
            _, answer = await post("/chat/completions", {**ASK, "n": 2})
            rating = {"response_id": answer["id"], "choice": 1, "score": 0.25}
            status, told = await post("/feedback", rating)
            assert status == 200
            assert told["replaced"] is False
            # before the server ends
            (response,) = lines(tmp_path, RESPONSES)
            assert response["id"] == answer["id"]
            assert response["temperature"] == 0.5
            assert len(response["replies"]) == 2
            for reply in response["replies"]:
                assert bytes(i for i in reply["ids"] if i < 256) == b"hi"
                assert reply["logps"] == [fake_logp(i) for i in reply["ids"]]
                assert set(reply["versions"]) == {0}
            assert b"a" in bytes(i for i in response["prompt"] if i < 256)
            (written,) = lines(tmp_path, FEEDBACK)
            assert written["score"] == 0.25
            assert written["choice"] == 1
            assert written["owner"] == response["owner"]
            assert "ann" not in json.dumps(response)

    asyncio.run(run())


@pytest.mark.parametrize(
    "path, body",
    [
        ("/messages", {"messages": talk("a"), "max_tokens": 9, "model": "m"}),
        ("/responses", {"input": "a", "model": "m"}),
    ],
)
def test_replies_of_each_api_are_rated(tmp_path: Path, path: str, body: dict[str, Any]) -> None:
    async def run() -> None:
        async with serving("hi", record=tmp_path) as (server, http):
            post = calls(server, http)
            _, answer = await post(path, body)
            status, _ = await post("/feedback", {"response_id": answer["id"], "label": "good"})
            assert status == 200

    asyncio.run(run())
    assert lines(tmp_path, FEEDBACK)[0]["label"] == "good"


def test_the_last_rating_counts_and_the_same_one_is_written_once(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving("hi", record=tmp_path) as (server, http):
            post = calls(server, http)
            _, answer = await post("/chat/completions", ASK)
            for label, replaced in (("bad", False), ("bad", False), ("good", True)):
                rating = {"response_id": answer["id"], "label": label}
                _, told = await post("/feedback", rating)
                assert told["replaced"] is replaced

    asyncio.run(run())
    assert [line["label"] for line in lines(tmp_path, FEEDBACK)] == ["bad", "good"]


@pytest.mark.parametrize(
    "rating, param",
    [
        ({}, "score"),
        ({"score": 1.5}, "score"),
        ({"score": True}, "score"),
        ({"score": 1, "label": "good"}, "score"),
        ({"label": "fine"}, "label"),
        ({"edit": " "}, "edit"),
        ({"score": 1, "choice": 1}, "choice"),
        ({"score": 1, "comment": "nice"}, "comment"),
    ],
)
def test_a_rating_that_is_none_is_refused(
    tmp_path: Path, rating: dict[str, Any], param: str
) -> None:
    async def run() -> tuple[int, dict[str, Any]]:
        async with serving("hi", record=tmp_path) as (server, http):
            post = calls(server, http)
            _, answer = await post("/chat/completions", ASK)
            return await post("/feedback", {"response_id": answer["id"], **rating})

    status, told = asyncio.run(run())
    assert status == 400
    assert told["error"]["param"] == param
    assert not lines(tmp_path, FEEDBACK)


def test_only_the_key_of_a_response_rates_it(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving("hi", record=tmp_path) as (server, http):
            post = calls(server, http)
            _, answer = await post("/chat/completions", ASK)
            rating = {"response_id": answer["id"], "score": 1}
            assert (await post("/feedback", rating, "two"))[0] == 404
            assert (await post("/feedback", rating | {"response_id": "chatcmpl-0"}))[0] == 404
            assert (await post("/feedback", rating))[0] == 200

    asyncio.run(run())


def test_without_a_record_the_error_names_the_option() -> None:
    async def run() -> tuple[int, dict[str, Any]]:
        async with serving("hi") as (server, http):
            return await calls(server, http)("/feedback", {"response_id": "x", "score": 1})

    status, told = asyncio.run(run())
    assert status == 404
    assert "--record" in told["error"]["message"]


def test_a_later_server_takes_ratings_of_what_a_killed_one_answered(tmp_path: Path) -> None:
    """A line that the kill cut off is dropped, and the next one is whole."""
    ids: list[str] = []

    async def ask() -> None:
        async with serving("hi", record=tmp_path) as (server, http):
            ids.append((await calls(server, http)("/chat/completions", ASK))[1]["id"])

    async def rate() -> int:
        async with serving("hi", record=tmp_path) as (server, http):
            rating = {"response_id": ids[0], "edit": "hello"}
            return (await calls(server, http)("/feedback", rating))[0]

    asyncio.run(ask())
    for name in (RESPONSES, FEEDBACK):
        with open(tmp_path / name, "a") as file:
            file.write('{"id": "chatcmpl-cut')
    assert asyncio.run(rate()) == 200
    assert [line["edit"] for line in lines(tmp_path, FEEDBACK)] == ["hello"]
    assert [line["id"] for line in lines(tmp_path, RESPONSES)] == ids


def test_two_servers_do_not_share_a_folder(tmp_path: Path) -> None:
    journal = TrafficJournal(tmp_path)
    with pytest.raises(UsageError, match="another server"):
        TrafficJournal(tmp_path)
    journal.close()
    TrafficJournal(tmp_path).close()


def test_the_version_of_a_folder_is_that_of_its_round(tmp_path: Path) -> None:
    assert version_of(str(tmp_path)) == 0
    (tmp_path / "quintain.json").write_text('{"traffic": {"version": 3}}')
    assert version_of(str(tmp_path)) == 3


def test_a_full_disk_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with serving("hi", record=tmp_path) as (server, http):
            post = calls(server, http)
            _, answer = await post("/chat/completions", ASK)
            rating = {"response_id": answer["id"], "score": 1}
            with monkeypatch.context() as full:
                full.setattr("quintain_gateway.traffic.os.fsync", refuse)
                status, told = await post("/feedback", rating)
                assert status == 500
                assert told["error"]["code"] == "record_failed"
            assert lines(tmp_path, FEEDBACK) == []
            assert (await post("/feedback", rating))[0] == 200

    def refuse(number: int) -> None:
        raise OSError(28, "No space left on device")

    asyncio.run(run())
    assert [line["score"] for line in lines(tmp_path, FEEDBACK)] == [1]
