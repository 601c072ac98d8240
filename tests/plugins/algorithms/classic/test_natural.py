"""The natural step against a Fisher matrix that is built entry by entry, on a two-layer transformer
in float64.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from quintain.errors import RunError, UsageError
from quintain.interfaces.algorithm import Algorithm
from quintain.interfaces.pieces import optimizer_step
from quintain.learning import Batch, Learner, Sample
from quintain.learning.optimizer_step import OptimizerStep
from quintain_algorithms.classic import TRPO
from quintain_algorithms.classic.natural import Divergence, check_size, conjugate_gradients, natural

from ....core.learning import batches
from ....core.learning.exact import closed_form
from ....core.learning.exact.bench import Bench, Package, tables
from ....core.learning.exact.methods import CORE as METHODS
from ....core.learning.exact.policies import Tree
from ....core.models.tiny import tiny_model, with_exact_norms
from ....lanes import mostly_slow

pytestmark = pytest.mark.usefixtures("own_pieces")

Array = NDArray[np.float64]
TEMPERATURE = 0.8
PROMPTS = ([1, 0], [0, 2, 1])
REPLIES = ([2, 0, 2], [1, 1, 1], [0, 2])
REWARDS = (1.0, 0.0, 0.25, 0.0, 1.0, 0.5)
SAMPLES = [(prompt, reply) for prompt in PROMPTS for reply in REPLIES]
TOKENS = sum(len(reply) for _, reply in SAMPLES)


def model(seed: int) -> Any:
    """Two layers, vocabulary 3; transformers rounds its norms to float32, which is put right
    here.
    """
    built = tiny_model(
        "qwen3", vocab=3, hidden=8, seed=seed, spread=0.5, dtype=torch.float64, pad_token_id=None
    )
    return with_exact_norms(built)


def batch(module: Any) -> Batch:
    samples = []
    for i, (prompt, reply) in enumerate(SAMPLES):
        with torch.no_grad():
            logps = [
                float(row.log_softmax(-1)[y])
                for row, y in zip(logits(module, prompt, reply), reply, strict=True)
            ]
        sequence = batches.sequence(prompt, reply, logps=logps)
        samples.append(Sample(sequences=(sequence,), outcome=REWARDS[i], group=i // len(REPLIES)))
    return Batch(samples=tuple(samples), temperature=TEMPERATURE)


def logits(module: Any, prompt: list[int], reply: list[int]) -> Tensor:
    """Over the temperature, one algorithm per token of the reply."""
    out: Tensor = (
        module(input_ids=torch.tensor([[*prompt, *reply]])).logits[0, len(prompt) - 1 : -1]
        / TEMPERATURE
    )
    return out


def flat(module: Any) -> Array:
    return np.concatenate([p.detach().numpy().ravel() for p in module.parameters()])


def jacobians(module: Any) -> list[tuple[Array, Array, list[int]]]:
    """Per sample: d logits [tokens, 3, parameters], probabilities [tokens, 3], the reply."""
    parameters = list(module.parameters())
    out = []
    for prompt, reply in SAMPLES:
        z = logits(module, prompt, reply)
        rows = [
            np.concatenate(
                [g.numpy().ravel() for g in torch.autograd.grad(x, parameters, retain_graph=True)]
            )
            for x in z.reshape(-1)
        ]
        prob = z.detach().softmax(-1).numpy()
        out.append((np.array(rows).reshape(*z.shape, -1), prob, reply))
    return out


def fisher(module: Any) -> Array:
    """1/N sum_t J' (diag p - p p') J, entry by entry."""
    total: Array = np.zeros((len(flat(module)),) * 2)
    for jac, prob, _ in jacobians(module):
        for j, p in zip(jac, prob, strict=True):
            total += j.T @ (np.diag(p) - np.outer(p, p)) @ j
    return total / TOKENS


def gradient(module: Any) -> Array:
    """Of -1/N sum_t A log theta, A the reward less the mean of the two others."""
    total: Array = np.zeros(len(flat(module)))
    for i, (jac, prob, reply) in enumerate(jacobians(module)):
        group = [REWARDS[k] for k in range(len(REWARDS)) if k // 3 == i // 3]
        advantage = 1.5 * (REWARDS[i] - float(np.mean(group)))
        for j, p, y in zip(jac, prob, reply, strict=True):
            total -= advantage * (np.eye(3)[y] - p) @ j
    return total / TOKENS


def divergence(before: Any, after: Any) -> float:
    """The mean over tokens of KL(before || after)."""
    total = 0.0
    with torch.no_grad():
        for prompt, reply in SAMPLES:
            p, q = (logits(m, prompt, reply).log_softmax(-1) for m in (before, after))
            total += float((p.exp() * (p - q)).sum())
    return total / TOKENS


def stepped(module: Any, algorithm: Algorithm = TRPO, **options: Any) -> dict[str, float]:
    return Learner(module, algorithm, lr=1.0, **options).step(batch(module))


def inside(module: Any, look: Callable[[OptimizerStep], Any]) -> Any:
    """What *look* finds of the update's problem."""
    found = []

    def caught(step: OptimizerStep) -> dict[str, float]:
        found.append(look(step))
        return {"loss": 0.0, "grad_norm": 0.0}

    stepped(module, TRPO.replace(optimizer_step=optimizer_step(name="caught")(caught)))
    return found[0]


