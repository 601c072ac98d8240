"""The numbers of adapters: gradients, AdamW, samples, and that nobody changes those of another."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from quintain_gateway.errors import ApiError
from quintain_gateway.tinker import together
from quintain_gateway.tinker.adapters import Adapter, AdapterSpec, peft_config, write_tensors
from quintain_gateway.tinker.compute import Compute, sample_request_of
from quintain_gateway.tinker.requests import Datum, ForwardBackward, TensorData
from quintain_gateway.tinker.together import rows_in_step

from ....core.models.tiny import save_tiny
from .kit import IDS, prompt

STEP = {
    "learning_rate": 0.01, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1,
    "grad_clip_norm": 1.0,
}  # fmt: skip


@pytest.fixture(scope="module")
def compute(tmp_path_factory: pytest.TempPathFactory) -> Any:
    compute = Compute(str(save_tiny(tmp_path_factory.mktemp("base"))), slots=8)
    yield compute
    compute.close()


def spec(**settings: Any) -> AdapterSpec:
    return AdapterSpec(**{"rank": 4, "seed": 3, **settings})


def row(*values: float) -> TensorData:
    return TensorData(values=values, shape=(len(values),))


def batch(loss: str = "cross_entropy", *, only: bool = False, **inputs: Any) -> ForwardBackward:
    inputs = inputs or {"weights": row(*[1.0] * (len(IDS) - 1))}
    datum = Datum(ids=IDS[:-1], inputs={"target_tokens": row(*IDS[1:]), **inputs})
    return ForwardBackward(model_id="m", seq_id=1, data=[datum], loss=loss, forward_only=only)


def logps(compute: Compute, adapter: Adapter) -> list[float]:
    result = compute.forward_backward(adapter, batch(only=True))
    values: list[float] = result["loss_fn_outputs"][0]["logprobs"]["data"]
    return values


def trained(compute: Compute, steps: int = 3, **settings: Any) -> Adapter:
    adapter = compute.bank.create(spec(**settings))
    for _ in range(steps):
        compute.forward_backward(adapter, batch())
        adapter.step(STEP)
    return adapter


def everything(adapter: Adapter) -> dict[str, list[float]]:
    tensors = adapter.tensors(optimizer=True)
    return {name: tensor.flatten().tolist() for name, tensor in tensors.items()}


def test_a_new_adapter_changes_nothing_and_training_fits_the_text(compute: Compute) -> None:
    base = logps(compute, compute.bank.create(spec(rank=2)))
    adapter = compute.bank.create(spec())
    assert logps(compute, adapter) == base
    after = logps(compute, trained(compute))
    assert sum(after) > sum(base) + 1


@pytest.mark.parametrize("part", ["attention", "feedforward", "unembedding"])
def test_an_adapter_changes_the_parts_it_is_for_alone(compute: Compute, part: str) -> None:
    chosen = {name: name == part for name in ("attention", "feedforward", "unembedding")}
    adapter = trained(compute, **chosen)
    words = {"attention": "self_attn", "feedforward": "mlp", "unembedding": "lm_head"}
    assert {words[part] in name for name in adapter.factors} == {True}


def test_an_update_makes_no_merged_copy_of_the_output_layer(
    compute: Compute, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the size of the layer, and so has its gradient."""
    adapter = trained(compute)
    monkeypatch.delattr(type(compute.bank), "head_weight")
    compute.forward_backward(adapter, batch())
    (gradients,) = ([p.grad for p in pair] for n, pair in adapter.factors.items() if "lm_head" in n)
    assert all(float(gradient.abs().max()) > 0 for gradient in gradients)


def test_the_gradient_is_that_of_the_plain_model_in_float64(
    compute: Compute, tmp_path: Path
) -> None:
    adapter = trained(compute)
    weights = [0.5, -1.0, 0.0, *[1.0] * (len(IDS) - 4)]
    compute.forward_backward(adapter, batch(weights=row(*weights)))
    wide = Compute(compute.path, slots=1, dtype="float64")
    other = wide.bank.create(spec())
    tensors = adapter.tensors(optimizer=False)
    other.load({name: tensor.double() for name, tensor in tensors.items()}, optimizer=False)
    wide.bank.use(other)
    module: Any = wide._forward.module
    logits = module(torch.tensor([IDS[:-1]])).logits[0].log_softmax(-1)
    own = logits.gather(1, torch.tensor(IDS[1:])[:, None])[:, 0]
    (-own * torch.tensor(weights, dtype=torch.float64)).sum().backward()
    for name, pair in adapter.factors.items():
        for ours, exact in zip(pair, other.factors[name], strict=True):
            assert ours.grad is not None
            assert exact.grad is not None
            scale = float(exact.grad.abs().max())
            assert float((ours.grad - exact.grad).abs().max()) <= 1e-5 * scale, name
    wide.close()


