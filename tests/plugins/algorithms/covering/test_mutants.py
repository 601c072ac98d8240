"""Deliberate errors in the package, which the rows of `test_covering` must notice."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from quintain.interfaces.algorithm import Algorithm
from quintain.interfaces.pieces import Piece
from quintain.learning import (
    Batch,
    Learner,
    LossInputs,
    OptimizerStep,
    Step,
    loss,
    objectives,
)
from quintain.learning import learner as learner_module
from quintain.learning.loss import MinibatchLoss
from quintain.learning.scorer import FrozenPolicies
from quintain_algorithms import token_rewards

from .pairs import Row
from .test_covering import ROWS
from .world import FACTORS, algorithm_of, compare

pytestmark = pytest.mark.more

Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """An error: *plant* changes the package, *change* the algorithm. *where* names the rows that it
    could touch.
    """

    plant: Plant = lambda patch: None
    change: Callable[[Algorithm], Algorithm] = lambda algorithm: algorithm
    where: Callable[[Row], bool] = lambda row: True


def function_of(
    kind: str, change: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Callable[..., Algorithm]:
    """Replaces the function of the piece of *kind*."""

    def changed(algorithm: Algorithm) -> Algorithm:
        piece: Piece = getattr(algorithm, kind)
        args = {**piece.parameters, **piece.args}
        mutated = change(lambda *inputs: piece.function(*inputs, **args))
        return algorithm.replace(**{kind: replace(piece, function=mutated, args={})})

    return changed


def of(**values: str) -> Callable[[Row], bool]:
    """Rows with these values; each may be the beginning of one."""
    return lambda row: all(row[name].startswith(value) for name, value in values.items())


def wraps(
    owner: Any, name: str, change: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Plant:
    """Replaces ``owner.name`` by what *change* makes of it."""
    return lambda patch: patch.setattr(owner, name, change(getattr(owner, name)))


def _last_micro_batch_alone(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda step, *args: original(replace(step, parts=step.parts[-1:]), *args)


def _prox_follows_theta(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, positions, logp, *, before_updates: original(
        self, positions, logp, before_updates=True
    )


def _samples_split(original: Callable[..., Any]) -> Callable[..., Any]:
    def minibatches(batch: Batch, count: int, order: Sequence[int]) -> list[list[int]]:
        every = [i for part in original(batch, 1, order) for i in part]
        return [every[k::count] for k in range(count)]

    return minibatches


def _idle_by_last_token(original: Callable[..., Any]) -> Callable[..., Any]:
    def active(
        self: Learner, batch: Batch, part: Sequence[int], advantage: torch.Tensor
    ) -> list[int]:
        ends = set(batch.starts)
        last = torch.tensor([float(n + 1 in ends) for n in range(len(advantage))])
        return list(original(self, batch, part, advantage * last))

    return active


def _over_the_batch(original: Any) -> Any:
    return property(lambda step: (tuple(range(len(step.rewards))),))


def _denominator_of_all(original: Callable[..., Any]) -> Callable[..., Any]:
    """A batch remembers the tokens that were masked, for `_by_all_tokens`."""

    def only(batch: Batch, indices: Sequence[int]) -> Batch:
        kept: Batch = original(batch, indices)
        kept.__dict__["with_masked"] = batch.tokens
        return kept

    return only


def _by_all_tokens(batch: Batch) -> list[float]:
    """The tokens that were masked still count."""
    tokens = batch.__dict__.get("with_masked", batch.tokens)
    return [1 / max(1, tokens)] * len(batch.samples)


MUTANTS: dict[str, Mutant] = {
    "mean over samples": Mutant(
        change=function_of(
            "aggregation", lambda f: lambda batch: [1 / len(batch.samples)] * len(batch.samples)
        ),
        where=of(aggregation="token"),
    ),
    "masked samples stay in the denominator": Mutant(
        plant=wraps(Batch, "only", _denominator_of_all),
        change=function_of("aggregation", lambda f: _by_all_tokens),
        where=of(aggregation="token", mask_truncated="yes"),
    ),
    "truncated samples train": Mutant(
        change=lambda algorithm: algorithm.replace(mask_truncated=False),
        where=of(mask_truncated="yes"),
    ),
    "a whole sample weighs as one token": Mutant(
        plant=wraps(
            LossInputs, "sample_sum", lambda f: lambda t, w: f(t, w) / f(t, torch.ones_like(w))
        ),
        where=of(objective="gspo"),
    ),
    "clip bounds swapped": Mutant(
        plant=wraps(
            objectives,
            "clip_terms",
            lambda f: lambda r, a, low, high, dual: f(r, a, high or low, low, dual),
        ),
        where=of(objective="ppo_clip"),
    ),
    "clip without regard to the sign of the advantage": Mutant(
        plant=wraps(
            objectives,
            "clip_terms",
            lambda f: lambda r, a, low, high, dual: f(r, a.abs(), low, high, dual),
        ),
        where=of(objective="ppo"),
    ),
    "KL in the loss with the other sign": Mutant(
        plant=wraps(loss, "kl_terms", lambda f: lambda t, kl: -f(t, kl)), where=of(kl="loss")
    ),
    "KL in the reward with the other sign": Mutant(
        plant=wraps(learner_module, "kl_estimate", lambda f: lambda d, k: -f(d, k)),
        where=of(kl="reward"),
    ),
    "k3 of the other direction": Mutant(
        plant=wraps(
            loss,
            "kl_terms",
            lambda f: lambda t, kl: f(replace(t, ref_logp=2 * t.logp - t.ref_logp), kl),
        ),
        where=of(kl="loss-k3"),
    ),
    "correction left out": Mutant(
        change=function_of("correction", lambda f: lambda t: torch.ones_like(f(t))),
        where=of(correction="mis"),
    ),
    "correction of mu / prox": Mutant(
        plant=wraps(LossInputs, "mismatch", lambda f: lambda t, pool="token": 1 / f(t, pool)),
        where=of(correction="tis"),
    ),
    "ratio to prox for mu": Mutant(
        change=lambda algorithm: algorithm.replace(ratio_to="prox"),
        where=of(ratio_to="mu", objective="importance"),
    ),
    "prox follows theta": Mutant(
        plant=wraps(FrozenPolicies, "keep_prox", _prox_follows_theta),
        where=of(objective="importance", ratio_to="prox"),
    ),
    "gradient through the weight": Mutant(
        change=function_of(
            "objective", lambda f: lambda t: -t.ratio().clamp(max=1.2) * t.advantage * t.logp
        ),
        where=of(objective="cispo"),
    ),
    "standard deviation with ddof 1": Mutant(
        change=lambda algorithm: algorithm.replace(advantage={"ddof": 1}),
        where=of(advantage="group_norm"),
    ),
    "baseline over the batch": Mutant(
        plant=wraps(Step, "groups", _over_the_batch), where=of(advantage="group_mean")
    ),
    "turn scores ignored": Mutant(
        plant=wraps(
            token_rewards, "turn_rewards", lambda f: lambda s, r: f(replace(s, turn_scores=()), r)
        ),
        where=of(advantage="reinforce_pp"),
    ),
    "overlong reward instead of punishment": Mutant(
        plant=wraps(learner_module, "overlong", lambda f: lambda *args: -f(*args)),
        where=of(overlong="0.5"),
    ),
    "last micro-batch alone": Mutant(
        plant=wraps(OptimizerStep, "accumulate", _last_micro_batch_alone),
        where=of(micro_batches="many"),
    ),
    "minibatches split groups": Mutant(
        plant=wraps(Batch, "minibatches", _samples_split),
        where=of(updates="1x2", aggregation="prompt"),
    ),
    "optimizer never reset": Mutant(
        change=lambda algorithm: algorithm.replace(reset_optimizer=False),
        where=of(reset_optimizer="yes"),
    ),
    "idle by the last token": Mutant(
        plant=wraps(Learner, "_active", _idle_by_last_token),
        where=of(advantage="optimal_token", skip_idle="yes"),
    ),
    "vocabulary pruned again in each pass": Mutant(
        plant=wraps(
            MinibatchLoss,
            "_statistics",
            lambda f: lambda *inputs, freeze: f(*inputs, freeze=True),
        ),
        where=of(prune="0.02"),
    ),
    "one epoch": Mutant(
        change=lambda algorithm: algorithm.replace(epochs=1), where=of(updates="2x1")
    ),
    "group of one trains": Mutant(
        change=lambda algorithm: algorithm.replace(group_filter={"samples": 1}),
        where=of(group_filter="minimum-2", aggregation="sequence"),
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_an_error_is_noticed(name: str, monkeypatch: Patch) -> None:
    """At most a few rows of those that it touches pass."""
    mutant = MUTANTS[name]
    rows = [row for row in ROWS if row["optimizer_step"] == "adamw" and mutant.where(row)]
    assert rows
    with monkeypatch.context() as patch:
        mutant.plant(patch)
        for passed, row in enumerate(rows):
            try:
                compare(row, mutant.change(algorithm_of(row)))
            except AssertionError:
                assert passed < 6
                return
    raise AssertionError(f"{name}: {len(rows)} rows do not notice it")


PIECES = [
    (kind, name)
    for kind in ("advantage", "objective", "correction", "aggregation")
    for name in FACTORS[kind]
    if name != "none"
]


def a_little_more(found: Any) -> Any:
    """What a piece returned, times 1.001; of pairs, with metrics or a state, the first."""
    if isinstance(found, tuple):
        return (a_little_more(found[0]), *found[1:])
    return found * 1.001 if isinstance(found, torch.Tensor) else [value * 1.001 for value in found]


@pytest.mark.parametrize(("kind", "name"), PIECES)
def test_each_piece_is_felt(kind: str, name: str) -> None:
    """A thousandth more of what it returns is noticed in the first row that has it."""
    row = next(row for row in ROWS if row[kind] == name and row["optimizer_step"] == "adamw")
    algorithm = algorithm_of(row)
    piece: Piece = getattr(algorithm, kind)
    function = piece.function

    @functools.wraps(function)
    def more(*inputs: Any, **args: Any) -> Any:
        return a_little_more(function(*inputs, **args))

    @functools.wraps(function)
    async def awaited(*inputs: Any, **args: Any) -> Any:
        return a_little_more(await function(*inputs, **args))

    changed = replace(piece, function=awaited if piece.asynchronous else more)
    with pytest.raises(AssertionError):
        compare(row, algorithm.replace(**{kind: changed}))
