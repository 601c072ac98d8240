"""vLLM: every fault of an update by 1e-6 is found when the update ends, and none where there is
none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: bash tools/vllm_env.sh")

import torch
from safetensors.torch import load_file, save_file

from quintain.learning import ModuleWeights
from quintain_engines.vllm import CanaryError, UndeliveredError, VLLMEngine, WeightSyncError
from quintain_engines.vllm import base as engine_base
from quintain_engines.vllm.transports import Memory

from ....core.models.tiny import tiny_model
from ....core.run.weight_faults import FAULTS, Fault
from .kit import Running, adapted
from .test_sync import _packed

pytestmark = [pytest.mark.filterwarnings("default")]  # vLLM's own
RATE = 1e-6
DTYPES = ("float32", "bfloat16")
# A fault of the way, and not of its numbers, is one in both.
EITHER_DTYPE = ("float32", pytest.param("bfloat16", marks=pytest.mark.slow))


class Moving(Running):
    """A started engine, and a model whose every weight moves by 1e-6 in an update, as a first step
    of Adam moves it.
    """

    def __init__(self, family: str, dtype: str, **options: Any) -> None:
        model = adapted() if family == "adapters" else tiny_model(family, hidden=128)
        if family == "adapters":
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    if ".lora_" in name:
                        parameter.normal_(0, 0.05, generator=torch.Generator().manual_seed(1))
            options["adapters"] = True
        super().__init__(model, dtype=dtype, **options)
        self.version, self.dtype = 0, getattr(torch, dtype)
        self.generator = torch.Generator().manual_seed(0)

    def step(self) -> None:
        with torch.no_grad():
            for parameter in self.model.parameters():
                if parameter.requires_grad:
                    signs = torch.randn(parameter.shape, generator=self.generator).sign()
                    parameter.add_(RATE * signs)
        self.version += 1

    def update(self) -> None:
        self.do(self.engine.update(ModuleWeights(self.model, self.version)))

    def tensors(self) -> dict[str, torch.Tensor]:
        weights = ModuleWeights(self.model, self.version)
        return {n: t.detach().clone() for n, t in weights.tensors().items()}

    def found(self) -> tuple[str, str]:
        """What an update raises, and which part it names; afterwards all is well again."""
        self.step()
        try:
            self.update()
        except (UndeliveredError, CanaryError) as error:
            part = error.part if isinstance(error, UndeliveredError) else error.layer
            return type(error).__name__, part
        except WeightSyncError as error:
            return type(error).__name__, str(error)
        return "missed", ""

    def recover(self) -> None:
        self.step()
        self.update()


@pytest.fixture(scope="module")
def started() -> Iterator[dict[tuple[str, str], Moving]]:
    """At most one engine at a time."""
    engines: dict[tuple[str, str], Moving] = {}
    yield engines
    for moving in engines.values():
        moving.close()


def moving(started: dict[tuple[str, str], Moving], family: str, dtype: str) -> Moving:
    if (family, dtype) not in started:
        while started:
            started.popitem()[1].close()
        started[family, dtype] = Moving(family, dtype)
    return started[family, dtype]


def sent_wrong(running: Moving, fault: Fault, patch: pytest.MonkeyPatch) -> list[bool]:
    """Change what is sent; whether this changes a bit of what the engine computes with."""
    before, transfer, altered = running.tensors(), Memory.transfer, list[bool]()

    async def wrong(self: Any, control: Any, tensors: Mapping[str, Any], version: int) -> None:
        sent = {n: t.contiguous() for n, t in fault.change(tensors, before).items()}
        pairs = [(t.to(running.dtype), tensors[n].to(running.dtype)) for n, t in sent.items()]
        altered.append(not all(torch.equal(a, b) for a, b in pairs))
        await transfer(self, control, sent, version)

    patch.setattr(Memory, "transfer", wrong)
    return altered


NO_EFFECT = {
    ("norms stale", "bfloat16"),
    ("last norm stale", "bfloat16"),
    ("cast to bfloat16 on the way", "bfloat16"),
}
ORDERED = sorted(
    ((fault, dtype) for fault in FAULTS for dtype in DTYPES),
    key=lambda pair: (pair[0].family, pair[1]),
)


@pytest.mark.parametrize(
    ("fault", "dtype"), ORDERED, ids=[f"{fault.name}, {dtype}" for fault, dtype in ORDERED]
)
def test_a_fault_is_found_when_the_update_ends(
    fault: Fault, dtype: str, started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = moving(started, fault.family, dtype)
    with monkeypatch.context() as patch:
        altered = sent_wrong(running, fault, patch)
        means, part = running.found()
    if (fault.name, dtype) in NO_EFFECT:
        assert means == "missed"
        assert altered == [False]
    else:
        assert means == "UndeliveredError"
        assert altered == [True]
        assert part in running.tensors()
    running.recover()


@pytest.mark.parametrize("dtype", DTYPES)
def test_healthy_updates_raise_nothing(dtype: str, started: Any) -> None:
    running = moving(started, "qwen3", dtype)
    for _ in range(12):
        running.recover()


def everywhere(running: Moving, act: Any) -> None:
    """Run *act* with vLLM's own model."""

    def reach(engine: Any) -> None:
        worker = engine.engine_core.engine_core.model_executor.driver_worker.worker
        act(worker.model_runner.get_model())

    running.do(running.engine._do(reach))


