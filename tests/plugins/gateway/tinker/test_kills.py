"""A server that is killed at any time and started again: the client goes on, nothing is done twice
and nothing is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import os
import random
import signal
import socket
import sqlite3
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from quintain_gateway.tinker import models, turns
from quintain_gateway.tinker.journal import Accepted, Journal
from quintain_gateway.tinker.server import TinkerServer

from ....core.models.tiny import save_tiny
from .kit import IDS, Client, datum, serving

SECONDS = 600.0
"""How long a start may take."""
POISON = 33
"""A token that kills the server that `serve` runs, where the body of a request has it."""

FORKS = multiprocessing.get_context("forkserver")
"""Servers are processes of their own that need not import torch again, so that many can be killed."""


class Patient(Client):
    """Sends a request again until it is answered, as the SDK does.

    Attributes:
        answered: counts the answers.
    """

    answered = 0

    async def call(self, method: str, path: str, body: Any = None, **head: str) -> tuple[int, Any]:
        while True:
            try:
                answer = await super().call(method, path, body, **head)
                self.answered += 1
                return answer
            except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError):
                await asyncio.sleep(0.02)


async def program(client: Client, rounds: int) -> list[Any]:
    """What a client sees that trains, saves, samples and loads in turns."""
    await client.open(client.key)
    model = await client.model()
    seen: list[Any] = []
    for number in range(rounds):
        seen.append(await client.train(model, [datum()]))
        seen.append(await client.train(model, [datum([*range(50 + number % 20, 80)])]))
        seen.append(await client.step(model))
        sampler = await client.sampler(model)
        seen.append(await client.sample(sampler, 0, num_samples=2, params={"max_tokens": 20}))
        saved = await client.ordered("save_weights", model, path=f"at-{number}")
        if number % 2:
            seen.append(await client.train(model, [datum()]))
            seen.append(await client.ordered("load_weights", model, optimizer=True, **saved))
        if number % 5 == 4:
            await client.ordered("save_weights_external", model, path=f"out-{number}")
            other = await client.model(number)
            seen.append(await client.forward(other))
            await client.ordered("unload_model", other)
    seen.append(await client.forward(model))
    return seen


KEYS = ("tml-zero", "tml-one")


async def undisturbed(model: Path, state: Path, rounds: int) -> list[Any]:
    """What each client sees that is alone."""
    async with serving(model, state) as (_, client):
        alone = [Client(client.http, client.url, key) for key in KEYS]
        return [await program(client, rounds) for client in alone]


def serve(model: str, state: str, port: int) -> None:
    """Run a server until it is killed; to read a body with `POISON` kills it, too."""

    def deadly(read: Any) -> Any:
        def reads(*given: Any) -> Any:
            found = read(*given)
            if any(POISON in one.ids for one in getattr(found, "data", [found])):
                os.kill(os.getpid(), signal.SIGKILL)
            return found

        return reads

    models.Models.forward = deadly(models.Models.forward)  # type: ignore[method-assign]
    turns.sample_request_of = deadly(turns.sample_request_of)

    async def run() -> None:
        about = {"host": "127.0.0.1", "port": port, "max_bytes": 10**6}
        async with TinkerServer(model, "tiny", Path(state), **about):
            await asyncio.sleep(1e9)

    asyncio.run(run())


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def interrupted(state: Path) -> str:
    """The kind of request in which the server of *state* died."""
    names = json.loads((state / "running").read_text())["running"]
    with contextlib.closing(sqlite3.connect(state / "journal.sqlite")) as db:
        marks = ", ".join("?" * len(names))
        asked = f"SELECT kind FROM request WHERE done = 0 AND id IN ({marks})"
        return str(next(iter(db.execute(asked, names)), ["between requests"])[0])


async def killed(
    model: Path, state: Path, rounds: int, kills: int, seed: int
) -> tuple[list[list[Any]], Counter[str]]:
    """What two clients see of a server that is killed up to *kills* times, and in which requests it
    was.
    """
    port, draw = free_port(), random.Random(seed)
    done, counts = asyncio.Event(), Counter[str]()

    async def reap(clients: list[Patient]) -> None:
        while not done.is_set():
            server = FORKS.Process(target=serve, args=(str(model), str(state), port))
            server.start()
            try:
                # A request in which two servers died is given up. So each one answers something.
                before = sum(client.answered for client in clients)
                async with asyncio.timeout(SECONDS):
                    while sum(client.answered for client in clients) < before + 4:
                        await asyncio.sleep(0.001)
                        if done.is_set():
                            break
                with contextlib.suppress(TimeoutError):
                    pause = draw.random() * 0.2 if counts.total() < kills else None
                    await asyncio.wait_for(done.wait(), pause)
            finally:
                server.kill()
                server.join()
            if not done.is_set():
                counts[interrupted(state)] += 1

    async with aiohttp.ClientSession() as http, asyncio.TaskGroup() as group:
        clients = [Patient(http, f"http://127.0.0.1:{port}", key) for key in KEYS]
        group.create_task(reap(clients))
        try:
            seen = [*await asyncio.gather(*(program(client, rounds) for client in clients))]
        finally:
            done.set()
    return seen, counts


def check(folder: Path, rounds: int, kills: int, seed: int) -> int:
    model = save_tiny(folder / "tiny")
    expected = asyncio.run(undisturbed(model, folder / "calm", rounds))
    ours = {"quintain", "quintain_gateway", "torch", "transformers"}
    loaded = [name for name in sys.modules if name.partition(".")[0] in ours]
    FORKS.set_forkserver_preload([__name__, *loaded])
    seen, counts = asyncio.run(killed(model, folder / "killed", rounds, kills, seed))
    print(f"{counts.total()} kills: {dict(counts)}")
    assert seen == expected
    return counts.total()


@pytest.mark.more
def test_a_client_notices_no_kill(tmp_path: Path) -> None:
    assert check(tmp_path, rounds=6, kills=4, seed=1) > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_a_client_notices_none_of_twenty_kills(tmp_path: Path, seed: int) -> None:
    """200 kills in all; each server that starts answers some requests before its end."""
    assert check(tmp_path, rounds=20, kills=20, seed=seed) >= 10


async def poisoned_batch(client: Client, model: str) -> Any:
    return await client.train(model, [datum([*IDS, POISON, 50])])


async def poisoned_sample(client: Client, model: str) -> Any:
    return await client.sample(await client.sampler(model), ids=[*IDS, POISON])


@pytest.mark.more
@pytest.mark.parametrize("ask", [poisoned_batch, poisoned_sample])
def test_a_request_that_kills_two_servers_is_given_up(tmp_path: Path, ask: Any) -> None:
    model = save_tiny(tmp_path / "tiny")
    port = free_port()

    async def client_of(starts: list[Any]) -> tuple[Any, ...]:
        async with aiohttp.ClientSession() as http, asyncio.TaskGroup() as group:
            client = await start(http, group, starts)
            name = await client.model()
            before = await client.forward(name)
            bad = await ask(client, name)
            good = await client.train(name, [datum()])
            stopped.set()
            starts[-1].kill()
            return before, bad, good

    async def start(http: Any, group: asyncio.TaskGroup, starts: list[Any]) -> Client:
        async def again() -> None:
            while not stopped.is_set():
                server = FORKS.Process(target=serve, args=(str(model), str(tmp_path / "s"), port))
                server.start()
                starts.append(server)
                assert len(starts) < 5, "the server dies again and again"
                await asyncio.to_thread(server.join)

        group.create_task(again())
        return await Patient(http, f"http://127.0.0.1:{port}").open()

    async def calm() -> tuple[Any, ...]:
        async with serving(model, tmp_path / "calm") as (_, client):
            await client.open()
            name = await client.model()
            return await client.forward(name), await client.train(name, [datum()])

    starts: list[Any] = []
    stopped = asyncio.Event()
    before, bad, good = asyncio.run(client_of(starts))
    assert len(starts) == 3
    assert (bad["code"], bad["category"]) == ("killed_server", "server")
    assert (before, good) == asyncio.run(calm())


def test_the_journal_counts_the_servers_that_died_in_a_request(tmp_path: Path) -> None:
    def request(name: str, seq: int) -> Accepted:
        return Accepted(
            id=name, owner="o", session="s", model="m", seq=seq, kind="forward", form="", body=b"{}"
        )

    for deaths in ({}, {"a": 1}, {"a": 2}, {"a": 2}, {}):
        journal = Journal(tmp_path)
        assert journal.deaths == deaths
        for seq, name in enumerate("ab"):
            journal.accept(request(name, seq))
        if deaths.get("a", 0) < 2:
            journal.begin(["b"])
            journal.finish(request("b", 1), {}, [])  # its result is there: it killed nobody
            journal.begin(["a"])
        elif (tmp_path / "idle").exists():
            journal.finish(request("a", 0), {}, [])
        (tmp_path / "idle").touch() if deaths.get("a") == 2 else None
        journal.close()


def test_weights_in_a_folder_without_its_journal_stay(tmp_path: Path) -> None:
    """The folder may have been copied without the file of SQLite; a later start keeps them, too."""
    name = "0" * 32
    copied, left = f"checkpoints/{name}.safetensors", f"samplers/{name}.safetensors"
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / copied).touch()
    for found, swept in (([copied], []), ([], [left])):
        journal = Journal(tmp_path)
        assert journal.found == found
        assert journal.sweep() == swept
        assert (tmp_path / copied).exists()
        journal.close()
        (tmp_path / "samplers").mkdir(exist_ok=True)
        (tmp_path / left).touch()


def test_files_that_a_killed_server_left_are_swept(tmp_path: Path) -> None:
    """Whatever the journal names stays, and so does what is none of the server's."""
    model, state = save_tiny(tmp_path / "tiny"), tmp_path / "state"
    name, number = "0" * 32, os.getpid()
    left = [
        f"models/{name}/7.safetensors",  # written, and the commit did not follow
        f"models/{name}/8.{number}.tmp",  # cut off
        f"samplers/{name}.safetensors",
        f"checkpoints/{name}.safetensors",
        f"checkpoints/{name}.{number}.tmp",
        f"external/{name}/adapter_model.safetensors",
        f"external/{name}/adapter_config.{number}.tmp",
    ]
    own = ["models/smollm2/model.safetensors", "checkpoints/mine.safetensors", "samplers/notes.txt"]

    def files() -> set[str]:
        folders = ("models", "samplers", "checkpoints", "external")
        found = (path for folder in folders for path in (state / folder).rglob("*"))
        return {path.relative_to(state).as_posix() for path in found if path.is_file()}

    async def first() -> set[str]:
        async with serving(model, state) as (_, client):
            await client.open()
            trained = await client.model()
            await client.train(trained, [datum()])
            await client.step(trained)
            saved = await client.ordered("save_weights", trained, path="one")
            await client.ordered("load_weights", trained, optimizer=True, path=saved["path"])
            await client.ordered("save_weights_external", trained, path="out")
            await client.sampler(trained)
            return files()

    async def second(kept: set[str]) -> None:
        async with serving(model, state) as (_, client):
            assert files() == {*kept, *own}
            assert not (state / "models" / name).exists()
            assert not (state / "external" / name).exists()
            await client.open()
            trained = f"{client.session}:train:0"
            client.seq[trained] = 6
            await client.step(trained)
            await client.sample(f"{client.session}:sample:1")

    kept = asyncio.run(first())
    assert {file.partition("/")[0] for file in kept} == {
        "models", "samplers", "checkpoints", "external",
    }  # fmt: skip
    for file in (*left, *own):
        (state / file).parent.mkdir(parents=True, exist_ok=True)
        (state / file).write_bytes(b"")
    asyncio.run(second(kept))


def test_a_server_ended_in_order_goes_on_where_it_was(tmp_path: Path) -> None:
    model = save_tiny(tmp_path / "tiny")

    async def half(first: bool, seen: list[Any]) -> None:
        async with serving(model, tmp_path / "state") as (_, client):
            await client.open()
            name = f"{client.session}:train:0"
            if first:
                assert await client.model() == name
                seen.append(await client.train(name, [datum()]))  # a gradient is pending
                return
            client.seq[name] = 1
            await client.step(name)
            seen.append(await client.forward(name))

    async def whole() -> list[Any]:
        async with serving(model, tmp_path / "whole") as (_, client):
            await client.open()
            name = await client.model()
            seen = [await client.train(name, [datum()])]
            await client.step(name)
            return [*seen, await client.forward(name)]

    seen: list[Any] = []
    asyncio.run(half(True, seen))
    asyncio.run(half(False, seen))
    assert seen == asyncio.run(whole())