@pytest.mark.more
@pytest.mark.parametrize("budget", [1, 2048])
def test_products_are_those_of_the_matrix(budget: int) -> None:
    module = model(0)
    matrix = fisher(module)
    vectors = np.random.default_rng(0).normal(size=(3, len(matrix)))

    def products(step: OptimizerStep) -> list[Array]:
        held = Divergence.of(replace(step, token_budget=budget))
        assert len(held.parts) == (len(SAMPLES) if budget == 1 else 1)
        return [held.fisher(torch.tensor(v)).numpy() for v in vectors]

    for v, got in zip(vectors, inside(module, products), strict=True):
        np.testing.assert_allclose(got, matrix @ v, rtol=0, atol=1e-10)
    assert np.abs(matrix).max() > 1e-3


@pytest.mark.parametrize("damping", mostly_slow([0.1, 0.01], ["0.01"]))
def test_the_direction_is_the_natural_gradient(damping: float) -> None:
    """With enough iterations the step is -s (F + damping 1)^-1 g, both built from Jacobians."""
    module, before = model(0), model(0)
    x = np.linalg.solve(fisher(before) + damping * np.eye(len(flat(before))), gradient(before))
    length = math.sqrt(2e-3 / (x @ gradient(before)))
    told = stepped(
        module, TRPO.replace(optimizer_step={"damping": damping, "iterations": 60, "delta": 1e-3})
    )
    assert told["natural.residual"] < 1e-9
    assert told["natural.scale"] > 0.1
    np.testing.assert_allclose(
        flat(module) - flat(before), -told["natural.scale"] * length * x, rtol=0, atol=1e-8
    )
    assert told["grad_norm"] == pytest.approx(float(np.linalg.norm(gradient(before))), rel=1e-9)


@pytest.mark.more
@pytest.mark.parametrize("damping", mostly_slow([0.1, 1e-4], ["0.1"]))
def test_the_whole_step_costs_delta_to_second_order(damping: float) -> None:
    """KL / (delta - damping / 2 |step|^2) tends to 1 as fast as the step shrinks, its square
    root.
    """
    before = model(0)
    matrix = fisher(before)
    x = np.linalg.solve(matrix + damping * np.eye(len(matrix)), gradient(before))
    errors = []
    for delta in (1e-6, 1e-8, 1e-10):
        step = -math.sqrt(2 * delta / (x @ gradient(before))) * x
        predicted = delta - damping / 2 * step @ step
        assert predicted == pytest.approx(step @ matrix @ step / 2, rel=1e-9)

        def cost(optimization: OptimizerStep, step: Array = step) -> float:
            held = Divergence.of(optimization)
            held.move(torch.tensor(step), 1.0)
            found = held.mean()
            held.move(torch.tensor(step), 0.0)
            return found

        module = model(0)
        kl = inside(module, cost)
        assert np.array_equal(flat(module), flat(before))  # and the way back is exact
        errors.append(abs(kl / predicted - 1))
    assert errors[1] < errors[0] / 5
    assert errors[2] < errors[1] / 5
    assert errors[2] < 1e-3


@pytest.mark.more
@pytest.mark.parametrize("seed", mostly_slow(range(4), ["0", "1"]))
@pytest.mark.parametrize("delta", [0.01, 0.3, 3.0])
def test_no_step_leaves_the_trust_region(seed: int, delta: float) -> None:
    """Whatever delta asks: what was taken stays within it, lowers the loss, and is what is
    reported.
    """
    module, before = model(seed), model(seed)
    told = stepped(module, TRPO.replace(optimizer_step={"delta": delta, "damping": 1e-3}))
    assert told["natural.kl"] == pytest.approx(divergence(before, module), abs=1e-12)
    assert told["natural.kl"] <= delta
    assert told["natural.scale"] in [0.0, *(0.8**k for k in range(10))]
    assert (told["natural.gain"] > 0) == (told["natural.scale"] > 0)
    if delta == 0.01:
        assert told["natural.kl"] > delta / 4


