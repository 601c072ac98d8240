"""The layers as functions agree with the transformers module, and joined storage is invisible from
outside.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from quintain.models import packed
from quintain.models.layers import Decoder, attend, fuse_storage

from .tiny import save_tiny, tiny_model

LLAMA_LIKE = ("llama", "qwen2", "qwen3")
SCALED_ROPE: dict[str, Any] = {
    "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip


def forward(decoder: Decoder, ids: Tensor) -> Tensor:
    hidden = decoder.embed(ids)
    cos, sin = decoder.rotary(torch.arange(ids.shape[1]).expand_as(ids))
    for layer in decoder.layers:
        query, key, value = decoder.qkv(layer, hidden, cos, sin)
        hidden = decoder.after_attention(
            layer, hidden, attend(query, key, value, None, decoder.scaling)
        )
    return decoder.head(decoder.final_norm(hidden))


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("kind", LLAMA_LIKE)
def test_values_and_gradients_agree_with_the_module(kind: str, fused: bool) -> None:
    model = tiny_model(kind)
    assert not fused or fuse_storage(model)
    decoder = Decoder.of(model)
    assert decoder is not None
    assert (decoder.layers[0].qkv.weight is not None) == fused
    ids = torch.randint(0, 256, (2, 24), generator=torch.Generator().manual_seed(0))
    expected = model(ids).logits
    got = forward(decoder, ids)
    with torch.no_grad():
        assert torch.allclose(forward(decoder, ids), expected, atol=1e-5)
    assert torch.allclose(got, expected, atol=1e-5)
    wanted = torch.autograd.grad(expected.square().mean(), list(model.parameters()))
    for ours, theirs in zip(
        torch.autograd.grad(got.square().mean(), list(model.parameters())), wanted, strict=True
    ):
        assert torch.allclose(ours, theirs, atol=1e-6)


def test_scaled_rotary_embedding_agrees() -> None:
    model = tiny_model("llama", rope_parameters=SCALED_ROPE)
    decoder = Decoder.of(model)
    assert decoder is not None
    ids = torch.arange(60)[None]
    with torch.no_grad():
        assert torch.allclose(forward(decoder, ids), model(ids).logits, atol=1e-5)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_adapters_are_seen() -> None:
    from peft import LoraConfig, get_peft_model

    base = tiny_model("qwen3")
    plain = copy.deepcopy(base)
    adapted = get_peft_model(
        base,
        LoraConfig(r=4, target_modules=["q_proj", "up_proj", "down_proj"], init_lora_weights=False),
    )
    assert not fuse_storage(adapted)
    decoder = Decoder.of(adapted)
    assert decoder is not None
    ids = torch.arange(20)[None]
    with torch.no_grad():
        assert torch.allclose(forward(decoder, ids), adapted(ids).logits, atol=1e-5)
        assert (adapted(ids).logits - plain(ids).logits).abs().max() > 1e-2


@pytest.mark.parametrize("kind, config", [("gpt2", {}), ("mistral", {"sliding_window": 8})])
def test_other_shapes_are_left_to_the_module(kind: str, config: dict[str, Any]) -> None:
    model = tiny_model(kind, **config)
    assert Decoder.of(model) is None
    assert not fuse_storage(model)


def test_an_optimizer_step_is_visible_in_the_joined_weight() -> None:
    model = tiny_model("qwen2")
    fuse_storage(model)
    decoder = Decoder.of(model)
    assert decoder is not None
    assert decoder.layers[0].qkv.weight is not None
    joined = decoder.layers[0].qkv
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model(torch.arange(10)[None]).logits.square().mean().backward()
    optimizer.step()
    attention = model.model.layers[0].self_attn
    assert torch.equal(
        joined.weight,
        torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]),
    )
    assert joined.bias is not None
    assert torch.equal(
        joined.bias,
        torch.cat([attention.q_proj.bias, attention.k_proj.bias, attention.v_proj.bias]),
    )


def test_joined_storage_survives_saving_and_loading(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = tiny_model("qwen2")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    fuse_storage(model)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert {n: p.shape for n, p in model.named_parameters()} == {
        n: p.shape for n, p in loaded.named_parameters()
    }
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, before[name])
    other = tiny_model("qwen2", seed=1)
    model.load_state_dict(other.state_dict())
    decoder = Decoder.of(model)
    assert decoder is not None
    assert decoder.layers[0].qkv.weight is not None
    assert torch.equal(
        decoder.layers[0].qkv.weight[:32], other.model.layers[0].self_attn.q_proj.weight
    )


def test_moving_the_module_undoes_joining(tmp_path: Path) -> None:
    model = tiny_model("qwen3")
    fuse_storage(model)
    decoder = Decoder.of(model.double())
    assert decoder is not None
    ids = torch.arange(12)[None]
    with torch.no_grad():
        assert torch.allclose(forward(decoder, ids), model(ids).logits, atol=1e-5)


def test_save_tiny_gives_a_folder(tmp_path: Path) -> None:
    assert {p.name for p in save_tiny(tmp_path, "llama").iterdir()} >= {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    }


@pytest.fixture
def _pack_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "PACKED_BYTES", range(2**31))


def packed_decoder(model: Any) -> Decoder:
    fuse_storage(model)
    decoder = Decoder.of(model)
    assert decoder is not None
    decoder.pack()
    assert isinstance(decoder.head.without_gradient(), packed.PackedLinear)
    return decoder


@pytest.mark.usefixtures("_pack_all")
@pytest.mark.parametrize("kind", LLAMA_LIKE)
def test_packed_weights_give_the_same_and_leave_gradients_alone(kind: str) -> None:
    model = tiny_model(kind)
    decoder = packed_decoder(model)
    ids = torch.randint(0, 256, (2, 24), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.allclose(forward(decoder, ids), model(ids).logits, atol=1e-5)
    with torch.inference_mode():
        assert torch.allclose(forward(decoder, ids), model(ids).logits, atol=1e-5)
    wanted = torch.autograd.grad(model(ids).logits.square().mean(), list(model.parameters()))
    ours = torch.autograd.grad(forward(decoder, ids).square().mean(), list(model.parameters()))
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(ours, wanted, strict=True))


@pytest.mark.usefixtures("_pack_all")
def test_packed_weights_follow_every_way_to_change_them() -> None:
    model, ids = tiny_model("qwen2"), torch.arange(24)[None]
    decoder = packed_decoder(model)
    seen: list[Tensor] = []

    def follows() -> None:
        with torch.inference_mode():
            logits = model(ids).logits
            assert torch.allclose(forward(decoder, ids), logits, atol=1e-4)
            assert not any(torch.allclose(logits, before, atol=1e-3) for before in seen)
            seen.append(logits)

    follows()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model(ids).logits.square().mean().backward()
    optimizer.step()
    follows()
    model.load_state_dict(tiny_model("qwen2", seed=1).state_dict())
    follows()
    with torch.inference_mode():  # as an engine's copy is refreshed
        for parameter, other in zip(
            model.parameters(), tiny_model("qwen2", seed=2).parameters(), strict=True
        ):
            parameter.copy_(other)
    follows()
    for parameter in model.parameters():
        parameter.data = parameter.data * 1.5
    follows()


@pytest.mark.usefixtures("_pack_all")
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_packing_leaves_out_what_has_an_adapter() -> None:
    from peft import LoraConfig, get_peft_model

    lora = LoraConfig(r=4, target_modules=["q_proj", "o_proj"], init_lora_weights=False)
    adapted = get_peft_model(tiny_model("qwen3"), lora)
    decoder, ids = packed_decoder(adapted), torch.arange(20)[None]
    with torch.no_grad():
        assert torch.allclose(forward(decoder, ids), adapted(ids).logits, atol=1e-5)


@pytest.mark.parametrize(
    ("device", "dtype", "size", "packs"),
    [
        ("cpu", torch.float32, 2**24, True),
        ("cpu", torch.float32, 2**20, False),
        ("cpu", torch.float32, 2**34, False),
        ("cpu", torch.float64, 2**24, False),
        ("cuda", torch.float32, 2**24, False),
    ],
)
def test_what_is_packed(device: str, dtype: torch.dtype, size: int, packs: bool) -> None:
    assert packed.packs(device, dtype, size) is packs
