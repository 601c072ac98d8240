"""After a weight update vLLM has the learner's weights, exactly, or the run stops and says which
layer has not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: bash tools/vllm_env.sh")

import torch

from quintain import Sampling
from quintain.errors import UsageError
from quintain.learning import ModuleWeights
from quintain_engines.vllm import CanaryError, UndeliveredError, VLLMEngine, WeightSyncError
from quintain_engines.vllm.arguments import engine_args
from quintain_engines.vllm.transports import File, Memory
from quintain_scale.schedules.presets import Areal, OneStepOff, Pipeline

from ....core.models.tiny import tiny_model
from .kit import TOKENIZER, Running, adapted, adapters_arrive, plain_logps

pytestmark = [pytest.mark.filterwarnings("default")]  # vLLM's own
IDS = [(7 * i) % 256 for i in range(60)]


class Other:
    """Published weights without a live module, as a late engine gets them; *but* replaces some."""

    def __init__(self, module: Any, version: int, but: Mapping[str, Any] | None = None) -> None:
        self.version = version
        self._tensors = {n: t.detach().clone() for n, t in module.state_dict().items()} | dict(
            but or {}
        )

    def tensors(self) -> dict[str, Any]:
        return self._tensors


def agrees(running: Running, model: Any) -> float:
    """Largest difference between the engine's scores and a plain forward of *model*, in nats."""
    scores = running.do(running.engine.score(IDS, 1))
    return max(
        abs(a - b) for a, b in zip(scores, plain_logps(model, IDS[:1], IDS[1:]), strict=True)
    )


@pytest.fixture(scope="module", params=["qwen3", "llama", "gpt2"])
def running(request: pytest.FixtureRequest) -> Iterator[Running]:
    """Tied heads are qwen3's and gpt2's; llama's is untied."""
    started = Running(tiny_model(request.param, hidden=128))
    started.kind = request.param
    yield started
    started.close()


def test_an_update_is_exact(running: Running) -> None:
    """From tensors in memory and from a file, over a warm prefix cache; each token carries the
    version.
    """
    for version, transport in [(1, Memory()), (2, File()), (5, Memory())]:
        running.sample((IDS, Sampling(max_tokens=2)))  # the prefix is cached now
        model = tiny_model(running.kind, hidden=128, seed=version)
        running.engine._transport = transport
        assert running.do(running.engine.update(Other(model, version))) == version
        assert agrees(running, model) < 2e-5
        (out,) = running.sample((IDS, Sampling(seed=1, max_tokens=20)))
        assert out.versions == (version,) * len(out.ids)
        assert list(out.logps) == pytest.approx(plain_logps(model, IDS, out.ids), abs=1e-4)
    assert max(running.engine.differences) < 1e-4


def test_the_learners_module_is_read_live(running: Running) -> None:
    with torch.no_grad():
        for parameter in running.model.parameters():
            parameter.mul_(1.01)
    running.do(running.engine.update(ModuleWeights(running.model, 7)))
    assert agrees(running, running.model) < 2e-5


