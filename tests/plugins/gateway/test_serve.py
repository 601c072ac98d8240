"""`quintain serve`: sessions by key, records, the command."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from quintain import Message, Sampling
from quintain.cli import main
from quintain.registry import current
from quintain_authoring import ScriptedEngine
from quintain_authoring.scripted import fake_logp
from quintain_gateway.command import EXAMPLE, default_model
from quintain_gateway.serving import ModelServer

from ...core.models.tiny import save_tiny
from .kit import talk


@contextlib.asynccontextmanager
async def serving(
    replies: Any = "hi", **settings: Any
) -> AsyncIterator[tuple[ModelServer, aiohttp.ClientSession]]:
    about = {"host": "127.0.0.1", "port": 0, "max_bytes": 10**6, "models": ["m"], **settings}
    async with (
        ModelServer(ScriptedEngine(replies=replies), Sampling(max_tokens=50), **about) as server,
        aiohttp.ClientSession() as http,
    ):
        yield server, http


async def post(
    server: ModelServer, http: aiohttp.ClientSession, key: str, *messages: Any, **head: str
) -> Any:
    """Status and the text of the reply, or the code of the refusal."""
    headers = {"Authorization": f"Bearer {key}", **head}
    body = {"messages": talk(*messages)}
    async with http.post(
        server.base_url + "/chat/completions", json=body, headers=headers
    ) as answer:
        data = await answer.json()
        if answer.status != 200:
            return answer.status, data["error"]["code"]
        return answer.status, data["choices"][0]["message"]["content"]


def test_a_key_with_many_conversations_loses_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those in flight end with their session; one of the Responses API goes on in the next."""
    monkeypatch.setattr("quintain_gateway.serving.MOST_CONVERSATIONS", 10)
    monkeypatch.setattr("quintain_gateway.serving.RETIRED_SECONDS", 0.01)

    async def run() -> None:
        about = {"host": "127.0.0.1", "port": 0, "max_bytes": 10**6, "models": ["m"]}
        engine = ScriptedEngine(replies="hi", delay=0.05)
        async with (
            ModelServer(engine, Sampling(max_tokens=50), **about) as server,
            aiohttp.ClientSession() as http,
        ):
            respond = f"{server.base_url}/responses"
            first = {"model": "m", "input": "begin"}
            async with http.post(respond, json=first, headers=ONE_KEY) as answer:
                begun = await answer.json()
            answers = await asyncio.gather(
                *(post(server, http, "one", f"question {i}") for i in range(45))
            )
            more = {"model": "m", "input": "more", "previous_response_id": begun["id"]}
            async with http.post(respond, json=more, headers=ONE_KEY) as answer:
                assert answer.status == 200
            assert answers == [(200, "hi")] * 45
            assert server.sessions == 1

    asyncio.run(run())


ONE_KEY = {"Authorization": "Bearer one"}


def test_any_key_has_a_session_of_its_own_and_records_are_exact(tmp_path: Path) -> None:
    def count(messages: list[Message]) -> str:
        return f"reply {sum(m.role == 'assistant' for m in messages)}"

    async def run() -> None:
        async with serving(count, record=tmp_path / "rec") as (server, http):
            for key in ("one", "two"):
                assert await post(server, http, key, "a") == (200, "reply 0")
            assert await post(server, http, "one", "a", "reply 0", "b") == (200, "reply 1")
            assert await post(server, http, "one", "another") == (200, "reply 0")
            assert server.sessions == 2

    asyncio.run(run())
    records = [json.loads(p.read_text()) for p in sorted((tmp_path / "rec").glob("*.json"))]
    assert len({r["session"] for r in records}) == 2
    assert all("one" not in json.dumps(r["session"]) for r in records)
    first = next(r for r in records if len(r["turns"]) == 3)
    assert sorted(len(t["branches"]) for t in first["transcripts"].values()) == [1, 1]
    for transcript in first["transcripts"].values():
        (branch,) = transcript["branches"]
        sampled = [
            (i, logp, v)
            for i, s, logp, v in zip(*(branch[c] for c in COLUMNS), strict=True)
            if s == 2
        ]
        assert sampled
        assert all(logp == fake_logp(i) and version == 0 for i, logp, version in sampled)
    text = bytes(
        i for i in first["transcripts"]["thread-1"]["branches"][0]["ids"] if i < 256
    ).decode()
    assert "reply 1" in text


def temperatures(folder: Path) -> list[float]:
    """Of the turns of the only session."""
    (record,) = folder.glob("*.json")
    return [t["temperature"] for t in json.loads(record.read_text())["turns"]]


COLUMNS = ("ids", "sources", "logps", "versions")


def test_a_key_can_be_demanded() -> None:
    async def run() -> None:
        async with serving(key="secret") as (server, http):
            assert await post(server, http, "guess", "a") == (401, "invalid_api_key")
            assert await post(server, http, "secret", "a") == (200, "hi")

    asyncio.run(run())


