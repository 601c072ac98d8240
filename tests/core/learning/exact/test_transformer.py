"""The same through the real path: batch, layout, scorer, objective, optimizer, on a two-layer transformer in float64.

The other side is plain forward passes, one context at a time, with coefficients from NumPy; it shares no shift, mask,
packing, pruning or temperature with the path under test.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from quintain.interfaces.algorithm import Algorithm
from quintain.interfaces.pieces import Piece
from quintain.learning import Batch, Learner
from quintain.learning.optimizer_step import OptimizerStep

from ....lanes import mostly_slow
from ...models.tiny import tiny_model, with_exact_norms
from ..algorithms import INSTALLED
from .bench import Bench, pruned, sample_of
from .closed_form import Method, Taken
from .methods import CORE, PAIRS, STATES
from .policies import Array, Path, Policies, Seen, Tree

TREE = Tree(vocab=3, longest=3)
PROMPTS = ([1, 0], [2, 0, 1])
TEMPERATURE = 0.8
OPTIONS: dict[str, Any] = {"max_grad_norm": 0.0, "lr": 0.03}
CLOSE: dict[str, Any] = {"rtol": 0, "atol": 1e-9}


@cache
def model(seed: int) -> Any:
    """Two layers, vocabulary 3, all within reach of the number 0. The norms of transformers round to float32, which is
    put right here. Copy it to train.
    """
    built = tiny_model(
        "qwen3", vocab=3, hidden=8, seed=seed, spread=0.5, dtype=torch.float64, pad_token_id=None
    )
    if seed:
        with torch.no_grad():
            for own, first in zip(built.parameters(), model(0).parameters(), strict=True):
                own.copy_(first + 0.06 * (own - first))
    return with_exact_norms(built)


def fresh(seed: int) -> Any:
    """A copy to train."""
    return copy.deepcopy(model(seed))


def logits(module: Any) -> Tensor:
    """After every context of both prompts, [places, 3], at the policy's temperature: algorithms of one length, no
    padding.
    """
    whole = [context for context in TREE.contexts if len(context) == TREE.longest - 1]
    rows = []
    for prompt in PROMPTS:
        out = (
            module(input_ids=torch.tensor([[*prompt, *context] for context in whole])).logits
            / TEMPERATURE
        )
        for context in TREE.contexts:
            row = next(k for k, other in enumerate(whole) if other[: len(context)] == context)
            rows.append(out[row, len(prompt) - 1 + len(context)])
    return torch.stack(rows)


@cache
def table(seed: int) -> Array:
    with torch.no_grad():
        return np.asarray(logits(model(seed)))


@cache
def drawn(prune: float = 0.0) -> tuple[list[Path], Batch]:
    """Groups of four and of three replies that the model number 1 may have sampled: ragged, some truncated, some with
    turns, one of them twice.
    """
    held = Bench(
        tree=TREE,
        sizes=(4, 3),
        logits={name: table(1) for name in ("theta", "prox", "mu", "ref")},
        prune=prune,
    )
    paths = []
    for task, places in enumerate(((0.0, 0.2, 0.5, 0.99), (0.1, 0.7, 0.7))):
        likely = [
            p
            for p, chance in zip(held.paths[task], held.probabilities(task), strict=True)
            if chance
        ]
        paths += [likely[int(place * len(likely))] for place in places]
    samples = tuple(sample_of(path, held.policies.mu, PROMPTS[path.group]) for path in paths)
    return paths, Batch(samples=samples, max_tokens=TREE.longest, temperature=TEMPERATURE)


@dataclass(frozen=True, kw_only=True)
class Update:
    """Just before the optimizer's step: parameters, gradient, whether the optimizer remembers anything."""

    parameters: dict[str, Tensor]
    gradient: Array
    remembers: bool


def learner_of(algorithm: Algorithm, **options: Any) -> tuple[Learner, list[Update]]:
    """A learner of the model number 0, ref being the number 2; its updates are noted down."""
    learner = Learner(fresh(0), algorithm, reference=fresh(2), **(OPTIONS | options))
    if algorithm.advantage.name in STATES:
        learner._advantage_state = dict(STATES[algorithm.advantage.name])
    found: list[Update] = []

    def note(optimizer: Any, *_: Any) -> None:
        gradient = torch.cat([p.grad.flatten() for p in learner.module.parameters()]).numpy().copy()  # type: ignore[union-attr]
        parameters = {name: p.detach().clone() for name, p in learner.module.named_parameters()}
        found.append(
            Update(parameters=parameters, gradient=gradient, remembers=bool(optimizer.state))
        )

    learner._optimizer.register_step_pre_hook(note)
    return learner, found


