"""How ranks keep weights and moments: each mode against one process in the same mode."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard import _fsdp_param as param
from torch.distributed.fsdp._fully_shard import _fsdp_param_group as group

from quintain.errors import UsageError
from quintain.learning import ALGORITHMS, Learner
from quintain_learners.fsdp import Fsdp, FsdpLearner
from quintain_learners.fsdp.processes import ProcessRanks
from quintain_learners.fsdp.rank import RankLearner
from quintain_learners.fsdp.setup import Modes
from quintain_learners.fsdp.shards import mesh_of, root_of, shard
from quintain_learners.fsdp.team import Team
from quintain_learners.lean import LeanLearner

from ....core.learning import batches
from ....core.models.tiny import tiny_model
from .test_exact import Trained, assert_same, batch, gradients_of, model, trained

GRPO = ALGORITHMS["grpo"]
DR_GRPO = ALGORITHMS["dr_grpo"]
SETTINGS: dict[str, Any] = {"layout": "bucketed", "token_budget": 25, "lr": 1e-3}


@cache
def wide(dtype: torch.dtype = torch.float64) -> Any:
    """Return a model whose matrices are large enough for moments in 8 bits. Copy it to train."""
    return tiny_model(
        "gpt2",
        vocab=128,
        hidden=64,
        spread=0.4,
        dtype=dtype,
        pad_token_id=None,
        tie_word_embeddings=True,
    )


def ranks(team: Team, module: Any, modes: Modes, **settings: Any) -> FsdpLearner:
    return FsdpLearner(copy.deepcopy(module), GRPO, team=team, modes=modes, **(SETTINGS | settings))


def assert_equal(actual: Trained, expected: Trained, *, close: float) -> None:
    """Compare gradients, relative to the largest, and weights."""
    largest = max(float(g.abs().max()) for g in expected.gradients)
    for got, want in zip(actual.gradients, expected.gradients, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=close * largest)
    for name, want in expected.weights.items():
        torch.testing.assert_close(actual.weights[name], want, rtol=0, atol=close)


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("optimizer", ["adamw_8bit", "adamw_host"])
def test_moments_are_those_of_one_process(optimizer: Any, count: int, team: Team) -> None:
    """Blocks and what is drawn are those of the whole, whatever part a rank has."""
    one = LeanLearner(copy.deepcopy(wide()), GRPO, optimizer=optimizer, **SETTINGS)
    expected = trained(one, "full")
    many = ranks(team, wide(), Modes(optimizer=optimizer), ranks=count)
    assert_equal(trained(many, "full"), expected, close=1e-10)


def test_moments_in_8_bits_are_in_8_bits(team: Team) -> None:
    """Those of matrices, on each rank; a checkpoint has them as the learner `lean` does."""
    many = ranks(team, wide(), Modes(optimizer="adamw_8bit"))
    many.step(batch())
    state = many.state_dict()
    assert state["optimizer"]["state"][0]["mean"]["codes"].dtype == torch.uint8
    one = LeanLearner(copy.deepcopy(wide()), GRPO, optimizer="adamw_8bit", **SETTINGS)
    one.load_state_dict(copy.deepcopy(state))
    one.step(batch())
    whole = copy.deepcopy(one.state_dict())
    many.load_state_dict(whole)
    for learner in (one, many):
        learner.step(batch())
    assert many.version == 3
    assert one.version == 3
    for expected, actual in zip(one.module.parameters(), many.module.parameters(), strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("sharding", ["sharded", pytest.param("hybrid", marks=pytest.mark.slow)])
def test_parts_in_host_memory_train_alike(sharding: Any, team: Team) -> None:
    one = Learner(copy.deepcopy(model("full")), GRPO, **SETTINGS)
    expected = trained(one, "full")
    modes = Modes(offload="all")
    count = 2 if sharding == "sharded" else 4
    many = ranks(team, model("full"), modes, ranks=count, sharding=sharding)
    assert_same(trained(many, "full"), expected, "full")


def test_checkpointed_layers_train_alike(team: Team) -> None:
    one = Learner(copy.deepcopy(model("full")), GRPO, **SETTINGS)
    expected = trained(one, "full")
    many = ranks(team, model("full"), Modes(), activation_checkpointing=True)
    assert_same(trained(many, "full"), expected, "full")


def test_weights_gathered_in_bfloat16(team: Team) -> None:
    """The update is that of one rank in the same mode to rounding of float32, where micro-batches
    are the same. Its gradient is about as far from that of float32 as the one of autocast.
    """
    module = wide(torch.float32)
    settings: dict[str, Any] = {"precision": "bf16", "token_budget": 1}
    expected = trained(ranks(team, module, Modes(), ranks=1, **settings), "full")
    actual = trained(ranks(team, module, Modes(), ranks=2, **settings), "full")
    assert_equal(actual, expected, close=1e-5)
    assert all(g.dtype == torch.float32 for g in actual.gradients)

    def gradient(**settings: Any) -> torch.Tensor:
        one = Learner(copy.deepcopy(module), GRPO, **(SETTINGS | settings))
        one.step(batch())
        return torch.cat([g.flatten() for g in gradients_of(one)])

    exact = gradient()
    of_autocast = (gradient(**settings) - exact).norm() / exact.norm()
    of_ranks = (torch.cat([g.flatten() for g in actual.gradients]) - exact).norm() / exact.norm()
    assert 0 < of_ranks < 1.5 * of_autocast < 0.1


def test_gathers_in_float32_are_autocast(team: Team) -> None:
    """One rank then makes the very gradient of the default learner."""
    module, settings = wide(torch.float32), {"precision": "bf16"}
    one = Learner(copy.deepcopy(module), GRPO, **(SETTINGS | settings))
    many = ranks(team, module, Modes(gather="float32"), ranks=1, **settings)
    for learner in (one, many):
        learner.step(batch())
    for expected, actual in zip(gradients_of(one), gradients_of(many), strict=True):
        assert torch.equal(actual, expected)


def test_modes_that_do_not_go_together_are_refused() -> None:
    module = tiny_model("gpt2", vocab=24, hidden=16)
    half, host = Modes(gather="bfloat16"), Modes(offload="all")
    with pytest.raises(UsageError, match='set learner.precision = "bf16"'):
        FsdpLearner(module, GRPO, modes=half)
    for modes in (half, host):
        with pytest.raises(UsageError, match='learner.args.sharding = "sharded"'):
            FsdpLearner(module, GRPO, modes=modes, sharding="replicated", precision="bf16")


def test_settings_reach_the_ranks() -> None:
    kind = Fsdp(gather="bfloat16", optimizer="adamw_8bit", offload="all")
    assert kind.modes == Modes(gather="bfloat16", optimizer="adamw_8bit", offload="all")


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """Make this process the only rank."""
    where = f"file://{tmp_path / 'rendezvous'}"
    dist.init_process_group("gloo", init_method=where, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_the_root_is_gathered_once_an_update(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many micro-batches it has, and its gradient is added up over ranks once. An update that
    failed between two of them leaves nothing behind.
    """
    exchanged: list[str] = []
    gather, reduce = param.FSDPParam.to_unsharded, group.foreach_reduce

    def gathered(self: Any) -> None:
        if "embed_tokens" in str(self._param_fqn):
            exchanged.append("gathered")
        gather(self)

    def reduced(params: Any, *args: Any, **named: Any) -> Any:
        if any("embed_tokens" in str(one._param_fqn) for one in params):
            exchanged.append("reduced")
        return reduce(params, *args, **named)

    monkeypatch.setattr(param.FSDPParam, "to_unsharded", gathered)
    monkeypatch.setattr(group, "foreach_reduce", reduced)
    plain = tiny_model("qwen3", vocab=24, dtype=torch.float64)
    one = Learner(copy.deepcopy(plain), DR_GRPO, **SETTINGS)
    one.step(batch())
    module = copy.deepcopy(plain)
    shard(module, mesh_of("cpu", 1, 1))
    cut = ProcessRanks(sharded=True, root=root_of(module))
    learner = RankLearner(module, DR_GRPO, modes=Modes(), ranks=cut, **SETTINGS)
    prepared = learner.prepare(batch())
    advantages = asyncio.run(learner.compute_advantages(prepared))

    def fails_after_one(parts: Any) -> Any:
        for number, part in enumerate(in_turn(parts)):
            if number == 1:
                raise RuntimeError("of the second micro-batch")
            yield part

    in_turn = cut.in_turn
    monkeypatch.setattr(cut, "in_turn", fails_after_one)
    with pytest.raises(RuntimeError, match="second micro-batch"):
        learner.step(prepared, advantages=advantages)
    monkeypatch.setattr(cut, "in_turn", in_turn)
    module.model.reshard()
    exchanged.clear()
    learner.step(prepared, advantages=advantages)
    assert exchanged == ["gathered", "gathered", "reduced"]  # the first to forget what was left
    for name, want in one.module.named_parameters():
        got = module.get_parameter(name).full_tensor()
        torch.testing.assert_close(got, want, rtol=0, atol=1e-10)
    prepared = learner.prepare(batch())
    module.model.reshard()
    exchanged.clear()
    learner.step(prepared, advantages=advantages)
    assert exchanged == ["gathered", "reduced"]


