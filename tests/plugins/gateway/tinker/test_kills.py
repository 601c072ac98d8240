"""A server that is killed at any time and started again: the client goes on, nothing is done twice
and nothing is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from ....core.models.tiny import save_tiny
from .kit import Client, datum, serving

SECONDS = 600.0
"""How long a start may take."""


class Patient(Client):
    """Sends a request again until it is answered, as the SDK does."""

    async def call(self, method: str, path: str, body: Any = None, **head: str) -> tuple[int, Any]:
        while True:
            try:
                return await super().call(method, path, body, **head)
            except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError):
                await asyncio.sleep(0.02)


async def program(client: Client, rounds: int) -> list[Any]:
    """What a client sees that trains, saves, samples and loads in turns."""
    await client.open()
    model = await client.model()
    seen: list[Any] = []
    for number in range(rounds):
        seen.append(await client.train(model, [datum()]))
        seen.append(await client.train(model, [datum([*range(50 + number, 80)])]))
        seen.append(await client.step(model))
        sampler = await client.sampler(model)
        seen.append(await client.sample(sampler, 0, num_samples=2))
        saved = await client.ordered("save_weights", model, path=f"at-{number}")
        if number % 2:
            seen.append(await client.train(model, [datum()]))
            seen.append(await client.ordered("load_weights", model, optimizer=True, **saved))
    seen.append(await client.forward(model))
    return seen


async def undisturbed(model: Path, state: Path, rounds: int) -> list[Any]:
    async with serving(model, state) as (_, client):
        return await program(client, rounds)


async def killed(
    model: Path, state: Path, rounds: int, kills: int, seed: int
) -> tuple[list[Any], int]:
    """What the client sees of a server that is killed up to *kills* times, and how often it was."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    draw = random.Random(seed)
    command = [sys.executable, "-m", "quintain", "serve", "tiny", "--tinker", "--port", str(port)]
    done, count = asyncio.Event(), 0

    async def reap() -> None:
        nonlocal count
        while not done.is_set():
            server = await asyncio.create_subprocess_exec(
                *command, "--state", str(state), cwd=model.parent, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )  # fmt: skip
            assert server.stdout is not None
            try:
                line = await asyncio.wait_for(server.stdout.readline(), SECONDS)
                assert b"serving tiny" in line
                with contextlib.suppress(TimeoutError):
                    pause = draw.random() * 0.4 if count < kills else None
                    await asyncio.wait_for(done.wait(), pause)
                count += not done.is_set()
            finally:
                server.send_signal(signal.SIGKILL)
                await server.wait()

    async with aiohttp.ClientSession() as http, asyncio.TaskGroup() as group:
        group.create_task(reap())
        client = Patient(http, f"http://127.0.0.1:{port}")
        try:
            seen = await program(client, rounds)
        finally:
            done.set()
    return seen, count


def check(folder: Path, rounds: int, kills: int, seed: int) -> int:
    model = save_tiny(folder / "tiny")
    expected = asyncio.run(undisturbed(model, folder / "calm", rounds))
    seen, count = asyncio.run(killed(model, folder / "killed", rounds, kills, seed))
    assert seen == expected
    return count


@pytest.mark.more
def test_a_client_notices_no_kill(tmp_path: Path) -> None:
    assert check(tmp_path, rounds=6, kills=4, seed=1) > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_a_client_notices_none_of_twenty_kills(tmp_path: Path, seed: int) -> None:
    """200 kills in all; each server that starts answers some requests before its end."""
    assert check(tmp_path, rounds=60, kills=20, seed=seed) >= 10


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