def wanted(
    method: Method, update: Update, paths: Sequence[Path], parts: Sequence[Sequence[int]]
) -> list[Array]:
    """The gradient of each of *parts* by the parameters, in closed form, with theta as it was at *update*."""
    module = fresh(0)
    module.load_state_dict(update.parameters, strict=False)
    now = logits(module)
    given = {"prox": table(0), "mu": pruned(table(1), method.prune), "ref": table(2)}
    policies = Policies.of(theta=now.detach().numpy(), **given)
    seen = Seen(paths=paths, policies=policies, longest=TREE.longest, prune=method.prune)
    taken = Taken(method=method, seen=seen)
    out = []
    for part in parts:
        loss = (now * torch.tensor(taken.gradient(policies, part))).sum()
        grads = torch.autograd.grad(loss, list(module.parameters()), retain_graph=True)
        out.append(torch.cat([g.flatten() for g in grads]).numpy())
    return out


CHOSEN = """
raw ema process_norm turn_level turn_level-mean maxrl-success batch_norm-environment prompt importance-mu clip-mu dual
sequence_clip gspo_token cispo-cap dppo_kl dppo_top-1 dppo_top-2 dppo_top-all grpo+tis gspo+tis_sequence icepop mis
sequence_mask-k3-mean dvp-coarse dvp+kl dvp+otb kl-k1-score kl-k1-reward mask_truncated overlong
""".split()


FAST = """
turn_level-mean batch_norm-environment dual dppo_top-1 gspo+tis_sequence sequence_mask-k3-mean dvp+kl kl-k1-reward
mask_truncated reinforce rloo grpo gspo dapo reinforce_pp dppo dvp
""".split()
"""Of `CHOSEN` and `CORE`, in each test run; test_softmax.py has all, on tables instead of a transformer."""


@pytest.mark.keeps("rloo", "kl-k1-reward")
@pytest.mark.parametrize("name", mostly_slow([*CORE, *CHOSEN], FAST))
def test_every_update_of_two_epochs_of_two_minibatches(name: str) -> None:
    """The first is on-policy but for the sampler; the later ones are not. The second epoch takes the groups in either
    order.
    """
    algorithm, method = PAIRS[name]
    paths, batch = drawn(algorithm.prune)
    learner, updates = learner_of(algorithm.replace(epochs=2, minibatches=2))
    learner.step(batch)
    groups = [[i for i, path in enumerate(paths) if path.group == task] for task in (0, 1)]
    assert len(updates) == 4
    for update, group in zip(updates, groups, strict=False):
        (want,) = wanted(method, update, paths, [group])
        np.testing.assert_allclose(update.gradient, want, **CLOSE)
    third = wanted(method, updates[2], paths, groups)
    order = [k for k in (0, 1) if np.allclose(updates[2].gradient, third[k], **CLOSE)]
    assert len(order) == 1
    fourth = wanted(method, updates[3], paths, groups)
    np.testing.assert_allclose(updates[3].gradient, fourth[1 - order[0]], **CLOSE)


@pytest.mark.keeps("reinforce", "gspo")
@pytest.mark.parametrize("name", mostly_slow(CORE, FAST))
def test_one_update_of_a_whole_batch(name: str) -> None:
    """As the algorithms are run by default: prox comes from the pass that is differentiated, so every ratio to it
    is 1.
    """
    algorithm, method = PAIRS[name]
    paths, batch = drawn(algorithm.prune)
    learner, updates = learner_of(algorithm.replace(epochs=1))
    metrics = learner.step(batch)
    (want,) = wanted(method, updates[0], paths, [range(len(paths))])
    np.testing.assert_allclose(updates[0].gradient, want, **CLOSE)
    if algorithm.ratio_to == "prox":
        assert metrics["ratio.min"] == metrics["ratio.max"] == 1.0