def test_a_step_is_that_of_adamw_in_float64(compute: Compute) -> None:
    adapter = compute.bank.create(spec())
    exact = [p.detach().double() for p in adapter.parameters()]
    first = [torch.zeros_like(p) for p in exact]
    second = [torch.zeros_like(p) for p in exact]
    for step in (1, 2, 3):
        compute.forward_backward(adapter, batch())
        grads = [p.grad.double() for p in adapter.parameters() if p.grad is not None]
        norm = math.sqrt(sum(float(g.square().sum()) for g in grads))
        assert adapter.step(STEP) == pytest.approx(norm, rel=1e-6)
        for p, g, m, v in zip(exact, grads, first, second, strict=True):
            g = g * min(1.0, 1.0 / norm)
            p.mul_(1 - 0.01 * 0.1)
            m.mul_(0.9).add_(g, alpha=0.1)
            v.mul_(0.95).addcmul_(g, g, value=0.05)
            ahead = m / (1 - 0.9**step)
            p.sub_(0.01 * ahead / ((v / (1 - 0.95**step)).sqrt() + 1e-8))
        for ours, own in zip(adapter.parameters(), exact, strict=True):
            assert torch.allclose(ours.double(), own, rtol=0, atol=2e-6)


def test_gradients_add_up_until_a_step(compute: Compute) -> None:
    once, twice = compute.bank.create(spec()), compute.bank.create(spec())
    double = batch()
    compute.forward_backward(once, ForwardBackward(**{**vars(double), "data": [*double.data] * 2}))
    compute.forward_backward(twice, batch())
    compute.forward_backward(twice, batch())
    for one, two in zip(once.parameters(), twice.parameters(), strict=True):
        assert one.grad is not None
        assert two.grad is not None
        assert torch.allclose(one.grad, two.grad, rtol=1e-4, atol=1e-5)


def test_a_batch_that_fails_leaves_the_gradient_as_it_was(compute: Compute) -> None:
    adapter = compute.bank.create(spec())
    compute.forward_backward(adapter, batch())
    before = [p.grad.clone() for p in adapter.parameters() if p.grad is not None]
    far = {"logprobs": row(*[-1e5] * 19), "advantages": row(*[1.0] * 19)}
    with pytest.raises(ApiError, match="not finite"):
        compute.forward_backward(adapter, batch("importance_sampling", **far))
    after = [p.grad for p in adapter.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True) if a is not None)


def test_many_adapters_in_turns_are_each_the_adapter_alone(compute: Compute) -> None:
    """Bit for bit: weights, moments, log-probs and samples."""
    ranks = [1, 4, 8, 3]
    asked = sample_request_of(prompt(num_samples=3), "request", compute.vocabulary)
    alone = []
    for rank in ranks:
        adapter = trained(compute, rank=rank, seed=rank)
        alone.append((everything(adapter), compute.sample(adapter, asked)))
    in_turns = [compute.bank.create(spec(rank=rank, seed=rank)) for rank in ranks]
    for _ in range(3):
        for adapter in in_turns:
            compute.forward_backward(adapter, batch())
        for adapter in reversed(in_turns):
            compute.sample(adapter, asked)
            adapter.step(STEP)
    found = [(everything(adapter), compute.sample(adapter, asked)) for adapter in in_turns]
    assert found == alone


def test_samples_have_the_log_probs_of_the_forward_pass(compute: Compute) -> None:
    adapter = trained(compute)
    asked = prompt(
        num_samples=2, prompt_logprobs=True, topk_prompt_logprobs=2, topk_sample_logprobs=3
    )
    result = compute.sample(adapter, sample_request_of(asked, "r", compute.vocabulary))
    assert result["prompt_logprobs"][0] is None
    assert result["prompt_logprobs"][1:] == pytest.approx(logps(compute, adapter), abs=1e-5)
    for sequence in result["sequences"]:
        ids = [*IDS, *sequence["tokens"]]
        datum = Datum(ids=ids[:-1], inputs={"target_tokens": row(*ids[1:])})
        request = ForwardBackward(
            model_id="m", seq_id=1, data=[datum], loss="cross_entropy", forward_only=True
        )
        scored = compute.forward_backward(adapter, request)["loss_fn_outputs"][0]["logprobs"][
            "data"
        ]
        count = len(sequence["tokens"])
        assert sequence["logprobs"] == pytest.approx(scored[-count:], abs=1e-5)
        assert [len(top) for top in sequence["topk_logprobs"]] == [3] * count
        assert all(top[0][1] >= top[1][1] for top in sequence["topk_logprobs"])