@pytest.mark.more
def test_a_step_that_no_try_makes_good_leaves_the_parameters() -> None:
    """One try, far past where the quadratic model holds."""
    refused = 0
    for seed in range(6):
        module, before = model(seed), model(seed)
        told = stepped(
            module,
            TRPO.replace(
                optimizer_step={"delta": 0.5, "damping": 1e-6, "iterations": 2, "tries": 1}
            ),
        )
        if told["natural.scale"] == 0:
            refused += 1
            assert np.array_equal(flat(module), flat(before))
            assert told["natural.kl"] == told["natural.gain"] == 0
    assert refused


@pytest.mark.more
def test_neither_the_cut_nor_the_learning_rate_matters() -> None:
    whole, cut = model(0), model(0)
    stepped(whole, token_budget=10**6)
    stepped(cut, token_budget=1, max_grad_norm=1e-9)
    np.testing.assert_allclose(flat(cut), flat(whole), rtol=0, atol=1e-9)


def test_what_has_no_gradient_does_not_move() -> None:
    module = model(0)

    def flat_loss(step: OptimizerStep) -> dict[str, Any]:
        still = replace(step, evaluate=lambda micro, observe: 0 * step.evaluate(micro, observe))
        return dict(natural(still))

    told = inside(module, flat_loss)
    assert told["grad_norm"] == 0
    assert told["natural.scale"] == 0
    assert np.array_equal(flat(module), flat(model(0)))


def test_a_gradient_that_is_not_finite_stops() -> None:
    module = model(0)

    def endless(step: OptimizerStep) -> None:
        with pytest.raises(RunError, match="not finite"):
            natural(
                replace(
                    step, evaluate=lambda micro, observe: math.inf * step.evaluate(micro, observe)
                )
            )

    inside(module, endless)
    assert np.array_equal(flat(module), flat(model(0)))


def test_conjugate_gradients() -> None:
    """A system of 6 is solved in 6 steps; fewer leave a rest, which is told; no curvature stops
    them.
    """
    draw = np.random.default_rng(1).normal(size=(6, 6))
    matrix = torch.tensor(draw @ draw.T + np.eye(6))
    wanted = torch.arange(1.0, 7.0, dtype=torch.float64)
    x, rest = conjugate_gradients(lambda v: matrix @ v, wanted, 6)
    torch.testing.assert_close(matrix @ x, wanted, rtol=0, atol=1e-8)
    assert rest.abs().max() < 1e-8
    early, rest = conjugate_gradients(lambda v: matrix @ v, wanted, 2)
    torch.testing.assert_close(rest, wanted - matrix @ early, rtol=0, atol=1e-10)
    assert rest.norm() > 0.01
    nowhere, rest = conjugate_gradients(torch.zeros_like, wanted, 5)
    assert not nowhere.any()
    assert torch.equal(rest, wanted)


def test_refusals_name_the_reason() -> None:
    for changes, reason in (({"epochs": 2}, "2 updates per batch"), ({"prune": 1e-3}, "prunes it")):
        # when the algorithm is made, not at its first update
        with pytest.raises(UsageError, match=reason):
            TRPO.replace(**changes)
    module = model(0)
    with pytest.raises(UsageError, match="shrink below 1"):
        stepped(module, TRPO.replace(optimizer_step={"shrink": 1.5}))
    assert np.array_equal(flat(module), flat(model(0)))


def test_large_models_are_refused() -> None:
    with torch.device("meta"):
        large = torch.nn.Linear(25_000, 25_000)
        small = torch.nn.Linear(20_000, 20_000)
    check_size(small)
    with pytest.raises(UsageError, match="up to 0.5B parameters, and this one has 0.63B"):
        check_size(large)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_other_shapes_and_single_precision(kind: str) -> None:
    """In float32, right-padded algorithms of ragged length: KL falls where it should, to the
    accuracy of the type.
    """
    module = tiny_model(kind, hidden=16, layers=1)
    before = copy.deepcopy(module)
    learner = Learner(module, TRPO)
    told = learner.step(batches.batch(groups=3, group_size=4))
    assert 0 < told["natural.kl"] <= 0.01
    assert told["natural.gain"] > 0
    assert any(
        not torch.equal(a, b) for a, b in zip(before.parameters(), module.parameters(), strict=True)
    )


def test_the_surrogate_has_the_expected_gradient_of_an_enumeration() -> None:
    """That which the step is taken along, with theta, prox and mu all different."""
    tree = Tree(vocab=3, longest=2)
    bench = Bench(tree=tree, sizes=(2,), logits=tables(tree, 1, apart=0.6, seed=9))
    method = METHODS["rloo"].replace(
        slope=closed_form.surrogate("prox"), share=closed_form.by_token
    )
    expected = np.zeros_like(bench.policies.theta)
    for paths, weight in bench.batches():
        expected += weight * closed_form.gradient(method, bench.policies, paths, tree.longest)

    actual = Package(TRPO, bench).expected()

    assert np.abs(expected).max() > 1e-4
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-12)
