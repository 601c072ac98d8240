"""A base of adapters in 8 and 4 bits: its products, gradients, engine, runs and the commands that
load them.
"""

from __future__ import annotations

import copy
import json
import shutil
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

pytest.importorskip("peft", reason="adapters need quintain[lora]")

from quintain.cli import main
from quintain.errors import UsageError
from quintain.learning import ALGORITHMS, Learner, ModuleWeights
from quintain.models import load_model
from quintain.models.lora import adapter_tensors, digest_of, with_adapters
from quintain.types.sampling import Sampling
from quintain_learners.lean import Lean, LeanLearner
from quintain_learners.lean.quantised import BYTES, FORMATS, QuantisedWeight, quantise, round_to

from ....core.engine.test_embedded_engine import engine_of, plain_logps, run
from ....core.learning.batches import batch
from ....core.models.tiny import tiny_model
from ....small_run import small_recipe

NF4 = pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="nf4 needs bitsandbytes")
FORMATS_NAMED: Any = pytest.mark.parametrize("form", ["int8", pytest.param("nf4", marks=NF4)])
ERRORS = {"int8": (0.002, 0.01), "nf4": (0.05, 0.12)}
"""Norm of what rounding changes, as a share of that of a normal weight: at least and at most."""


def adapted(kind: str = "qwen3", dtype: torch.dtype = torch.float32) -> Any:
    """Return a tiny model with adapters, both maps of which are random."""
    torch.manual_seed(1)
    module = with_adapters(tiny_model(kind, hidden=64, dtype=dtype), {"r": 2})
    for name, parameter in module.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.1)
    return module


def learner_of(module: Any, form: Any, **settings: Any) -> LeanLearner:
    """Return the learner of *module* in float32 on a base in *form*."""
    kind = Lean(weights="float32", optimizer="adamw", base=form)
    return kind(module, ALGORITHMS["dr_grpo"], lr=1e-3, **settings)


def kept(module: nn.Module) -> list[QuantisedWeight]:
    """Return the weights in few bits."""
    return [p.data for p in module.parameters() if isinstance(p.data, QuantisedWeight)]


@FORMATS_NAMED
def test_a_weight_is_that_of_its_dequantised_numbers(form: Any) -> None:
    """In products, sums, casts, copies and files of tensors; it takes the bytes that the page says."""
    torch.manual_seed(0)
    weight, x = torch.randn(192, 256), torch.randn(3, 5, 256)
    linear = nn.Linear(256, 192)
    stored = FORMATS[form](weight)
    linear.weight = nn.Parameter(QuantisedWeight(stored, weight), requires_grad=False)
    values = stored.values(torch.float32)
    least, most = ERRORS[form]
    assert least < float((values - weight).norm() / weight.norm()) < most
    torch.testing.assert_close(linear(x), x @ values.t() + linear.bias, rtol=1e-5, atol=1e-4)
    for other in (linear.weight, copy.deepcopy(linear).weight, linear.state_dict()["weight"]):
        assert isinstance(other, QuantisedWeight)
        assert type(other + 0) is Tensor
        assert torch.equal(other + 0, values)
        assert torch.equal(other.to("cpu", torch.float64) + 0, values.double())
    assert linear.weight.shape == weight.shape
    assert linear.weight.numel() == weight.numel()
    taken = linear.weight.nbytes
    assert taken == sum(t.numel() * t.element_size() for t in stored.tensors())
    assert taken == pytest.approx(BYTES[form] * weight.numel(), rel=0.05)


@FORMATS_NAMED
@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_gradients_of_adapters_are_those_over_the_dequantised_base(form: Any, kind: str) -> None:
    """In float32 within 1e-4 of a learner in float64; the base itself does not move."""
    module = adapted(kind)
    exact = copy.deepcopy(module)
    round_to(exact, form, torch.float32)
    rounded = learner_of(module, form)
    before = [weight + 0 for weight in kept(rounded.module)]
    assert len(before) == 2 * 7
    reference = Learner(exact.double(), ALGORITHMS["dr_grpo"], lr=1e-3)
    assert rounded.step(batch())["grad_norm"] == pytest.approx(
        reference.step(batch())["grad_norm"], rel=1e-4
    )
    for actual, expected in zip(rounded.parameters, reference.parameters, strict=True):
        assert actual.grad is not None
        assert expected.grad is not None
        size = float(expected.grad.norm())
        assert float((actual.grad.double() - expected.grad).norm()) < 1e-4 * size
    assert all(torch.equal(w + 0, b) for w, b in zip(kept(rounded.module), before, strict=True))


@FORMATS_NAMED
def test_the_backward_pass_keeps_no_copy_of_the_weight(form: Any) -> None:
    """Autograd saves nothing of its size."""
    torch.manual_seed(0)
    weight = torch.randn(256, 256)
    linear = nn.Linear(256, 256, bias=False)
    linear.weight = nn.Parameter(QuantisedWeight(FORMATS[form](weight), weight), False)
    saved: list[int] = []
    x = torch.randn(4, 256, requires_grad=True)

    def note(tensor: Tensor) -> Tensor:
        saved.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        linear(x).square().sum().backward()
    assert saved
    assert max(saved) < weight.numel()


