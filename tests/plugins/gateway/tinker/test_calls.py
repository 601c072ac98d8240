"""The API over HTTP: order, idempotency, keys, limits, checkpoints and what is refused."""

from __future__ import annotations

import asyncio
import re
import struct
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from quintain.errors import UsageError
from quintain_gateway.tinker.calls import KeyLimits
from quintain_gateway.tinker.protobuf import fields
from quintain_gateway.tinker.server import REFUSED

from ....core.models.tiny import save_tiny
from .kit import ADAM, Client, datum, in_protobuf, prompt, serving


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("base"))


def run(base: Path, state: Path, program: Any, **settings: Any) -> Any:
    async def inside() -> Any:
        async with serving(base, state, **settings) as (server, client):
            return await program(server, client)

    return asyncio.run(inside())


def test_a_model_trains_is_saved_sampled_and_loaded(base: Path, tmp_path: Path) -> None:
    async def program(_: Any, client: Client) -> None:
        await client.open()
        model = await client.model()
        first = await client.train(model, [datum()])
        await client.step(model)
        second = await client.train(model, [datum()])
        assert second["metrics"]["loss:sum"] < first["metrics"]["loss:sum"]
        await client.step(model)
        sampler = await client.sampler(model)
        sample = await client.sample(sampler, prompt_logprobs=True)
        now = await client.forward(model)
        assert sample["prompt_logprobs"][1:] == pytest.approx(
            now["loss_fn_outputs"][0]["logprobs"]["data"], abs=1e-5
        )
        saved = await client.ordered("save_weights", model, path="one")
        assert saved["path"] == f"tinker://{model}/weights/one"
        body = {"session_id": client.session, "model_seq_id": 1, "optimizer": True}
        loaded = await client.result(
            await client.post("load_weights", {**body, "path": saved["path"]})
        )
        other = loaded["model_id"]
        assert other == f"{client.session}:train:1"
        for name in (model, other):  # moments and all: the next steps are the same
            await client.train(name, [datum()])
            await client.step(name)
        assert await client.forward(other) == await client.forward(model)
        assert (await client.post("get_info", {"model_id": other}))["lora_rank"] == 4

    run(base, tmp_path, program)


def test_a_state_is_of_one_base(base: Path, tmp_path: Path) -> None:
    """On another model of the same shapes its adapters would give other numbers without a word."""

    async def nothing(_: Any, client: Client) -> None:
        await client.open()

    run(base, tmp_path / "state", nothing)
    other = save_tiny(tmp_path / "other", seed=1)
    with pytest.raises(UsageError, match="adapters of another model"):
        run(other, tmp_path / "state", nothing)
    run(base, tmp_path / "state", nothing)


def test_requests_run_in_the_order_of_their_numbers(base: Path, tmp_path: Path) -> None:
    async def program(_: Any, client: Client) -> None:
        await client.open()
        model = await client.model()
        step = {"model_id": model, "seq_id": 2, "adam_params": ADAM}
        given = {"data": [datum()], "loss_fn": "cross_entropy"}
        pass_ = {"model_id": model, "seq_id": 1, "forward_backward_input": given}
        late = await client.post("optim_step", step)
        await client.post("forward_backward", pass_)
        assert (await client.result(late))["metrics"]["grad_norm:mean"] > 0

    run(base, tmp_path, program)


def test_a_request_sent_again_is_done_once(base: Path, tmp_path: Path) -> None:
    async def program(_: Any, client: Client) -> None:
        await client.open()
        assert (await Client(client.http, client.url).open()).session == client.session
        model = await client.model()
        await client.train(model, [datum()])
        step = {"model_id": model, "seq_id": 2, "adam_params": ADAM}
        futures = [await client.post("optim_step", step) for _ in range(3)]
        assert len({future["request_id"] for future in futures}) == 1
        client.seq[model] = 2
        once = await client.forward(model)
        await client.post("optim_step", step)
        assert await client.forward(model) == once

    run(base, tmp_path, program)


def test_a_request_that_fails_takes_its_place_and_the_next_one_runs(
    base: Path, tmp_path: Path
) -> None:
    async def program(_: Any, client: Client) -> None:
        await client.open()
        model = await client.model()
        wrong = await client.train(model, [datum(mask=[1.0] * 19)])
        assert wrong["category"] == "user"
        assert "does not read mask" in wrong["error"]
        assert "loss_fn_outputs" in await client.forward(model)

    run(base, tmp_path, program)


