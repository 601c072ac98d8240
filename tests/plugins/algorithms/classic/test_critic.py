"""The critic: the value loss in every branch of its clip, places, cuts, and an exact resume."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from quintain.errors import RunError, UsageError
from quintain.learning import ALGORITHMS, Batch, Learner, Sample
from quintain.models.tokenizer import HFTokenizer
from quintain.services.manager import copy_of_state
from quintain.store.checkpoint import CheckpointManager, latest
from quintain.store.run_folder import RunFolder
from quintain_algorithms.classic.critic import Critic, explained_variance, value_terms

from ....core.learning import batches
from ....core.models.tiny import byte_tokenizer, tiny_model


def learner(kind: str = "qwen3", **settings: Any) -> Learner:
    small = {"hidden": 16, "layers": 1, **settings.pop("model", {})}
    return Learner(tiny_model(kind, **small), ALGORITHMS["reinforce"], **settings)


def targets(batch: Batch, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Old values and returns, [N]."""
    draw = np.random.default_rng(seed).normal(size=(2, batch.tokens))
    return torch.tensor(0.1 * draw[0]), torch.tensor(draw[1])


@pytest.mark.parametrize(
    "value, old, wanted, loss, slope",
    [
        (0.1, 0.0, 1.0, 0.405, -0.9),  # within the clip: plain
        (0.5, 0.0, 1.0, 0.32, 0.0),  # moved too far towards the return: held at 0.2, no gradient
        (-0.5, 0.0, -1.0, 0.32, 0.0),
        # moved too far away: the plain error is the larger, it comes back
        (-0.5, 0.0, 1.0, 1.125, -1.5),
        (0.5, 0.0, -1.0, 1.125, 1.5),
        (2.0, 0.0, 1.0, 0.5, 1.0),  # past the return: plain 0.5 beats held 0.32
    ],
)
def test_every_branch_of_the_clip(
    value: float, old: float, wanted: float, loss: float, slope: float
) -> None:
    values = torch.tensor([value], dtype=torch.float64, requires_grad=True)
    terms, stopped = value_terms(
        values, torch.tensor([old]).double(), torch.tensor([wanted]).double(), 0.2
    )
    (gradient,) = torch.autograd.grad(terms.sum(), values)
    assert float(terms.detach()) == pytest.approx(loss)
    assert float(gradient) == pytest.approx(slope)
    assert bool(stopped) == (slope == 0)


def test_no_clip_is_half_the_squared_error() -> None:
    terms, stopped = value_terms(
        torch.tensor([2.0]), torch.tensor([0.0]), torch.tensor([1.0]), None
    )
    assert float(terms) == 0.5
    assert not bool(stopped)


def test_explained_variance() -> None:
    returns = torch.tensor([0.0, 1.0, 2.0, 3.0])
    assert explained_variance(returns, returns) == {"critic.explained_variance": 1.0}
    assert explained_variance(torch.zeros(4), returns)[
        "critic.explained_variance"
    ] == pytest.approx(0)
    assert explained_variance(-returns, returns)["critic.explained_variance"] == pytest.approx(-3)
    assert explained_variance(returns, torch.full((4,), 0.7)) == {}


def test_a_new_critic_expects_nothing() -> None:
    batch = batches.batch()
    assert not Critic(learner=learner()).values(batch).any()


@pytest.mark.parametrize("kind", ["qwen3", "gpt2"])
def test_a_value_is_read_where_its_token_is_predicted(kind: str) -> None:
    """It depends on everything before the token, and on nothing from it on."""
    critic = Critic(learner=learner(kind), lr=1e-2)
    plain, other, longer = (
        Batch(samples=(Sample(sequences=(batches.sequence([1, 2], reply),), outcome=0.0, group=0),))
        for reply in ([3, 4, 5], [3, 9, 5], [3, 4, 5, 6, 7, 8])
    )
    critic.fit(plain, *targets(plain))
    values, changed, more = (critic.values(b) for b in (plain, other, longer))
    torch.testing.assert_close(changed[:2], values[:2], rtol=0, atol=1e-6)
    assert abs(float(changed[2] - values[2])) > 1e-4
    torch.testing.assert_close(more[:3], values, rtol=0, atol=1e-6)


@pytest.mark.more
def test_the_gradient_does_not_depend_on_the_cut() -> None:
    """Whatever the token budget, in float64: after one update the weights agree."""
    batch = batches.batch(groups=3, group_size=4)
    old, wanted = targets(batch)
    held = []
    for budget in (10**6, 30, 1):
        critic = Critic(
            learner=learner(model={"dtype": torch.float64}, token_budget=budget), epochs=3, lr=1e-2
        )
        told = critic.fit(batch, old, wanted)
        held.append((critic.values(batch), told))
    for values, told in held[1:]:
        torch.testing.assert_close(values, held[0][0], rtol=1e-6, atol=1e-8)
        assert told == pytest.approx(held[0][1], rel=1e-6)


