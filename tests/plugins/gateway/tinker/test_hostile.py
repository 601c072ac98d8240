"""Clients that want what is another's or more than their share, and disks that are full."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quintain_gateway.tinker import calls, journal, models
from quintain_gateway.tinker.calls import KeyLimits
from quintain_gateway.tinker.journal import Accepted, Journal

from ....core.models.tiny import save_tiny
from .kit import ADAM, Client, datum, prompt
from .test_calls import run
from .test_numbers import require_together

TWO = ["tml-one", "tml-two"]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("base"))


@contextlib.contextmanager
def held(server: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Hold the thread that computes at its next request; what ran is in the list afterwards."""
    ran: list[str] = []
    go, original = threading.Event(), server._models.run

    def waits(request: Accepted) -> Any:
        ran.append(request.session)
        assert go.wait(60)
        return original(request)

    monkeypatch.setattr(server._models, "run", waits)
    try:
        yield ran
    finally:
        go.set()


def creation(client: Client, number: int = 0) -> dict[str, Any]:
    return {
        "session_id": client.session, "model_seq_id": number, "base_model": "tiny",
        "lora_config": {"rank": 4, "seed": 1},
    }  # fmt: skip


async def sampler_of(client: Client, path: str, number: int) -> str:
    body = {"session_id": client.session, "sampling_session_seq_id": number, "model_path": path}
    answer = await client.post("create_sampling_session", body)
    return str(answer["sampling_session_id"])


def test_a_sampler_never_reads_the_weights_that_replaced_its_own(
    base: Path, tmp_path: Path
) -> None:
    async def program(_: Any, client: Client) -> None:
        await client.open()
        model = await client.model()
        path = (await client.ordered("save_weights_for_sampler", model, path="at"))["path"]
        other = await Client(client.http, client.url, TWO[1]).open()
        await client.post(f"training_runs/{model}/checkpoints/sampler_weights/at/publish", None)
        theirs = await sampler_of(other, path, 0)
        early = await sampler_of(client, path, 7)
        await client.sample(early, prompt_logprobs=True)
        await client.train(model, [datum()])
        await client.step(model)
        await client.ordered("save_weights_for_sampler", model, path="at", overwrite=True)
        now = (await client.forward(model))["loss_fn_outputs"][0]["logprobs"]["data"]
        late = await sampler_of(client, path, 8)
        sample = await client.sample(late, prompt_logprobs=True)
        assert sample["prompt_logprobs"][1:] == pytest.approx(now, abs=1e-5)
        # the new weights are not published, and the published ones are gone
        assert (await other.sample(theirs))["code"] == "gone"
        assert (await client.sample(early, 1))["code"] == "gone"

    run(base, tmp_path, program, keys=TWO)


def test_no_copy_lands_in_the_session_of_another(base: Path, tmp_path: Path) -> None:
    async def program(_: Any, client: Client) -> None:
        await client.open()
        model = await client.model()
        path = (await client.ordered("save_weights", model, path="one"))["path"]
        await client.post(f"training_runs/{model}/checkpoints/weights/one/publish", None)
        other = await Client(client.http, client.url, TWO[1]).open()
        body = {"source_path": path, "session_id": client.session, "model_seq_id": 1}
        status, answer = await other.call("POST", "copy_weights", body)
        assert (status, answer["error"]["code"]) == (404, "unknown_session")
        body["session_id"] = other.session
        copied = await other.post("copy_weights", body)
        assert copied["tinker_path"] == f"tinker://{other.session}:train:1/weights/one"

    run(base, tmp_path, program, keys=TWO)


def test_a_delete_takes_the_weights_from_all_samplers(base: Path, tmp_path: Path) -> None:
    async def program(_: Any, client: Client) -> None:
        await client.open()
        model = await client.model()
        path = (await client.ordered("save_weights_for_sampler", model, path="at"))["path"]
        sampler = await sampler_of(client, path, 7)
        await client.sample(sampler)
        await client.call("DELETE", f"training_runs/{model}/checkpoints/sampler_weights/at")
        assert (await client.sample(sampler, 1))["code"] == "gone"

    run(base, tmp_path, program)


