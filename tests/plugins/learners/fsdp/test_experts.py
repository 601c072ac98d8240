"""Ranks that split the experts of a layer: the update of one process, with less memory."""

from __future__ import annotations

import copy
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from quintain.errors import UsageError
from quintain.learning import ALGORITHMS, Learner
from quintain.models import with_adapters
from quintain.models.load import module_without_weights
from quintain.store.run_folder import RunFolder
from quintain_learners.fsdp import FsdpLearner
from quintain_learners.fsdp.experts import count_of, experts_of
from quintain_learners.fsdp.memory import gathered_bytes
from quintain_learners.fsdp.setup import Modes
from quintain_learners.fsdp.team import Team

from ....core.learning import batches
from ....core.models.architectures import architecture
from .test_checkpoint import RECIPE, check_resumes
from .test_exact import gradients_of
from .test_memory import kilobytes
from .test_mixtures import recorded

SPLIT = Modes(experts="split")
SETTINGS: dict[str, Any] = {"token_budget": 40, "lr": 1e-2, "skip_idle": False}


def model(name: str, dtype: torch.dtype = torch.float32) -> Any:
    module = architecture(name, dtype=dtype)
    if dtype == torch.float64:
        module.set_experts_implementation("eager")  # products by groups have no float64
        module.double()  # a router that is kept in float32
    return module


def split(module: Any, team: Team, ranks: int, **settings: Any) -> FsdpLearner:
    settings = {"modes": SPLIT, **SETTINGS, **settings}
    copied = copy.deepcopy(module)
    return FsdpLearner(copied, ALGORITHMS["grpo"], team=team, ranks=ranks, **settings)


@pytest.mark.keeps("qwen3-moe-2-dtype0")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", ["qwen3-moe", "deepseek-v3"])
def test_gradients_are_those_of_one_process(
    name: str, ranks: int, dtype: torch.dtype, team: Team
) -> None:
    """To 1e-6 of the largest in float32, in float64 to 1e-12, with the experts that the engine has
    recorded. The router of DeepSeek computes in float32 always.
    """
    module = model(name, dtype)
    batch = recorded(module)
    one = Learner(copy.deepcopy(module), ALGORITHMS["grpo"], **SETTINGS)
    many = split(module, team, ranks)
    expected, actual = one.step(batch), many.step(batch)
    assert actual["experts.replayed"] == 1
    assert expected["experts.agree"] < 1
    gradients = gradients_of(one)
    largest = max(float(g.abs().max()) for g in gradients)
    in_float64 = 1e-12 if name == "qwen3-moe" else 1e-8
    close = 1e-6 if dtype == torch.float32 else in_float64
    for got, want in zip(gradients_of(many), gradients, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=close * largest)


@pytest.mark.more
@pytest.mark.parametrize(
    "settings",
    [
        {"activation_checkpointing": True},
        {"modes": Modes(experts="split", optimizer="adamw_8bit")},
        {"modes": Modes(experts="split", offload="all", optimizer="adamw_host")},
    ],
    ids=["checkpointed", "8bit", "offloaded"],
)
def test_other_settings_make_the_update_of_one_process(
    settings: dict[str, Any], team: Team
) -> None:
    module = model("qwen3-moe")
    batch = recorded(module)
    one = Learner(copy.deepcopy(module), ALGORITHMS["grpo"], **SETTINGS)
    many = split(module, team, 2, **settings)
    one.step(batch)
    many.step(batch)
    gradients = gradients_of(one)
    largest = max(float(g.abs().max()) for g in gradients)
    for got, want in zip(gradients_of(many), gradients, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-6 * largest)


@pytest.mark.more
def test_a_rank_that_is_lost_starts_again_with_its_experts(team: Team) -> None:
    """Weights and moments from its copy, to the same bits."""
    module, batch = model("qwen3-moe"), batches.batch(vocab=64)
    straight = split(module, team, 2)
    for _ in range(2):
        straight.step(batch)
    expected = {name: p.detach().clone() for name, p in straight.module.named_parameters()}
    own = Team(2, silence=300.0)
    learner = split(module, own, 2, copy_every=1)
    try:
        learner.step(batch)
        os.kill(own.pids[1], signal.SIGKILL)
        learner.step(batch)
    finally:
        learner.close()
    assert all(torch.equal(p, expected[n]) for n, p in learner.module.named_parameters())