@FORMATS_NAMED
@pytest.mark.parametrize("merge", [False, True])
def test_the_engine_samples_from_the_base_that_trains(form: Any, merge: bool) -> None:
    """It reads the learner's tensors, or a merged copy of the rounded base; log-probs are those of
    the learner, after an update too.
    """
    trained = learner_of(adapted(), form)
    engine = engine_of(trained.module, merge=merge)
    assert engine.shares is not merge
    for _ in range(2):
        run(engine.update(trained.weights()))
        assert run(engine.outdated(trained.weights())) == ""
        out = run(engine.sample([1, 2], Sampling(seed=0, max_tokens=10)))
        plain = plain_logps(trained.module, [1, 2], out.ids, 1.0)
        assert list(out.logps) == pytest.approx(plain, abs=1e-4)
        trained.step(batch())


def test_a_base_in_few_bits_is_refused_without_adapters_and_without_its_library(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each message has the way out; the library is asked for before anything is loaded."""
    with pytest.raises(UsageError, match=r"needs linear maps with adapters: set model.lora"):
        learner_of(tiny_model(), "int8")
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    command = ["train", "--dry-run", "--set", "learner.use=lean", "--set", "model.lora={}"]
    assert main([*command, "--set", "learner.args.base=nf4"]) == 2
    line = "needs bitsandbytes: pip install 'quintain-learners[nf4]'"
    assert line in capsys.readouterr().err


LORA = {"r": 2, "lora_alpha": 4}
SETTINGS = [
    "learner.use=lean",
    "learner.args.optimizer=adamw",
    "model.lora={ r = 2, lora_alpha = 4 }",
]
HALF = ["learner.precision=bf16", "model.dtype=bfloat16", "engine.args.merge=false"]


def trained_run(folder: Path, *changes: str) -> Path:
    """Train four steps in *folder*; return the model of the last checkpoint."""
    settings = [*SETTINGS, *changes, "learner.lr=1e-2"]
    words = [w for s in settings for w in ("--set", s)]
    assert main(["train", "recipe.toml", "-q", "--name", "one", *words]) == 0
    return folder / "runs/one/checkpoints/step-000004/model"


@pytest.mark.more
@pytest.mark.parametrize(
    "changes",
    [
        [],
        ["learner.args.base=int8"],
        pytest.param(["learner.args.base=nf4"], marks=NF4),
    ],
)
def test_what_is_loaded_is_the_policy_that_was_trained(
    small_run: Callable[..., Path], changes: list[str]
) -> None:
    """From a model saved in float32, on a base in bfloat16 and in few bits: the weights that
    commands load are those of the learner, merged, and not the adapters on the saved base.
    """
    folder = small_run(small_recipe('use = "arithmetic"', steps=4))
    saved = trained_run(folder, *HALF, *changes)
    module: Any = load_model("model", device="cpu", dtype="bfloat16", lora=LORA).module
    if changes:
        form: Any = changes[0].partition("=")[2]
        quantise(module, form)
    for name, tensor in load_file(saved / "adapter_model.safetensors").items():
        adapter_tensors(module)[name].data.copy_(tensor)
    wide = ModuleWeights(module, 0).tensors()
    loaded = load_model(saved, device="cpu").module.state_dict()
    plain = load_model("model", device="cpu").module.state_dict()
    for name, tensor in wide.items():
        torch.testing.assert_close(loaded[name], tensor.float(), rtol=2**-7, atol=1e-3)
    moved = {n: float((loaded[n] - plain[n]).norm() / plain[n].norm()) for n in plain}
    assert max(moved.values()) > 0.001
    record = json.loads((saved / "base_model.json").read_text())
    assert record["dtype"] == "bfloat16"
    assert ("learner" in record) is bool(changes)


@pytest.mark.slow
@FORMATS_NAMED
def test_a_loaded_run_gives_the_log_probs_of_its_learner(
    form: Any, small_run: Callable[..., Path], tmp_path: Path
) -> None:
    """In float32, within rounding; the same adapters on the saved base give others. `quintain
    export` writes the same model.
    """
    folder = small_run(small_recipe('use = "arithmetic"', steps=4))
    saved = trained_run(folder, "learner.args.weights=float32", f"learner.args.base={form}")
    assert main(["export", str(saved), "out"]) == 0
    ids = torch.arange(1, 60)[None]

    def logits(path: Path | str) -> Tensor:
        with torch.no_grad():
            found: Tensor = load_model(path, device="cpu", dtype="float32").module(ids).logits
        return found

    rounded = logits(saved)
    assert torch.equal(logits("out"), rounded)
    module: Any = load_model("model", device="cpu", lora=LORA).module
    round_to(module, form, torch.float32)
    for name, tensor in load_file(saved / "adapter_model.safetensors").items():
        adapter_tensors(module)[name].data.copy_(tensor)
    with torch.no_grad():
        torch.testing.assert_close(rounded, module(ids).logits, rtol=1e-4, atol=1e-3)
    other = tmp_path / "other"
    shutil.copytree(saved, other)
    record = json.loads((other / "base_model.json").read_text())
    del record["learner"]
    (other / "base_model.json").write_text(json.dumps(record))
    assert float((logits(other) - rounded).abs().max()) > 0.01


def test_the_digest_of_the_base_is_that_of_the_model_on_the_disk() -> None:
    """A resume compares it, and another program may round differently."""
    module = adapted()
    before = digest_of(module)
    trained = learner_of(module, "int8")
    assert digest_of(trained.module) == before