@pytest.mark.parametrize("layout", ["shared", "bucketed"])
def test_inputs_of_layers_alone_go_to_the_host(
    layout: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is kept for the backward pass is one tensor of states for each layer, beside what the
    last norm and the embeddings keep; and the gradient is the same, bit for bit.
    """
    kept: list[tuple[int, ...]] = []

    def counting(**_: Any) -> Any:
        def pack(tensor: torch.Tensor) -> torch.Tensor:
            kept.append(tuple(tensor.shape))
            return tensor.clone()

        return torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)

    monkeypatch.setattr(torch.autograd.graph, "save_on_cpu", counting)
    settings: dict[str, Any] = {
        "layout": layout,
        "token_budget": 10**6,
        "activation_checkpointing": True,
    }
    made = batches.batch(groups=1, group_size=2, vocab=200, longest=7, rewards=[0.0, 1.0])
    whole = Learner(tiny_model("qwen3"), GRPO, **settings)
    host = RankLearner(tiny_model("qwen3"), GRPO, modes=Modes(offload="inputs"), **settings)
    expected, actual = whole.step(made), host.step(made)
    assert actual | {"seconds": 0} == expected | {"seconds": 0}
    for mine, theirs in zip(host.parameters, whole.parameters, strict=True):
        assert torch.equal(mine, theirs)
    layers, hidden, inner = 2, 32, 96
    states = [shape for shape in kept if shape[-1:] == (hidden,) and len(shape) > 1]
    assert layers <= len(states) <= layers + 3
    assert not any(shape[-1:] == (inner,) for shape in kept)


def test_inputs_on_the_host_need_checkpointing() -> None:
    with pytest.raises(UsageError, match="learner.checkpoint_activations = true"):
        FsdpLearner(tiny_model("qwen3"), GRPO, modes=Modes(offload="inputs"))
