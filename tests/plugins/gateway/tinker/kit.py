"""A client of the API of Tinker's SDK, in JSON, and a server on a tiny model."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from quintain_gateway.tinker.calls import KeyLimits
from quintain_gateway.tinker.protobuf import sized, text
from quintain_gateway.tinker.server import TinkerServer

IDS = list(range(40, 60))


def tensor(values: Sequence[float], kind: str = "float32") -> dict[str, Any]:
    return {"data": [*values], "dtype": kind, "shape": [len(values)]}


def datum(ids: Sequence[int] = IDS, **inputs: Sequence[float]) -> dict[str, Any]:
    """A datum whose tensors are *inputs*; without any, weights of 1."""
    inputs = inputs or {"weights": [1.0] * (len(ids) - 1)}
    tensors = {name: tensor(values) for name, values in inputs.items()}
    targets = {"target_tokens": tensor(ids[1:], "int64")}
    chunk = {"type": "encoded_text", "tokens": [*ids[:-1]]}
    return {"model_input": {"chunks": [chunk]}, "loss_fn_inputs": {**targets, **tensors}}


def prompt(ids: Sequence[int] = IDS, **fields: Any) -> dict[str, Any]:
    """The body of a sample, without its session."""
    params = {"max_tokens": 5, "temperature": 1.0, **fields.pop("params", {})}
    chunk = {"type": "encoded_text", "tokens": [*ids]}
    return {"prompt": {"chunks": [chunk]}, "sampling_params": params, **fields}


ADAM = {"learning_rate": 0.01, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8}


class Client:
    """One session."""

    def __init__(self, http: aiohttp.ClientSession, url: str, key: str = "tml-one") -> None:
        self.http, self.url, self.key = http, url, key
        self.session = ""
        self.seq: dict[str, int] = {}
        self.samples = 0

    async def call(self, method: str, path: str, body: Any = None, **head: str) -> tuple[int, Any]:
        """Status and JSON of the answer."""
        headers = {"X-API-Key": self.key, **head}
        async with self.http.request(
            method, f"{self.url}/api/v1/{path}", json=body, headers=headers
        ) as answer:
            return answer.status, await answer.json()

    async def post(self, path: str, body: Any, **head: str) -> Any:
        status, answer = await self.call("POST", path, body, **head)
        assert status == 200, answer
        return answer

    async def open(self, name: str = "session") -> Client:
        body = {"tags": [], "user_metadata": None, "sdk_version": "0.38.0"}
        answer = await self.post("create_session", body, **{"X-Idempotency-Key": name})
        self.session = answer["session_id"]
        return self

    async def result(self, future: Any) -> Any:
        while True:
            body = {"request_id": future["request_id"]}
            status, answer = await self.call("POST", "retrieve_future", body)
            if status != 408:
                assert status == 200, answer
                return answer

    async def model(self, number: int = 0, rank: int = 4, seed: int | None = 1) -> str:
        body = {
            "session_id": self.session,
            "model_seq_id": number,
            "base_model": "tiny",
            "lora_config": {"rank": rank, "seed": seed},
        }
        return str((await self.result(await self.post("create_model", body)))["model_id"])

    async def ordered(self, name: str, model: str, /, **body: Any) -> Any:
        """The result of a request in the order of *model*."""
        self.seq[model] = self.seq.get(model, 0) + 1
        future = await self.post(name, {"model_id": model, "seq_id": self.seq[model], **body})
        return await self.result(future)

    async def train(
        self, model: str, data: Sequence[Any], loss: str = "cross_entropy", **config: float
    ) -> Any:
        given = {"data": [*data], "loss_fn": loss, "loss_fn_config": config or None}
        return await self.ordered("forward_backward", model, forward_backward_input=given)

    async def step(self, model: str, **settings: float) -> Any:
        return await self.ordered("optim_step", model, adam_params={**ADAM, **settings})

    async def forward(self, model: str, data: Sequence[Any] | None = None) -> Any:
        given = {"data": [*(data or [datum()])], "loss_fn": "cross_entropy"}
        return await self.ordered("forward", model, forward_input=given)

    async def sampler(self, model: str) -> str:
        """A sampler of the weights that *model* has now."""
        self.samples += 1
        saved = await self.ordered(
            "save_weights_for_sampler", model, sampling_session_seq_id=self.samples
        )
        return str(saved["sampling_session_id"])

    async def sample(self, sampler: str, number: int = 0, **body: Any) -> Any:
        given = {**prompt(**body), "sampling_session_id": sampler, "seq_id": number}
        return await self.result(await self.post("asample", given))


@contextlib.asynccontextmanager
async def serving(
    model: Path, state: Path, *, limits: KeyLimits | None = None, keys: Sequence[str] = ()
) -> AsyncIterator[tuple[TinkerServer, Client]]:
    about = {"host": "127.0.0.1", "port": 0, "max_bytes": 10**6}
    server = TinkerServer(str(model), "tiny", state, limits=limits, keys=keys, **about)
    async with server, aiohttp.ClientSession() as http:
        yield server, Client(http, server.root_url, keys[0] if keys else "tml-one")


def in_protobuf(model: str, seq: int, ids: Sequence[int] = IDS, *, only: bool = False) -> bytes:
    """A forward_backward request as the SDK encodes it, with weights of 1."""
    count = len(ids) - 1

    def entry(name: str, code: str, kind: int, values: Sequence[float]) -> bytes:
        dense = struct.pack(f"<{count}{code}", *values)
        tensor = sized(1, dense) + bytes([3 << 3, kind]) + sized(4, bytes([count]))
        return sized(2, text(1, name) + sized(2, tensor))

    tokens = sized(1, struct.pack(f"<{count}i", *ids[:-1]))
    one = sized(1, sized(1, tokens))
    one += entry("target_tokens", "q", 2, ids[1:]) + entry("weights", "f", 1, [1.0] * count)
    message = text(1, model) + bytes([2 << 3, seq]) + sized(3, one) + text(4, "cross_entropy")
    return message + bytes([6 << 3, int(only)])