def test_bodies_that_are_no_requests_are_refused(base: Path, tmp_path: Path) -> None:
    async def program(_: Any, client: Client) -> None:
        await client.open()
        model = await client.model()
        head = {"X-API-Key": client.key, "Content-Type": "application/json"}
        deep = b'{"a":' * 100_000
        async with client.http.post(
            f"{client.url}/api/v1/optim_step", data=deep, headers=head
        ) as answer:
            assert answer.status == 400
        for seq in (2**70, float("inf")):
            body = {"model_id": model, "seq_id": seq, "adam_params": ADAM}
            assert (await client.call("POST", "optim_step", body))[0] == 400
        await client.ordered("save_weights", model, path="one")
        place = f"training_runs/{model}/checkpoints/weights/one"
        for seconds in (1e300, "soon", float("nan")):
            body = {"ttl_seconds": seconds}
            assert (await client.call("PUT", f"{place}/ttl", body))[0] == 400
        assert (await client.call("GET", "checkpoints"))[0] == 200
        assert (await client.call("GET", f"{place}/external_weights_urls"))[0] == 400
        assert (await client.call("GET", "files/x/y?expires=%C2%B2&signature=%C3%A9"))[0] == 403

    run(base, tmp_path, program)


def test_a_session_that_finished_stays_finished(base: Path, tmp_path: Path) -> None:
    async def program(_: Any, client: Client) -> None:
        await client.open()
        await client.post(f"sessions/{client.session}/finish", None)
        beat = {"session_id": client.session}
        assert (await client.call("POST", "session_heartbeat", beat))[0] == 410
        assert (await client.call("POST", "create_model", creation(client)))[0] == 410

    run(base, tmp_path, program)