@pytest.mark.keeps("grpo", "trm")
@pytest.mark.parametrize(
    "name",
    mostly_slow(
        ["grpo", "dr_grpo", "gspo", "dppo", "olmorl", "trm", "dual", "dppo_top-1", "sequence_clip"],
        ["grpo", "gspo", "dppo", "trm", "dual"],
    ),
)
def test_clips_and_masks_are_at_work_in_later_updates(name: str) -> None:
    algorithm, _ = PAIRS[name]
    learner, _ = learner_of(algorithm.replace(epochs=4))
    metrics = learner.step(drawn(algorithm.prune)[1])
    assert (
        metrics.get("clip.low", 0)
        + metrics.get("clip.high", 0)
        + metrics.get("masked.sequences", 0)
        > 0
    )
    assert metrics["grad_norm"] > 0


@pytest.mark.more
def test_expected_update_is_the_true_gradient() -> None:
    """Of rloo over all groups of two, divided by the constant length 3."""
    held = Bench(
        tree=TREE,
        sizes=(2,),
        logits=dict.fromkeys(("theta", "prox", "mu", "ref"), table(0)),
        plain=True,
    )
    learner, updates = learner_of(INSTALLED["rloo"], lr=0.0)
    total: Any = 0.0
    for paths, weight in held.batches():
        if abs(paths[0].outcome - paths[1].outcome) < 1e-6:
            continue  # gives 0, which is tested elsewhere
        samples = tuple(sample_of(path, held.policies.mu, PROMPTS[0]) for path in paths)
        learner.step(Batch(samples=samples, max_tokens=TREE.longest, temperature=TEMPERATURE))
        total = total + weight * updates.pop().gradient
    module = fresh(0)
    logp = logits(module).log_softmax(-1)
    value: Any = 0.0
    for path in held.paths[0]:
        value = value + path.outcome * logp[list(path.at), list(path.ids)].sum().exp()
    truth = torch.cat(
        [g.flatten() for g in torch.autograd.grad(value, list(module.parameters()))]
    ).numpy()
    np.testing.assert_allclose(-total, truth / TREE.longest, **CLOSE)


@pytest.mark.parametrize("name", ["kimi", "dr_grpo"])
def test_the_optimizer_is_reset_if_the_algorithm_says_so(name: str) -> None:
    algorithm = INSTALLED[name].replace(epochs=2)
    learner, updates = learner_of(algorithm)
    for _ in range(2):
        learner.step(drawn()[1])
    assert [update.remembers for update in updates] == [
        False,
        True,
        not algorithm.reset_optimizer,
        True,
    ]


@pytest.mark.parametrize("name", ["dr_grpo", "gspo", "dvp"])
def test_an_update_of_ones_own_sees_the_same_loss_and_gradient(name: str) -> None:
    """Through `OptimizerStep`: the gradient; the loss, also at other parameters;
    metrics that are taken down once.
    """
    algorithm, method = PAIRS[name]
    paths, batch = drawn(algorithm.prune)
    seen: dict[str, Any] = {}

    def descend(step: OptimizerStep) -> dict[str, float]:
        loss = step.backward()
        grads = [p.grad for p in step.parameters]
        seen["gradient"] = torch.cat([g.flatten() for g in grads if g is not None]).numpy()
        assert step.loss() == pytest.approx(loss, abs=1e-12)
        with torch.no_grad():
            for p, g in zip(step.parameters, grads, strict=True):
                p -= 1e-4 * g
        after = step.loss()
        return {"loss": loss, "grad_norm": 1.0, "gain": loss - after}

    piece = Piece(kind="optimizer_step", name="descend", function=descend)
    learner, updates = learner_of(algorithm.replace(optimizer_step=piece))
    before = Update(
        parameters=copy.deepcopy(learner.module.state_dict()), gradient=np.zeros(0), remembers=False
    )
    metrics = learner.step(batch)
    (want,) = wanted(method, before, paths, [range(len(paths))])
    np.testing.assert_allclose(seen["gradient"], want, **CLOSE)
    assert not updates
    assert metrics["updates"] == learner.updates == 1
    assert metrics["optimizer_step.gain"] > 0
    assert metrics["ratio.min"] == metrics["ratio.max"] == 1.0
