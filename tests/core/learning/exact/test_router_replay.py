"""The gradient of the expected reward with the experts of the engine, against enumeration in float64.

The policy is a mixture whose tokens go to the experts that the engine's router chose, weighted by its
own router: pi(y) is the product of its probabilities along y. The other side sums pi(y) R(y) over all
replies and leaves the gradient to autograd. It runs one sequence at a time through blocks written
here, without a choice of the best, a padding or a micro-batch.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from quintain.learning import Batch, Learner, Sample
from quintain.learning.algorithms import REINFORCE

from ...engine.test_router_replay import routed, with_noisy_routers
from ...models.architectures import architecture
from ...models.tiny import with_exact_norms
from ..batches import sequence
from .policies import Tree

TREE = Tree(vocab=3, longest=3)
PROMPTS = ([1, 0], [2, 0, 1])
Gates = Any


def softmax_of_all(logits: Tensor, chosen: Tensor, *, normalised: bool) -> Tensor:
    """Qwen3, Mixtral, OLMoE: shares of all experts, then of the chosen ones."""
    share = logits.softmax(-1)[:, chosen]
    return share / share.sum(-1, keepdim=True) if normalised else share


def softmax_of_chosen(logits: Tensor, chosen: Tensor) -> Tensor:
    """Granite."""
    return logits[:, chosen].softmax(-1)


def sigmoids(logits: Tensor, chosen: Tensor, *, scale: float) -> Tensor:
    """DeepSeek V3: the bias chooses and does not weigh."""
    share = logits[:, chosen].sigmoid()
    return share / (share.sum(-1, keepdim=True) + 1e-20) * scale


CASES: dict[str, tuple[str, dict[str, Any], Gates]] = {
    "qwen3-moe": (
        "qwen3-moe",
        {"norm_topk_prob": False},
        partial(softmax_of_all, normalised=False),
    ),
    "qwen3-moe-normalised": (
        "qwen3-moe",
        {"norm_topk_prob": True},
        partial(softmax_of_all, normalised=True),
    ),
    "mixtral": ("mixtral", {}, partial(softmax_of_all, normalised=True)),
    "granite-moe": ("granite-moe", {}, softmax_of_chosen),
    "deepseek-v3": ("deepseek-v3", {}, partial(sigmoids, scale=2.5)),
}


class Enumerated(nn.Module):
    """A block of experts of one sequence, whose tokens go to given experts.

    Attributes:
        chosen: of each token.
    """

    def __init__(self, block: Any, gates: Gates) -> None:
        super().__init__()
        self.block, self.gates = block, gates
        self.router = getattr(block, "gate", None) or block.router
        self.chosen: list[list[int]] = []

    def forward(self, hidden: Tensor) -> Tensor:
        rows = []
        for state, chosen in zip(hidden[0], self.chosen, strict=True):
            weights = self.gates((self.router.weight @ state)[None], torch.tensor(chosen))[0]
            rows.append(
                sum(w * self.expert(e, state) for w, e in zip(weights, chosen, strict=True))
            )
        mixed = torch.stack(rows)[None]
        shared = getattr(self.block, "shared_experts", None)
        return mixed if shared is None else mixed + shared(hidden)

    def expert(self, number: int, state: Tensor) -> Tensor:
        experts = self.block.experts
        gate, up = (experts.gate_up_proj[number] @ state).chunk(2)
        return experts.down_proj[number] @ (functional.silu(gate) * up)


class ExactScores(TorchFunctionMode):
    """Makes the routers of transformers compute in float64, where they round to float32."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is functional.softmax:
            kwargs["dtype"] = None
        casts = func is Tensor.float or (func is Tensor.type and args[1:] == (torch.float32,))
        if casts and args[0].dtype == torch.float64:
            return args[0]
        return func(*args, **kwargs)