def test_adapters_that_wait_count(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def program(server: Any, client: Client) -> None:
        await client.open()
        with held(server, monkeypatch):
            first = await client.post("create_model", creation(client))
            status, answer = await client.call("POST", "create_model", creation(client, 1))
            assert (status, answer["error"]["code"]) == (403, "too_many_adapters")
        await client.result(first)

    run(base, tmp_path, program, limits=KeyLimits(adapters=1))


def test_adapters_that_come_back_are_within_the_limit_too(base: Path, tmp_path: Path) -> None:
    async def program(server: Any, client: Client) -> None:
        await client.open()
        model = await client.model()
        await client.train(model, [datum()])
        await client.step(model)
        before = await client.forward(model)
        await client.train(model, [datum()])  # a gradient is pending
        owner = server._models._live[model].owner
        for number_ in (1, 2):
            await client.model(number_)
            assert len(server._models.held(owner)) == 1
        assert await client.forward(model) == before
        assert (await client.step(model))["metrics"]["grad_norm:mean"] > 0
        assert len(server._models.held(owner)) == 1

    run(base, tmp_path, program, limits=KeyLimits(adapters=1, idle=0.0))


def test_the_queue_is_bounded_in_bytes_and_opens_for_the_next_request_alone(
    base: Path, tmp_path: Path
) -> None:
    async def program(_: Any, client: Client) -> None:
        await client.open()
        model = await client.model()
        step = {"model_id": model, "adam_params": ADAM}
        await client.post("optim_step", {**step, "seq_id": 10**9})
        status = 0
        for seq in range(3, 40):
            status, answer = await client.call("POST", "optim_step", {**step, "seq_id": seq})
            if status == 429:
                break
        assert (status, answer["error"]["code"]) == (429, "queue_full")
        assert "metrics" in await client.result(
            await client.post("optim_step", {**step, "seq_id": 1})
        )

    run(base, tmp_path, program, limits=KeyLimits(bytes=2000))


def test_keys_take_turns_however_many_sessions_one_has(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def program(server: Any, client: Client) -> None:
        flood = [await Client(client.http, client.url).open(name) for name in ("a", "b", "c", "d")]
        other = await Client(client.http, client.url, TWO[1]).open()
        with held(server, monkeypatch) as ran:
            futures = [await c.post("create_model", creation(c)) for c in flood]
            theirs = await other.post("create_model", creation(other))
        await other.result(theirs)
        for c, future in zip(flood, futures, strict=True):
            await c.result(future)
        assert ran == [c.session for c in (flood[0], other, *flood[1:])]

    run(base, tmp_path, program, keys=TWO)


def test_a_request_of_a_model_is_not_cancelled(base: Path, tmp_path: Path) -> None:
    async def program(_: Any, client: Client) -> None:
        await client.open()
        model = await client.model()
        step = {"model_id": model, "adam_params": ADAM}
        late = await client.post("optim_step", {**step, "seq_id": 2})
        assert (await client.call("POST", "cancel_future", late))[0] == 400
        await client.post("optim_step", {**step, "seq_id": 1})
        assert "metrics" in await client.result(late)

    run(base, tmp_path, program)


def test_a_poll_that_ended_leaves_nothing(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "POLL_SECONDS", 0.01)

    async def program(server: Any, client: Client) -> None:
        await client.open()
        model = await client.model()
        step = {"model_id": model, "adam_params": ADAM, "seq_id": 2}
        future = await client.post("optim_step", step)
        assert (await client.call("POST", "retrieve_future", future))[0] == 408
        assert server._calls._waiting == {}

    run(base, tmp_path, program)


def test_a_step_on_a_full_disk_was_not_taken(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> int:
        raise OSError(28, "No space left on device")

    async def program(_: Any, client: Client) -> list[Any]:
        await client.open()
        seen = []
        for number_ in (0, 1):
            model = await client.model(number_)
            await client.train(model, [datum()])
            if number_:
                with monkeypatch.context() as patch:
                    patch.setattr(models, "write_tensors", full)
                    assert "No space" in (await client.step(model))["error"]
            seen += [[await client.step(model), await client.forward(model)]]
        return seen

    calm, disturbed = run(base, tmp_path, program)
    assert disturbed == calm


def test_what_a_key_keeps_on_disk_is_bounded(base: Path, tmp_path: Path) -> None:
    async def program(server: Any, client: Client) -> None:
        await client.open()
        model = await client.model()  # of nine sizes three are for its own file
        await client.step(model)
        first, second = await client.sampler(model), await client.sampler(model)
        await client.ordered("save_weights", model, path="kept")
        await client.sample(first)
        third = await client.sampler(model)  # the ninth
        await client.ordered("save_weights_for_sampler", model, path="one")
        oldest = {**prompt(), "sampling_session_id": first, "seq_id": 1}
        status, answer = await client.call("POST", "asample", oldest)
        assert (status, answer["error"]["code"]) == (404, "unknown_sampler")
        for number, sampler in enumerate((second, third), 2):
            assert "sequences" in await client.sample(sampler, number)
        refused = await client.ordered("save_weights", model, path="more")
        assert (refused["code"], refused["category"]) == ("too_much_disk", "user")
        assert "--disk" in refused["error"]
        assert "sequences" in await client.sample(third, 4)  # nothing went for what is refused
        status, answer = await client.call(
            "POST", "copy_weights", {"source_path": f"tinker://{model}/weights/kept"}
        )
        assert (status, answer["error"]["code"]) == (403, "too_much_disk")
        other = await Client(client.http, client.url, TWO[1]).open()
        await other.model()  # each key has its own
        assert (await client.call("DELETE", f"training_runs/{model}/checkpoints/weights/kept"))[
            0
        ] == 200
        assert "path" in await client.ordered("save_weights", model, path="more")

    size = len((save_size(base, tmp_path / "one")).read_bytes())
    run(base, tmp_path, program, keys=TWO, limits=KeyLimits(disk=int(size * 9.2)))


def save_size(base: Path, state: Path) -> Path:
    """A file of weights of the adapter that `Client.model` makes."""

    async def program(_: Any, client: Client) -> None:
        await client.open()
        await client.sampler(await client.model())

    run(base, state, program)
    (file,) = state.rglob("samplers/*.safetensors")
    return file


def test_samples_of_several_keys_are_decoded_together_and_are_those_alone(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def program(server: Any, client: Client) -> None:
        require_together(server.compute)
        clients = [await Client(client.http, client.url, key).open() for key in TWO]
        models_ = [await c.model(seed=i) for i, c in enumerate(clients)]
        samplers = [await c.sampler(m) for c, m in zip(clients, models_, strict=True)]
        asked = [{**prompt(num_samples=n, params={"max_tokens": 30, "seed": n})} for n in (1, 2, 3)]

        async def send(c: Client, sampler: str, number: int, body: Any) -> Any:
            whole = {**body, "sampling_session_id": sampler, "seq_id": number}
            return await c.post("asample", whole)

        alone = []
        for c, sampler in zip(clients, samplers, strict=True):
            for number, body in enumerate(asked):
                alone.append(await c.result(await send(c, sampler, number, body)))
        most = []
        begin = server.compute.begin

        def counts(*given: Any) -> None:
            begin(*given)
            most.append(len(server.compute._begun))

        monkeypatch.setattr(server.compute, "begin", counts)
        with held(server, monkeypatch):
            blocked = await clients[0].post("create_model", creation(clients[0], 1))
            futures = [
                (c, await send(c, sampler, 10 + number, body))
                for c, sampler in zip(clients, samplers, strict=True)
                for number, body in enumerate(asked)
            ]
        await clients[0].result(blocked)
        assert [await c.result(future) for c, future in futures] == alone
        assert max(most) == len(futures)

    run(base, tmp_path, program, keys=TWO)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_server_that_cannot_write_says_so_to_those_who_wait(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    async def program(server: Any, client: Client) -> None:
        await client.open()
        monkeypatch.setattr(calls, "POLL_SECONDS", 0.1)
        monkeypatch.setattr(server._journal, "finish", full)
        future = await client.post("create_model", creation(client))
        for _ in range(300):
            status, answer = await client.call("POST", "retrieve_future", future)
            if status != 408:
                break
        assert (status, answer["error"]["code"]) == (500, "stopped")

    run(base, tmp_path, program)


def test_the_journal_keeps_no_body_without_need_and_results_by_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "KEPT", 2)
    kept = Journal(tmp_path)

    def done(name: str, session: str, kind: str, seq: int) -> None:
        request = Accepted(
            id=name, owner="o", session=session, model="m" * (kind != "asample"), seq=seq,
            kind=kind, form="", body=b"{}",
        )  # fmt: skip
        kept.accept(request)
        kept.finish(request, {}, [])

    done("slow", "s", "asample", 0)
    for seq in range(6):
        done(f"fast-{seq}", "f", "forward" if seq else "optim_step", seq)
    done("last", "s", "asample", 1)
    kept.forget("s")
    kept.forget("f")
    names = {row["id"] for row in kept.all("SELECT id FROM request")}
    # of the busy session what is to be applied again, and the newest two
    assert names == {"slow", "last", "fast-0", "fast-4", "fast-5"}
    assert [r.id for r in kept.since("m", -1)] == ["fast-0"]
    kept.close()


def test_many_samples_that_end_on_their_first_token(base: Path, tmp_path: Path) -> None:
    """More of them than Python has frames for: one follows the other in the same row."""

    async def program(server: Any, client: Client) -> None:
        require_together(server.compute)
        await client.open()
        sampler = await client.sampler(await client.model())
        body = prompt(num_samples=600, params={"max_tokens": 1, "seed": 1})
        asked = {**body, "sampling_session_id": sampler, "seq_id": 9}
        told = await client.result(await client.post("asample", asked))
        assert len(told["sequences"]) == 600

    run(base, tmp_path, program)