def test_a_tensor_that_did_not_arrive_is_named(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names of the learner's tensors lead elsewhere for one map; the engine takes the rest."""
    model = tiny_model(running.kind, hidden=128, seed=11)
    name = "model.layers.1.mlp.up_proj.weight"
    if running.kind == "gpt2":
        name = "transformer.h.1.attn.c_proj.weight"  # square, and the other way round in vLLM
    wrong = model.state_dict()[name].clone().normal_(0, 0.15)
    published = Other(model, 8)
    sent = Other(model, 8, {name: wrong})
    transfer = Memory.transfer

    async def mislead(self: Memory, control: Any, tensors: Mapping[str, Any], version: int) -> None:
        await transfer(self, control, sent.tensors(), version)

    monkeypatch.setattr(Memory, "transfer", mislead)
    with pytest.raises(UndeliveredError, match=r"did not arrive") as error:
        running.do(running.engine.update(published))
    assert error.value.part == name


def _packed(engine: Any) -> None:
    """Give the output layer a packed copy of its present weights, as vLLM does on CPUs whose
    kernels want one.
    """
    head = engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner.get_model().lm_head
    copy = head.weight.detach().clone()
    head.cpu_linear = lambda x, weight, bias: torch.nn.functional.linear(x, copy, bias)


def test_a_stale_tied_head_is_named(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint names a tied weight once: without our repacking, a packed output layer keeps its
    old values.
    """
    if running.kind == "llama":
        pytest.skip("an untied head arrives with the checkpoint")
    monkeypatch.setattr("quintain_engines.vllm.worker.repack_heads", lambda model: None)
    running.do(running.engine._do(_packed))
    model = tiny_model(running.kind, hidden=128, seed=12)
    published = Other(model, 9)
    del published.tensors()["lm_head.weight"]
    with pytest.raises(UndeliveredError) as error:
        running.do(running.engine.update(published))
    assert error.value.part == "lm_head.weight"
    monkeypatch.undo()
    published.version = 10
    running.do(running.engine.update(published))
    assert agrees(running, model) < 2e-5


def test_a_transfer_that_fails_says_so(running: Running) -> None:
    if running.kind != "qwen3":
        pytest.skip("once is enough")
    model = tiny_model(hidden=32)
    with pytest.raises(WeightSyncError, match="did not take weights of version 20"):
        running.do(running.engine.update(Other(model, 20)))


async def _stream(running: Running, versions: Sequence[tuple[int, Any]]) -> Any:
    """A reply of 300 tokens during which the weights change."""
    fields = {"temperature": 0.0, "max_tokens": 300, "logprobs": 0, "ignore_eos": True}
    reply = asyncio.create_task(running.engine._generate(IDS, fields))
    for i, (version, model) in enumerate(versions):
        await sampled_tokens(running.engine, 60 * (i + 1))
        await running.engine.update(Other(model, version))
    return await reply


async def sampled_tokens(engine: Any, number: int) -> None:
    """Wait until the longest reply has *number* tokens."""

    def progress(engine: Any) -> int:
        requests = engine.engine_core.engine_core.scheduler.requests.values()
        return max((r.num_output_tokens for r in requests), default=0)

    while await engine._do(progress) < number:
        pass


@pytest.fixture(scope="module")
def streaming() -> Iterator[Running]:
    started = Running(tiny_model(hidden=128))
    yield started
    started.close()


def follow(engine: Any, schedule: Any) -> None:
    """Set what a run with *schedule* sets."""
    engine.in_flight_updates, engine.recompute_kv = (
        schedule.in_flight_updates,
        schedule.recompute_kv,
    )


@pytest.mark.parametrize("schedule", [Areal(), Pipeline()])
def test_updates_in_flight(streaming: Running, schedule: Any) -> None:
    """Each token carries the version that sampled it. With fresh keys and values it is that
    version's choice for the whole text before it; with stale ones most tokens are of neither
    version, and the log-probs show it.
    """
    models = {v: tiny_model(hidden=128, seed=v) for v in (0, 1, 2)}
    follow(streaming.engine, schedule)
    streaming.do(streaming.engine.update(Other(models[0], 0)))
    answer = streaming.do(_stream(streaming, [(1, models[1]), (2, models[2])]))
    spans = [(int(v), start, end) for v, start, end in answer.spans]
    assert [v for v, _, _ in spans] == [0, 1, 2]
    assert [end for _, _, end in spans] == [*(start for _, start, _ in spans[1:]), 300]
    assert all(end - start >= 30 for _, start, end in spans)
    off = {}
    for version, start, end in spans:
        own = plain_logps(models[version], [*IDS, *answer.ids[:start]], answer.ids[start:end])
        off[version] = max(abs(a - b) for a, b in zip(own, answer.logps[start:end], strict=True))
    assert off[0] < 1e-4
    assert (off[1] < 1e-3 and off[2] < 1e-3) == schedule.recompute_kv


def test_an_update_waits_for_the_end_of_turns(streaming: Running) -> None:
    """Without updates in flight, turns that run keep their version; one that is asked for meanwhile
    has the next.
    """
    engine, models = streaming.engine, {v: tiny_model(hidden=128, seed=v) for v in (0, 5)}
    follow(engine, OneStepOff())
    streaming.do(engine.update(Other(models[0], 0)))
    # its log-probs are scored after it, within the turn
    long = Sampling(seed=1, max_tokens=200, top_p=0.99)

    async def turns() -> list[Any]:
        running = [asyncio.create_task(engine.sample([i], long)) for i in range(3)]
        await sampled_tokens(engine, 5)
        update = asyncio.create_task(engine.update(Other(models[5], 5)))
        await asyncio.sleep(0)
        late = asyncio.create_task(engine.sample([9], Sampling(seed=1, max_tokens=5)))
        running[0].cancel()
        outs = [await task for task in running[1:]]
        assert await update == 5
        return [*outs, await late]

    *before, after = streaming.do(turns())
    for start, (version, out) in zip(
        (1, 2, 9), [(0, before[0]), (0, before[1]), (5, after)], strict=True
    ):
        assert out.versions == (version,) * len(out.ids)
        assert list(out.logps) == pytest.approx(
            plain_logps(models[version], [start], out.ids), abs=1e-3
        )


@pytest.mark.parametrize("alone", [False, True])
def test_adapters_are_exact(alone: bool) -> None:
    """Merged into the weights, or sent alone and added by vLLM; the rank is one that vLLM rounds
    up.
    """
    model = adapted()
    running = Running(model, adapters=alone)
    try:
        for version in (1, 2):
            adapters_arrive(running, IDS, version)
            assert agrees(running, model) < 5e-5
        if alone:
            with pytest.raises(UsageError, match="merged weights were published"):
                running.do(running.engine.update(Other(model, 3)))
    finally:
        running.close()


def test_log_probs_before_the_temperature_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """At temperature 1 they are the same."""

    def raw(*args: Any, **kwargs: Any) -> dict[str, Any]:
        return {**engine_args(*args, **kwargs), "logprobs_mode": "raw_logprobs"}

    monkeypatch.setattr("quintain_engines.vllm.base.engine_args", raw)
    with pytest.raises(CanaryError):
        Running(tiny_model(hidden=128))
    with pytest.raises(UsageError, match="options.logprobs_mode is set by the engine"):
        VLLMEngine.sharing(tiny_model(), TOKENIZER, options={"logprobs_mode": "raw_logprobs"})


def test_adapters_alone_need_adapters() -> None:
    with pytest.raises(UsageError, match=r"set \[model.lora\]"):
        VLLMEngine.sharing(tiny_model(), TOKENIZER, adapters=True)