def test_a_name_that_points_to_this_machine_is_refused_without_a_key() -> None:
    """A page of another site may have its name point to 127.0.0.1; then its requests come with that
    name.
    """

    async def run() -> None:
        async with serving() as (server, http):
            assert await post(server, http, "k", "a", Host=f"evil.example:{server.port}") == (
                403,
                "unknown_host",
            )
            assert await post(server, http, "k", "a", Host=f"localhost:{server.port}") == (
                200,
                "hi",
            )

    asyncio.run(run())


def test_requests_choose_their_settings_and_sessions_that_nobody_uses_end(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(lambda messages, rng: str(rng.random()), record=tmp_path, idle=0.2) as (
            server,
            http,
        ):
            head = {"Authorization": "Bearer k"}
            said = []
            for i in range(2):
                body = {"messages": talk(f"a{i}"), "seed": 5, "temperature": 0.5}
                async with http.post(
                    server.base_url + "/chat/completions", json=body, headers=head
                ) as answer:
                    said.append((await answer.json())["choices"][0]["message"]["content"])
            assert said[0] == said[1]
            for _ in range(500):
                if not server.sessions:
                    break
                await asyncio.sleep(0.02)
            assert server.sessions == 0
            assert temperatures(tmp_path) == [0.5, 0.5]
            assert (await post(server, http, "k", "again"))[0] == 200

    asyncio.run(run())


def test_hosts_that_others_reach_need_a_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "model", "--host", "0.0.0.0"]) == 2
    assert "give a key" in capsys.readouterr().err


def test_the_default_model_answers_the_example_that_is_printed() -> None:
    """Without randomness, as the printed request asks."""
    engine = current().load("engine", "quintain/embedded")(default_model())
    about: dict[str, Any] = {
        "host": "127.0.0.1",
        "port": 0,
        "max_bytes": 10**6,
        "models": ["default"],
    }

    async def answer() -> str:
        async with (
            engine,
            ModelServer(engine, Sampling(max_tokens=20), **about) as server,
            aiohttp.ClientSession() as http,
        ):
            body = {"messages": talk(EXAMPLE), "temperature": 0}
            head = {"Authorization": "Bearer any"}
            async with http.post(
                server.base_url + "/chat/completions", json=body, headers=head
            ) as answered:
                return str((await answered.json())["choices"][0]["message"]["content"])

    assert asyncio.run(answer()) == "enots"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "stop"),
    [
        ("tiny", signal.SIGINT),
        ("tiny", signal.SIGTERM),
        pytest.param("default", signal.SIGTERM, marks=pytest.mark.ci),
    ],
)
def test_the_command_serves_a_model_until_it_is_interrupted(
    model: str, stop: signal.Signals, tmp_path: Path
) -> None:
    """A folder, and the default model with an empty cache. Its records are complete then."""
    words = ["serve", "--port", "0", "--record", str(tmp_path / "rec"), "--max-tokens", "8"]
    if model == "tiny":
        save_tiny(tmp_path / "model", context=256)
        words.append(str(tmp_path / "model"))
    environment = {**os.environ, "QUINTAIN_CACHE": str(tmp_path / "cache")}
    with subprocess.Popen(
        [sys.executable, "-m", "quintain", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=environment,
    ) as process:
        assert process.stdout is not None
        url = re.search(r"http://127\.0\.0\.1:\d+/v1", process.stdout.readline())
        assert url is not None, process.communicate()
        assert "curl" in process.stdout.readline()
        body = {
            "messages": talk("2+3=?\nEnd with #### and the result."),
            "logprobs": True,
            "seed": 1,
        }
        head = {"Authorization": "Bearer any", "Content-Type": "application/json"}
        request = urllib.request.Request(
            url[0] + "/chat/completions", json.dumps(body).encode(), head
        )
        with urllib.request.urlopen(request) as answer:
            choice = json.load(answer)["choices"][0]
        assert 0 < len(choice["logprobs"]["content"]) <= 8
        other = {**head, "Authorization": "Bearer other"}
        request = urllib.request.Request(
            url[0] + "/chat/completions", json.dumps(body).encode(), other
        )
        with urllib.request.urlopen(request) as answer:
            again = json.load(answer)["choices"][0]
        assert again["message"] == choice["message"]  # of the same seed, in a session of its own
        process.send_signal(stop)
        err = process.communicate(timeout=60)[1]
        assert process.returncode == 0, err
        assert "Traceback" not in err
    records = sorted((tmp_path / "rec").glob("*.json"))
    assert len(records) == 2
    (branch,) = json.loads(records[0].read_text())["transcripts"]["thread-1"]["branches"]
    logps = [x for x, source in zip(branch["logps"], branch["sources"], strict=True) if source == 2]
    assert logps == pytest.approx([t["logprob"] for t in choice["logprobs"]["content"]])