def test_it_learns_and_shares_nothing_with_the_policy() -> None:
    policy = learner()
    critic = Critic(learner=policy, lr=1e-2, clip=None, minibatches=2)
    before = copy.deepcopy(policy.module.state_dict())
    batch = batches.batch(groups=4, group_size=2)
    wanted = torch.linspace(-1, 1, batch.tokens).double()
    for _ in range(20):
        old = critic.values(batch)
        told = critic.fit(batch, old, wanted)
    assert told["critic.explained_variance"] > 0.8
    assert told["critic.clipped"] == 0
    assert told["critic.grad_norm"] > 0
    assert critic.updates == 20 * 4 * 2
    assert all(torch.equal(w, before[name]) for name, w in policy.module.state_dict().items())


@pytest.mark.keeps("untied")
@pytest.mark.parametrize("model", [{}, {"tie_word_embeddings": False}], ids=["tied", "untied"])
def test_resume_is_bitwise(tmp_path: Path, model: dict[str, Any]) -> None:
    """Through a checkpoint on disk: what comes after is the same to the last bit, moments
    included.
    """
    first, second = batches.batch(seed=1), batches.batch(seed=2)
    policy = learner(model=model)
    critic = Critic(learner=policy, lr=1e-2, minibatches=2)
    critic.fit(first, *targets(first))
    with RunFolder.create(tmp_path / "run", '[[environments]]\nuse = "guess"\n') as folder:
        checkpoints = CheckpointManager(folder, tokenizer=HFTokenizer(byte_tokenizer()))
        checkpoints.save(
            1,
            learner=policy,
            state={"services": {"critic": critic.state()}, "note": [1, {"a": None}]},
        )
        checkpoint = latest(folder)
        assert checkpoint is not None
        state = checkpoint.state
    assert state["note"] == [1, {"a": None}]
    told = critic.fit(second, *targets(second))

    resumed = Critic(learner=learner(model={**model, "seed": 7}), lr=1e-2, minibatches=2)
    resumed.restore(state["services"]["critic"])
    if model:  # the output layer is no part of a value, so it is not kept
        assert not any("lm_head" in name for name in state["services"]["critic"]["weights"])
    assert resumed.fit(second, *targets(second)) == told
    assert torch.equal(resumed.values(second), critic.values(second))
    for name, weight in critic.state()["weights"].items():
        assert torch.equal(weight, resumed.state()["weights"][name])


def test_a_step_that_is_given_up_copies_no_weights() -> None:
    """The state that a run holds back shares the tensors and nothing else."""
    critic = Critic(learner=learner())
    batch = batches.batch()
    critic.fit(batch, *targets(batch))
    state = {"critic": critic.state(), "other": {"seen": [1]}}
    held = copy_of_state(state)
    state["other"]["seen"].append(2)
    assert held["other"]["seen"] == [1]
    name, weight = next(iter(state["critic"]["weights"].items()))
    assert held["critic"]["weights"][name].data_ptr() == weight.data_ptr()


@pytest.mark.more
def test_adapters_train_adapters() -> None:
    """Where the policy trains adapters, the critic's layers stay as they are, too."""
    lora = {"r": 2, "lora_alpha": 4, "target_modules": ["q_proj", "v_proj"]}
    critic = Critic(learner=learner(lora=lora), lr=1e-2)
    batch = batches.batch()
    critic.fit(batch, *targets(batch))
    names = critic.state()["weights"]
    assert all("lora_" in name or name.startswith("value_head.") for name in names)
    assert critic.values(batch).any()


def test_a_checkpoint_of_another_model_is_refused() -> None:
    with pytest.raises(RunError, match="other parameters"):
        Critic(learner=learner()).restore(Critic(learner=learner(model={"hidden": 32})).state())


def test_settings_out_of_range_are_refused() -> None:
    for wrong in ({"lr": 0.0}, {"epochs": 0}, {"clip": 0.0}, {"max_grad_norm": -1.0}):
        with pytest.raises(UsageError, match="expected numbers above 0"):
            Critic(learner=learner(), **wrong)


def test_returns_that_are_not_finite_stop_before_the_update() -> None:
    critic = Critic(learner=learner())
    batch = batches.batch()
    with pytest.raises(RunError, match="not finite"):
        critic.fit(batch, torch.zeros(batch.tokens), torch.full((batch.tokens,), float("inf")))
    assert critic.updates == 0
    assert not critic.values(batch).any()