def built(name: str) -> tuple[Any, Any, Gates]:
    """A policy, its engine, which has other routers, and how the policy weighs experts."""
    family, fields, gates = CASES[name]
    sizes = {"vocab_size": 3, "pad_token_id": None, "eos_token_id": 2, "num_experts": 6}
    sizes |= {"num_local_experts": 6, "n_routed_experts": 6, "hidden_size": 16}
    module = architecture(family, dtype=torch.float64, spread=0.5, **(sizes | fields))
    module.set_experts_implementation("eager")  # products by groups have no float64
    module = with_exact_norms(module.double())
    return module, with_noisy_routers(module, 0.5), gates


def reward(prompt: int, reply: Sequence[int]) -> float:
    return (0.3 + prompt) * sum((i + 1) * token for i, token in enumerate(reply)) - 1.0


def expected(module: Any, engine: Any, gates: Gates) -> Tensor:
    """The sum of pi(y) R(y) over both prompts and all replies."""
    policy = copy.deepcopy(module)
    blocks: list[Enumerated] = []
    for layer in policy.model.layers:
        for name, part in list(layer.named_children()):
            if hasattr(part, "experts"):
                blocks.append(Enumerated(part, gates))
                setattr(layer, name, blocks[-1])
    total = torch.zeros((), dtype=torch.float64)
    for number, prompt in enumerate(PROMPTS):
        for reply in TREE.replies:
            ids = [*prompt, *reply[:-1]]
            texts = routed(engine, ids)
            each = len(texts[0]) // len(blocks)
            for k, block in enumerate(blocks):
                block.chosen = [[ord(c) - 48 for c in t[k * each : (k + 1) * each]] for t in texts]
            logp = policy(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
            start = len(prompt) - 1
            chance = sum(logp[start + i, token] for i, token in enumerate(reply)).exp()
            total = total + chance * reward(number, reply)
    total.backward()
    gradients = {
        name.replace(".block.", "."): cast(Tensor, parameter.grad).flatten()
        for name, parameter in policy.named_parameters()
    }
    return torch.cat([gradients[name] for name, _ in module.named_parameters()])


def trained(module: Any, engine: Any) -> tuple[Tensor, dict[str, float]]:
    """The same gradient by the learner: each reply in a batch, weighted by its probability."""
    learner = Learner(module, REINFORCE, token_budget=40)
    samples, rewards = [], []
    for number, prompt in enumerate(PROMPTS):
        for reply in TREE.replies:
            experts = routed(engine, [*prompt, *reply[:-1]])
            row = replace(sequence(prompt, reply), experts=experts)
            samples.append(Sample(sequences=(row,), outcome=0.0, group=number))
            rewards.append(reward(number, reply))
    batch = Batch(samples=tuple(samples))
    sums = torch.zeros(len(samples), dtype=torch.float64)
    sums.index_add_(0, batch.sample_of_tokens, learner.logprobs(batch))
    weights = sums.exp() * torch.tensor(rewards, dtype=torch.float64)
    parts = learner.scorer.micro_batches(batch, range(len(samples)))
    assert len(parts) > 2
    for micro in parts:
        logp = learner.scorer.statistics(micro.prefix_groups).logp
        (logp * weights[batch.sample_of_tokens[micro.positions]]).sum().backward()
    gradient = torch.cat([p.grad.flatten() for p in learner.module.parameters()])
    return gradient, learner.forward.experts.metrics(lambda tensor: tensor)


@pytest.mark.keeps("qwen3-moe", "deepseek-v3")
@pytest.mark.parametrize("name", CASES)
def test_the_gradient_is_that_of_the_expected_reward_with_the_engines_experts(name: str) -> None:
    module, engine, gates = built(name)
    with ExactScores():
        wanted = expected(module, engine, gates)
        found, metrics = trained(module, engine)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-10 * float(wanted.abs().max()))
    assert metrics["experts.agree"] < 0.9  # else the test could not fail
    assert float(wanted.abs().max()) > 1e-3


def test_without_replay_the_gradient_is_another() -> None:
    module, engine, gates = built("qwen3-moe")
    with ExactScores():
        wanted = expected(module, engine, gates)
        found, _ = trained(module, module)
    assert float((found - wanted).abs().max()) > 0.01 * float(wanted.abs().max())