@pytest.mark.parametrize("dtype", EITHER_DTYPE)
def test_a_packed_copy_of_a_tied_output_layer_that_stays_old_is_found(
    dtype: str, started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vllm-project/vllm#51665; on a CPU, `reload_weights` leaves it."""
    running = moving(started, "qwen3", dtype)
    with monkeypatch.context() as patch:
        patch.setattr("quintain_engines.vllm.worker.repack_heads", lambda model: None)
        named_once = Fault(
            "", "", lambda new, old: {n: new[n] for n in new if n != "lm_head.weight"}
        )
        sent_wrong(running, named_once, patch)
        running.do(running.engine._do(_packed))
        assert running.found() == ("UndeliveredError", "lm_head.weight")
    running.recover()


@pytest.mark.parametrize("dtype", EITHER_DTYPE)
def test_a_buffer_that_no_checkpoint_has_is_found(dtype: str, started: Any) -> None:
    """vllm-project/vllm#16564, NovaSky-AI/SkyRL#1725."""
    running = moving(started, "qwen3", dtype)

    def turn(model: Any) -> None:
        for part in model.modules():
            if hasattr(part, "cos_sin_cache"):
                part.kept = part.cos_sin_cache.clone()
                part.cos_sin_cache.copy_(part.cos_sin_cache.roll(3, 0))

    def turn_back(model: Any) -> None:
        for part in model.modules():
            if hasattr(part, "kept"):
                part.cos_sin_cache.copy_(part.kept)

    everywhere(running, turn)
    assert running.found()[0] == "CanaryError"
    everywhere(running, turn_back)
    running.recover()


@pytest.mark.parametrize("dtype", EITHER_DTYPE)
def test_a_cached_prefix_of_older_weights_is_found(
    dtype: str, started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """InternLM/lmdeploy#4917, NVIDIA-NeMo/RL#4018: no pause, reset or salt keeps it out."""
    running = moving(started, "qwen3", dtype)
    engine: Any = running.engine
    submit = engine._thread.submit

    async def nothing(self: Any) -> None:
        pass

    with monkeypatch.context() as patch:
        patch.setattr(VLLMEngine, "_reset_prefix_cache", nothing)
        patch.setattr(engine, "recompute_kv", False)
        patch.setattr(
            engine._thread,
            "submit",
            lambda prompt, params, **more: submit({**prompt, "cache_salt": "one"}, params, **more),
        )
        means = [running.found() for _ in range(2)]
    part = "prefix (32 tokens that were cached before)"
    assert means == [("missed", ""), ("UndeliveredError", part)]  # the first fills the cache
    running.recover()


@pytest.mark.parametrize("dtype", EITHER_DTYPE)
def test_a_label_of_the_version_before_is_found(
    dtype: str, started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AReaL#1388."""
    running = moving(started, "qwen3", dtype)

    async def unlabelled(self: Any, version: int) -> None:
        await self._call("finish_weight_update")

    with monkeypatch.context() as patch:
        patch.setattr(VLLMEngine, "finish_weight_update", unlabelled)
        label = running.version
        assert running.found() == ("UndeliveredError", f"version ({label})")
    running.recover()


@pytest.mark.parametrize("dtype", EITHER_DTYPE)
def test_log_probs_without_the_temperature_are_found(
    dtype: str, started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """huggingface/trl#4159, PrimeIntellect-ai/prime-rl#697."""
    running = moving(started, "qwen3", dtype)
    generate = VLLMEngine._generate

    async def raw(self: Any, ids: Any, fields: Mapping[str, Any]) -> Any:
        out = await generate(self, ids, fields)
        if fields["temperature"] == 1 or not out.logps:
            return out
        token = {"temperature": 1.0, "logprob_token_ids": [out.ids[0]]}
        asked = (await generate(self, ids, {**fields, **token, "logprobs": None})).asked
        return replace(out, logps=(asked,))

    with monkeypatch.context() as patch:
        patch.setattr(VLLMEngine, "_generate", raw)
        assert running.found()[0] == "CanaryError"
    running.recover()


@pytest.mark.parametrize("dtype", EITHER_DTYPE)
def test_tokens_of_another_distribution_than_the_reported_one_are_found(
    dtype: str, started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vllm-project/vime#64: drawn before the temperature, reported after it; at the start."""
    running = moving(started, "qwen3", dtype)
    weights = ModuleWeights(running.model, running.version)
    generate = VLLMEngine._generate

    async def untempered(self: Any, ids: Any, fields: Mapping[str, Any]) -> Any:
        return await generate(self, ids, {**fields, "temperature": 1.0})

    running.do(running.engine._check_sampling(weights))
    with monkeypatch.context() as patch:
        patch.setattr(VLLMEngine, "_generate", untempered)
        with pytest.raises(UndeliveredError, match=r"another temperature \(-\d+ standard errors"):
            running.do(running.engine._check_sampling(weights))


# -- adapters


def edited(edit: Any, patch: pytest.MonkeyPatch) -> None:
    """The folder of the adapters is changed by *edit* before vLLM loads it."""
    load = VLLMEngine._load_adapter

    async def wrong(self: Any, folder: Path, version: int) -> None:
        edit(folder)
        await load(self, folder, version)

    patch.setattr(VLLMEngine, "_load_adapter", wrong)


def with_tensors(change: Any) -> Any:
    def edit(folder: Path) -> None:
        path = folder / "adapter_model.safetensors"
        save_file(change(load_file(path)), path)

    return edit


def with_config(**fields: Any) -> Any:
    def edit(folder: Path) -> None:
        path = folder / "adapter_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))

    return edit


ADAPTERS = {
    # OpenPipe/ART#661
    "adapter of the step before": None,
    # NVIDIA/TensorRT-LLM#1668, vllm-project/vllm#6909
    "scale missing": with_config(lora_alpha=5),
    "scale of rank-stabilised adapters": with_config(use_rslora=True),
    # vllm-project/vllm#34186, #41754
    "names with another prefix": with_tensors(
        lambda t: {n.replace("model.layers.1.", "language.layers.1."): x for n, x in t.items()}
    ),
    # verl-project/verl-omni#552
    "joined maps without adapters": with_tensors(
        lambda t: {n: x for n, x in t.items() if "gate_proj" not in n and "up_proj" not in n}
    ),
    "adapter of one layer missing": with_tensors(
        lambda t: {n: x for n, x in t.items() if "layers.0.self_attn.v_proj" not in n}
    ),
    "adapter of another layer": with_tensors(
        lambda t: {n: t[n.replace("layers.1.", "layers.0.")] for n in t}
    ),
}


@pytest.mark.parametrize("dtype", EITHER_DTYPE)
@pytest.mark.parametrize("name", ADAPTERS)
def test_an_adapter_that_does_not_arrive_is_found(
    name: str, dtype: str, started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = moving(started, "adapters", dtype)
    with monkeypatch.context() as patch:
        if (edit := ADAPTERS[name]) is not None:
            edited(edit, patch)
        else:

            async def label(self: Any, folder: Path, version: int) -> None:
                await self._do(lambda engine: engine.set_weight_version(str(version)))

            patch.setattr(VLLMEngine, "_load_adapter", label)
        means, part = running.found()
    assert means in ("UndeliveredError", "WeightSyncError")  # vLLM refuses some itself
    assert means == "WeightSyncError" or ".lora_" in part
    running.recover()


@pytest.mark.parametrize("dtype", EITHER_DTYPE)
@pytest.mark.parametrize("trained", [True, False])
def test_requests_without_the_adapter_are_found(
    trained: bool, dtype: str, started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """verl-project/verl#7495: loaded, and no request has it. New adapters change nothing, so the
    engine begins with others.
    """
    running = moving(started, "adapters", dtype)
    submit = running.engine._thread.submit
    factors = [p for n, p in running.model.named_parameters() if ".lora_B" in n]
    before = [p.detach().clone() for p in factors]
    with monkeypatch.context() as patch, torch.no_grad():
        patch.setattr(
            running.engine._thread,
            "submit",
            lambda prompt, params, lora_request=None: submit(prompt, params),
        )
        if not trained:
            for p in factors:
                p.zero_()
        weights = ModuleWeights(running.model, running.version)
        with pytest.raises(CanaryError):
            running.do(running.engine._begin(weights))
        for p, value in zip(factors, before, strict=True):
            assert trained is False or torch.equal(p, value)
            p.copy_(value)
    running.recover()


def test_raw_log_probs_are_found_when_the_engine_starts(
    started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """huggingface/trl#4163: `logprobs_mode` left at vLLM's default."""
    while started:
        started.popitem()[1].close()
    make = engine_base.engine_args

    def raw(*args: Any, **named: Any) -> dict[str, Any]:
        return {**make(*args, **named), "logprobs_mode": "raw_logprobs"}

    monkeypatch.setattr(engine_base, "engine_args", raw)
    with pytest.raises(CanaryError):
        Moving("qwen3", "float32")