def test_protobuf_and_json_are_one_api(base: Path, tmp_path: Path) -> None:
    async def program(_: Any, client: Client) -> None:
        await client.open()
        model = await client.model()
        await client.forward(model)
        head = {"X-API-Key": client.key, "Content-Type": "application/x-protobuf"}
        url = f"{client.url}/api/v1/forward_backward"
        async with client.http.post(
            url, data=in_protobuf(model, 2, only=True), headers=head
        ) as answer:
            future = await answer.json()
        plain = await client.result(future)
        head = {"X-API-Key": client.key, "Accept": "application/x-protobuf"}
        async with client.http.post(
            f"{client.url}/api/v1/retrieve_future", json=future, headers=head
        ) as answer:
            assert answer.content_type == "application/x-protobuf"
            message = dict(fields(await answer.read()))
        record = dict(fields(bytes(message[2])))  # type: ignore[arg-type]
        name, batched = (v for _, v in fields(bytes(record[2])))  # type: ignore[arg-type]
        assert name == b"logprobs"
        logps = struct.unpack("<19f", dict(fields(bytes(batched)))[1])  # type: ignore[arg-type]
        assert [*logps] == plain["loss_fn_outputs"][0]["logprobs"]["data"]
        again = await client.http.post(
            url, data=b"\xff\xff", headers={**head, "Content-Type": "application/x-protobuf"}
        )
        assert again.status == 400

    run(base, tmp_path, program)


def test_keys_are_apart_and_a_published_checkpoint_is_for_all(base: Path, tmp_path: Path) -> None:
    async def program(_: Any, client: Client) -> None:
        await client.open()
        model = await client.model()
        saved = (await client.ordered("save_weights", model, path="one"))["path"]
        other = await Client(client.http, client.url, "tml-two").open()
        load = {"session_id": other.session, "model_seq_id": 0, "path": saved, "optimizer": False}
        for path, body in (
            ("get_info", {"model_id": model}),
            ("session_heartbeat", {"session_id": client.session}),
            ("retrieve_future", {"request_id": f"{model}:1"}),
            ("load_weights", load),
        ):
            assert (await other.call("POST", path, body))[0] == 404, path
        assert (await other.call("GET", "checkpoints"))[1]["checkpoints"] == []
        place = f"training_runs/{model}/checkpoints/weights/one"
        await client.post(f"{place}/publish", None)
        assert (await other.result(await other.post("load_weights", load)))["path"] == saved
        assert (await other.call("DELETE", place))[0] == 403
        stranger = Client(client.http, client.url, "tml-three")
        assert (await stranger.call("GET", "checkpoints"))[0] == 401

    run(base, tmp_path, program, keys=["tml-one", "tml-two"])


def test_limits_of_a_key_are_typed(base: Path, tmp_path: Path) -> None:
    async def program(_: Any, client: Client) -> None:
        await client.open()
        model = await client.model()
        body = {
            "session_id": client.session, "model_seq_id": 1, "base_model": "tiny",
            "lora_config": {"rank": 4},
        }  # fmt: skip
        status, answer = await client.call("POST", "create_model", body)
        assert (status, answer["error"]["code"]) == (403, "too_many_adapters")
        for change, code in (
            ({"lora_config": {"rank": 9}}, "invalid_value"),
            ({"lora_config": None}, "unsupported_parameter"),
            ({"base_model": "other"}, "unknown_model"),
            ({"optimizer_config": {"type": "dimuon"}}, "unsupported_parameter"),
        ):
            _, answer = await client.call("POST", "create_model", {**body, **change})
            assert answer["error"]["code"] == code, change
        step = {"model_id": model, "adam_params": ADAM}
        for seq in (3, 4):  # which wait for 1 and 2
            await client.post("optim_step", {**step, "seq_id": seq})
        status, answer = await client.call("POST", "optim_step", {**step, "seq_id": 5})
        assert (status, answer["error"]["code"]) == (429, "queue_full")
        await client.post("unload_model", {"model_id": model, "seq_id": 1})

    run(base, tmp_path, program, limits=KeyLimits(adapters=1, rank=8, queue=2))


def test_an_idle_adapter_makes_room_and_comes_back(base: Path, tmp_path: Path) -> None:
    async def program(_: Any, client: Client) -> None:
        await client.open()
        first = await client.model()
        await client.train(first, [datum()])
        await client.step(first)
        await client.train(first, [datum()])  # a gradient is pending
        second = await client.model(1)  # in its place, and the first one is idle at once
        await client.train(second, [datum()])
        await client.step(second)
        await client.train(second, [datum()])
        for model in (first, second):
            await client.step(model)
        assert await client.forward(first) == await client.forward(second)

    run(base, tmp_path, program, limits=KeyLimits(adapters=1, idle=0.0))