def test_soft_targets_have_a_log_prob_for_each_id(compute: Compute) -> None:
    adapter = trained(compute)
    wide = TensorData(values=[i for one in IDS[1:] for i in (one, 7)], shape=(19, 2))
    weights = TensorData(values=[0.75, 0.25] * 19, shape=(19, 2))
    datum = Datum(ids=IDS[:-1], inputs={"target_tokens": wide, "weights": weights})
    request = ForwardBackward(model_id="m", seq_id=1, data=[datum], loss="cross_entropy")
    result = compute.forward_backward(adapter, request)
    output = result["loss_fn_outputs"][0]["logprobs"]
    assert output["shape"] == [19, 2]
    assert output["data"][::2] == pytest.approx(logps(compute, adapter), abs=1e-5)
    own = -sum(
        0.75 * a + 0.25 * b for a, b in zip(output["data"][::2], output["data"][1::2], strict=True)
    )
    assert result["metrics"]["loss:sum"] == pytest.approx(own, rel=1e-6)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_peft_loads_an_export_and_computes_the_same(compute: Compute, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    import json

    from transformers import AutoModelForCausalLM

    adapter = trained(compute, unembedding=False)
    write_tensors(tmp_path / "adapter_model.safetensors", adapter.tensors(optimizer=False))
    config = json.dumps(peft_config(adapter, compute.path))
    (tmp_path / "adapter_config.json").write_text(config)
    loaded = peft.PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(compute.path), str(tmp_path)
    )
    with torch.no_grad():
        logits = loaded(torch.tensor([IDS[:-1]])).logits[0].log_softmax(-1)
    own = logits.gather(1, torch.tensor(IDS[1:])[:, None])[:, 0]
    assert logps(compute, adapter) == pytest.approx(own.tolist(), abs=1e-5)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"params": {"stop": []}}, "stop"),
        ({"num_samples": 0}, "num_samples"),
        ({"topk_prompt_logprobs": 1000}, "top-k"),
        ({"prompt_alt_tokens_k": 2}, "not served"),
        ({"record_stability_info": True}, "stable_reinforce"),
        ({"params": {"temperature": -1.0}}, "temperature"),
    ],
)
def test_a_sample_that_is_not_served_is_refused(
    compute: Compute, change: dict[str, Any], says: str
) -> None:
    with pytest.raises(ApiError, match=says):
        sample_request_of(prompt(**change), "r", compute.vocabulary)


def require_together(compute: Compute) -> None:
    if compute._together is None:
        pytest.skip("rows of a product have other bits beside others on this machine")


def test_samples_decoded_together_are_each_the_sample_alone(compute: Compute) -> None:
    """Bit for bit, whoever begins and ends beside it: prompts, numbers of samples, ranks and
    temperatures of every kind.
    """
    require_together(compute)
    adapters = [None, *(trained(compute, rank=rank, seed=rank) for rank in (1, 4, 8))]
    asked = {}
    for number, count in enumerate((1, 2, 1, 3, 20, 1, 5, 1)):
        params = {"max_tokens": (1, 17, 40)[number % 3], "temperature": (0.0, 1.0)[number % 2]}
        body = prompt(IDS[: 3 + 2 * number], num_samples=count, params=params)
        asked[f"r{number}"] = (
            adapters[number % 4], sample_request_of(body, f"r{number}", compute.vocabulary)
        )  # fmt: skip
    alone = {name: compute.sample(*one) for name, one in asked.items()}
    found, most = {}, 0
    waiting = [*asked]
    while waiting or compute._begun:
        while waiting and compute.fits(asked[waiting[0]][1]):
            compute.begin(waiting[0], *asked[waiting.pop(0)])
        most = max(most, len(compute._begun))
        found.update(compute.advance())
    assert most >= 4
    assert found == alone


def test_a_sample_that_fails_leaves_those_beside_it_as_they_are(compute: Compute) -> None:
    require_together(compute)
    broken, whole = trained(compute, steps=1), trained(compute, steps=1)
    asked = sample_request_of(prompt(num_samples=2), "r", compute.vocabulary)
    alone = compute.sample(whole, asked)
    with torch.no_grad():
        for parameter in broken.parameters():
            parameter.fill_(math.nan)
    compute.begin("broken", broken, asked)
    compute.begin("whole", whole, asked)
    found: dict[str, Any] = {}
    while compute._begun:
        found.update(compute.advance())
    assert "NaN" in str(found["broken"])
    assert found["whole"] == alone


def test_the_memory_of_samples_is_bounded(
    compute: Compute, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_together(compute)
    decoder: Any = compute._together
    monkeypatch.setattr(decoder, "_step", 4)
    asked = sample_request_of(
        prompt(num_samples=7, params={"max_tokens": 10}), "r", compute.vocabulary
    )
    limit = decoder._bytes * 180  # 6 rows of 30 tokens, of which a product has 4
    monkeypatch.setattr(together, "CACHE_BYTES", limit)
    compute.begin("first", None, asked)
    assert len(decoder._tenants[0].rows) == 4
    assert not compute.fits(asked)
    found: dict[str, Any] = {}
    while compute._begun:
        found.update(compute.advance())
        assert decoder._forward.store.rows <= 4
    assert len(found["first"]["sequences"]) == 7


def test_where_a_row_depends_on_others_samples_take_turns(
    compute: Compute, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_together(compute)
    original = torch.nn.functional.linear

    def of_all_rows(x: Any, weight: Any, bias: Any = None) -> Any:
        return original(x, weight, bias) + 1e-6 * x.sum()

    monkeypatch.setattr(torch.nn.functional, "linear", of_all_rows)
    assert rows_in_step(compute._forward.module, compute.bank, 8) == 0