@pytest.mark.more
def test_ranks_that_alone_have_the_weights_split_experts(team: Team, tmp_path: Path) -> None:
    """Bit for bit the update of ranks whose run has them, of a mixture whose files have the names of
    its tensors.
    """
    module, batch = model("gpt-oss"), batches.batch(vocab=64)
    module.save_pretrained(tmp_path)
    usual = split(module, team, 2)
    usual.step(batch)
    expected = {name: t.clone() for name, t in usual.module.named_parameters()}
    hollow = module_without_weights(str(tmp_path), torch.float32, None).eval()
    held = split(hollow, team, 2, checkpoint="sharded")
    held.step(batch)
    for name, tensor in held.weights().tensors().items():
        torch.testing.assert_close(tensor, expected[name], rtol=0, atol=0)


@pytest.mark.more
def test_in_half_precision_the_update_is_that_of_ranks_that_gather(team: Team) -> None:
    """To the rounding of bfloat16, in which both compute the experts."""
    module, batch = model("qwen3-moe"), batches.batch(vocab=64)
    both = []
    for experts in ("gathered", "split"):
        learner = split(module, team, 2, modes=Modes(experts=experts), precision="bf16")
        learner.step(batch)
        both.append(gradients_of(learner))
    largest = max(float(g.abs().max()) for g in both[0])
    for got, want in zip(*both, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-2 * largest)


@pytest.mark.more
@pytest.mark.parametrize("kind", ["whole", "sharded"])
@pytest.mark.parametrize(
    "after", [{"ranks": 4, "modes": SPLIT}, {"ranks": 3}], ids=["4 split", "3 gathered"]
)
def test_another_number_of_ranks_resumes(
    after: dict[str, Any], kind: str, team: Team, tmp_path: Path
) -> None:
    """Weights, moments and reference bit for bit, also by ranks that gather."""
    same = {"module": model("qwen3-moe"), "checkpoint": kind}
    with RunFolder.create(tmp_path / "run", RECIPE) as folder:
        check_resumes(team, folder, {"ranks": 2, "modes": SPLIT, **same}, {**after, **same})


def test_what_cannot_be_split_is_refused(team: Team) -> None:
    with pytest.raises(UsageError, match="a mixture of experts, and LlamaForCausalLM has no"):
        split(model("llama"), team, 2)
    with pytest.raises(UsageError, match="3 ranks do not divide the 4 experts.*one of 1, 2, 4,"):
        split(model("qwen3-moe"), team, 3)
    with pytest.raises(UsageError, match="adapters"):
        split(with_adapters(model("qwen3-moe"), {"r": 2}), team, 2)
    with pytest.raises(UsageError, match="under sharding 'replicated'"):
        split(model("qwen3-moe"), team, 2, sharding="replicated")


@pytest.mark.parametrize(
    ("name", "layers"), [("qwen3-moe", 2), ("deepseek-v3", 1), ("gpt-oss", 2), ("llama", 0)]
)
def test_experts_are_found(name: str, layers: int) -> None:
    assert [count_of(part) for part in experts_of(model(name))] == [4] * layers


def test_a_layer_gathers_no_experts() -> None:
    """By hand: the root twice, and of a layer all but its 4 experts of 3 matrices of 32 x 16, of which
    a rank has a new gradient of its half.
    """
    module = model("qwen3-moe")
    experts = 4 * 3 * 32 * 16
    layer = sum(p.numel() for p in module.model.layers[0].parameters())
    root = sum(p.numel() for p in module.parameters()) - 2 * layer
    assert gathered_bytes(module, gather=4, autocast=False, split=2) == 8 * root + max(
        4 * root, 16 * (layer - experts) + 2 * experts
    )
    usual = gathered_bytes(module, gather=4, autocast=False)
    assert usual == 8 * root + 16 * layer


@pytest.mark.slow
def test_a_rank_takes_less_at_its_peak() -> None:
    """By what a layer gathers otherwise, to a quarter: two ranks and 57M parameters of experts."""
    sizes = {"num_experts": 16, "num_local_experts": 16, "moe_intermediate_size": 1024}
    module = architecture("qwen3-moe", hidden_size=576, num_hidden_layers=2, head_dim=64, **sizes)
    batch = batches.batch(vocab=64)
    peaks = []
    for experts in ("gathered", "split"):
        team = Team(2, silence=300.0)
        learner = split(module, team, 2, modes=Modes(experts=experts), restarts=0)
        learner.step(batch)  # moments are there from now on
        for pid in team.pids:
            Path(f"/proc/{pid}/clear_refs").write_text("5")  # the most begins anew
        learner.step(batch)
        peaks.append(max(1024 * kilobytes(pid, "VmHWM") for pid in team.pids))
        learner.close()
    usual, less = (gathered_bytes(module, gather=4, autocast=False, split=n) for n in (None, 2))
    print(f"peaks {peaks}, estimates {usual} and {less}")
    assert peaks[0] - peaks[1] == pytest.approx(usual - less, rel=0.25)
