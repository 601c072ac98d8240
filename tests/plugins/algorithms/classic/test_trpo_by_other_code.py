"""The whole step of `trpo` as it is, by NumPy from Jacobians: conjugate gradients, the length of the
step, the line search; also where adapters alone train and where a sample is left out.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from quintain.learning import Batch, Learner
from quintain.models.lora import with_adapters
from quintain_algorithms.classic import TRPO

from .test_natural import batch, logits, model

Array = NDArray[np.float64]


def adapted() -> Any:
    pytest.importorskip("peft", reason="adapters need quintain[lora]")
    torch.manual_seed(3)
    module = with_adapters(model(0), {"r": 1, "lora_alpha": 1}).double()
    for name, parameter in module.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.3)
    return module


MODULES: dict[str, Callable[[], Any]] = {"all": lambda: model(1), "adapters": adapted}
SETTINGS: dict[str, dict[str, float]] = {
    "six": {"iterations": 6},
    "far": {"delta": 2.0, "damping": 1e-3, "iterations": 7},
    "short": {"delta": 0.05, "damping": 0.02, "iterations": 2, "shrink": 0.5, "tries": 3},
}


def trained_of(module: Any) -> list[Any]:
    return [p for p in module.parameters() if p.requires_grad]


def flat(module: Any) -> Array:
    return np.concatenate([p.detach().numpy().ravel() for p in trained_of(module)])


def rows(made: Batch) -> list[tuple[list[int], list[int]]]:
    found = []
    for sample in made.samples:
        (row,) = sample.sequences
        first = row.mask.index(True)
        found.append((list(row.ids[:first]), list(row.ids[first:])))
    return found


def log_probs(module: Any, made: Batch) -> list[Array]:
    """Of the whole vocabulary at each token of each sample."""
    with torch.no_grad():
        return [logits(module, *row).log_softmax(-1).numpy() for row in rows(made)]


def advantages(made: Batch) -> list[float]:
    """The reward less the mean of the others of the group."""
    out = []
    for i, sample in enumerate(made.samples):
        others = [
            s.outcome for j, s in enumerate(made.samples) if j != i and s.group == sample.group
        ]
        out.append(sample.outcome - sum(others) / len(others))
    return out


def problem(module: Any, made: Batch, kept: list[bool], damping: float) -> tuple[Array, Array]:
    """The damped Fisher information and the gradient of the loss."""
    before, start, own = log_probs(module, made), flat(module), advantages(made)
    weight = weight_of(made, kept)
    tokens = sum(map(len, before))
    fisher = np.zeros((len(start),) * 2)
    gradient = np.zeros(len(start))
    for i, (prompt, reply) in enumerate(rows(made)):
        z = logits(module, prompt, reply)
        for t, token in enumerate(reply):
            jac = np.array(
                [
                    np.concatenate(
                        [
                            (torch.zeros_like(p) if g is None else g).numpy().ravel()
                            for g, p in zip(
                                torch.autograd.grad(
                                    x, trained_of(module), retain_graph=True, allow_unused=True
                                ),
                                trained_of(module),
                                strict=True,
                            )
                        ]
                    )
                    for x in z[t]
                ]
            )
            p = np.exp(before[i][t])
            fisher += jac.T @ (np.diag(p) - np.outer(p, p)) @ jac / tokens
            if kept[i]:
                gradient -= own[i] * weight * ((np.arange(len(p)) == token) - p) @ jac
    return fisher + damping * np.eye(len(start)), gradient


def weight_of(made: Batch, kept: list[bool]) -> float:
    """Of a token: one over those that train."""
    return 1 / sum(len(reply) for (_, reply), on in zip(rows(made), kept, strict=True) if on)


def stepped(module: Any, made: Batch, masked: bool, options: dict[str, float]) -> dict[str, float]:
    """Train *module* by other code; what it tells."""
    o = {"delta": 0.01, "damping": 0.1, "iterations": 10, "shrink": 0.8, "tries": 10} | options
    before, start = log_probs(module, made), flat(module)
    own = advantages(made)
    kept = [not (masked and s.truncated) for s in made.samples]
    weight, tokens = weight_of(made, kept), sum(map(len, before))
    matrix, gradient = problem(module, made, kept, o["damping"])

    x, r = np.zeros_like(gradient), gradient.copy()  # Hestenes and Stiefel 1952
    d = r.copy()
    for _ in range(int(o["iterations"])):
        step = (r @ r) / (d @ matrix @ d)
        x = x + step * d
        after = r - step * (matrix @ d)
        d = after + (after @ after) / (r @ r) * d
        r = after
    told = {
        "grad_norm": float(np.linalg.norm(gradient)),
        "natural.residual": float(np.linalg.norm(gradient - matrix @ x) / np.linalg.norm(gradient)),
    }

    def loss_of(found: list[Array]) -> float:
        total = 0.0
        for i, (_, reply) in enumerate(rows(made)):
            if kept[i]:
                at = np.arange(len(reply))
                ratio = np.exp(found[i][at, reply] - before[i][at, reply])
                total -= own[i] * weight * float(ratio.sum())
        return total

    whole = np.sqrt(2 * o["delta"] / (x @ matrix @ x)) * x
    for k in range(int(o["tries"])):
        scale = o["shrink"] ** k
        write(module, start - scale * whole)
        now = log_probs(module, made)
        kl = (
            sum(float((np.exp(a) * (a - b)).sum()) for a, b in zip(before, now, strict=True))
            / tokens
        )
        gain = loss_of(before) - loss_of(now)
        if gain > 0 and kl <= o["delta"]:
            return told | {"natural.kl": kl, "natural.scale": scale, "natural.gain": gain}
    write(module, start)
    return told | {"natural.kl": 0.0, "natural.scale": 0.0, "natural.gain": 0.0}


def write(module: Any, values: Array) -> None:
    at = 0
    with torch.no_grad():
        for p in trained_of(module):
            p.copy_(torch.tensor(values[at : at + p.numel()]).view_as(p))
            at += p.numel()


@pytest.mark.keeps("six-adapters-True")
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("trains", MODULES)
@pytest.mark.parametrize("settings", SETTINGS)
def test_a_whole_step(settings: str, trains: str, masked: bool) -> None:
    """A sample that is left out has no part in the loss; its tokens count in the KL.

    After more iterations than here two programs leave each other: a few curvatures are hundreds of
    times the others, and conjugate gradients then multiply rounding by 1e5 in each iteration.
    """
    expected, actual = MODULES[trains](), MODULES[trains]()
    made = batch(actual)
    samples = [replace(s, truncated=i == 4) for i, s in enumerate(made.samples)]
    made = replace(made, samples=tuple(samples))
    before = flat(actual)
    frozen = {n: p.clone() for n, p in actual.named_parameters() if not p.requires_grad}

    want = stepped(expected, made, masked, SETTINGS[settings])
    algorithm = TRPO.replace(optimizer_step=SETTINGS[settings], mask_truncated=masked)
    got = Learner(copy.deepcopy(actual), algorithm, lr=1.0)
    told = got.step(made)

    assert {name: told[name] for name in want} == pytest.approx(want, rel=1e-5, abs=1e-9)
    np.testing.assert_allclose(flat(got.module), flat(expected), rtol=0, atol=1e-6)
    assert np.abs(flat(expected) - before).max() > 1e-4
    moved = dict(got.module.named_parameters())
    assert all(torch.equal(moved[name], value) for name, value in frozen.items())


@pytest.mark.more
@pytest.mark.parametrize("trains", MODULES)
def test_ten_iterations_are_nearly_the_natural_gradient(trains: str) -> None:
    """As the algorithm is: for the same length by the Fisher information, its step lowers the loss by
    as much, to first order, as the solution of the system does.
    """
    actual = MODULES[trains]()
    made = batch(actual)
    matrix, gradient = problem(actual, made, [True] * len(made.samples), 0.1)
    before = flat(actual)
    learner = Learner(copy.deepcopy(actual), TRPO, lr=1.0)
    learner.step(made)
    step = before - flat(learner.module)
    solved = np.linalg.solve(matrix, gradient)
    gains = [(gradient @ d) / np.sqrt(d @ matrix @ d) for d in (step, solved)]
    assert 0.98 < gains[0] / gains[1] < 1 + 1e-9