def test_checkpoints_are_listed_copied_kept_for_a_time_and_removed(
    base: Path, tmp_path: Path
) -> None:
    async def program(_: Any, client: Client) -> None:
        await client.open()
        model = await client.model()
        await client.ordered("save_weights", model, path="one", user_metadata={"a": "b"})
        taken = await client.ordered("save_weights", model, path="one")
        assert "exists" in taken["error"]
        await client.ordered("save_weights", model, path="one", overwrite=True)
        await client.ordered("save_weights_for_sampler", model, path="two")
        outside = await client.ordered("save_weights", model, path="../three")
        assert "without slashes" in outside["error"]
        place = f"training_runs/{model}/checkpoints"
        _, listed = await client.call("GET", place)
        assert [c["checkpoint_id"] for c in listed["checkpoints"]] == [
            "weights/one",
            "sampler_weights/two",
        ]
        copy = {"source_path": f"tinker://{model}/weights/one", "destination_project_id": "p"}
        head = {"X-Idempotency-Key": "copy"}
        copies = [await client.post("copy_weights", copy, **head) for _ in range(2)]
        assert copies[0] == copies[1]
        status, _ = await client.call("PUT", f"{place}/weights/one/ttl", {"ttl_seconds": -1})
        assert status == 200
        assert (await client.call("DELETE", f"{place}/sampler_weights/two"))[0] == 200
        _, all_ = await client.call("GET", "checkpoints")
        assert [c["tinker_path"] for c in all_["checkpoints"]] == [copies[0]["tinker_path"]]
        info = await client.post("weights_info", copies[0])
        assert (info["lora_rank"], info["base_model"]) == (4, "tiny")
        _, runs = await client.call("GET", "training_runs?limit=5")
        assert [r["training_run_id"] for r in runs["training_runs"]] == [model]

    run(base, tmp_path, program)


def test_an_export_is_fetched_by_links_that_end(base: Path, tmp_path: Path) -> None:
    async def program(server: Any, client: Client) -> None:
        await client.open()
        model = await client.model()
        await client.ordered("save_weights_external", model, path="out")
        place = f"training_runs/{model}/checkpoints/external_weights/out/external_weights_urls"
        _, links = await client.call("GET", place)
        assert sorted(links["urls"]) == ["adapter_config.json", "adapter_model.safetensors"]
        async with aiohttp.ClientSession() as bare:  # without a key
            url = links["urls"]["adapter_config.json"]
            async with bare.get(url) as answer:
                assert (await answer.json(content_type=None))["r"] == 4
            for wrong in (re.sub("expires=[0-9]+", "expires=99999999999", url), url[:-1]):
                async with bare.get(wrong) as answer:
                    assert answer.status == 403

    run(base, tmp_path, program)


def test_a_finished_session_frees_its_adapters_and_keeps_its_checkpoints(
    base: Path, tmp_path: Path
) -> None:
    async def program(_: Any, client: Client) -> None:
        await client.open()
        model = await client.model()
        sampler = await client.sampler(model)
        path = (await client.ordered("save_weights", model, path="one"))["path"]
        await client.post(f"sessions/{client.session}/finish", {"reason": {"type": "success"}})
        beat = await client.call("POST", "session_heartbeat", {"session_id": client.session})
        assert beat[0] == 410
        asked = {**prompt(), "sampling_session_id": sampler, "seq_id": 0}
        assert (await client.call("POST", "asample", asked))[0] == 404
        await client.open("another")
        load = {"session_id": client.session, "model_seq_id": 0, "path": path, "optimizer": True}
        assert "error" not in await client.result(await client.post("load_weights", load))

    run(base, tmp_path, program, limits=KeyLimits(adapters=1))


def test_what_is_not_served_says_why(base: Path, tmp_path: Path) -> None:
    async def program(_: Any, client: Client) -> None:
        for call, reason in REFUSED.items():
            method, _, path = call.partition(" /")
            path = path.replace(".*", "usage").replace("[^/]+", "x")
            status, answer = await client.call(method, path)
            assert status == 400
            assert reason in answer["error"]["message"]
        assert (await client.call("GET", "nothing"))[0] == 404

    run(base, tmp_path, program)
