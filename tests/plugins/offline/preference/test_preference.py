"""Winners and pairs: closed forms in NumPy, degenerate groups, and the real path against plain
forward passes.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from quintain.errors import UsageError
from quintain.interfaces.algorithm import Algorithm
from quintain.learning import ALGORITHMS, SPREAD_TOLERANCE, Batch, Learner, LossInputs, Sample
from quintain.learning.loss import weighted_loss
from quintain.learning.pieces.advantages import Step
from quintain.registry.lookup import current
from quintain.registry.pieces import find
from quintain_offline.preference import DPO, DPO_NORM, KTO, RFT, SIMPO, dpo, winners
from quintain_offline.preference.pairs import ranked

from ....core.learning import batches
from ....core.learning.exact.closed_form import Array
from ....core.learning.exact.test_transformer import model as transformer

VARIANTS = {algorithm.name: algorithm for algorithm in (DPO, DPO_NORM, SIMPO)}
PAIRS = ("all", "best_worst")
DEGENERATE = [[0.7, 0.7, 0.7], [1.0], [0.1 + 0.2, 0.3], [0.0, 0.0]]
"""Groups without a pair: all equal, a single sample, equal but for rounding."""
GROUPS = [[1.0, 0.0, 0.0, 1.0], [0.3, 0.9, 0.3], *DEGENERATE, [0.0, 0.25, 0.5, 1.0]]


# ---- a batch and its terms -----------------------------------------------------------------------


def batch_of(groups: Sequence[Sequence[float]], seed: int = 0) -> Batch:
    """Groups of ragged answers with these rewards."""
    draw = np.random.default_rng(seed)
    samples = []
    for group, rewards in enumerate(groups):
        for reward in rewards:
            reply = draw.integers(0, 3, size=draw.integers(1, 6)).tolist()
            samples.append(
                Sample(sequences=(batches.sequence([1, 0], reply),), outcome=reward, group=group)
            )
    return Batch(samples=tuple(samples))


def terms_of(
    algorithm: Algorithm, batch: Batch, logp: Tensor, ref: Tensor
) -> tuple[LossInputs, Tensor]:
    """What the objective sees, and the weight of each token."""
    owner = torch.tensor([i for i, s in enumerate(batch.samples) for _ in range(s.tokens)])
    advantages = algorithm.advantage(
        Step(batch=batch, rewards=tuple(s.total for s in batch.samples))
    )
    terms = LossInputs(
        logp=logp,
        mu_logp=logp.detach(),
        prox_logp=logp.detach(),
        ref_logp=ref if algorithm.uses_reference else None,
        advantage=torch.tensor(advantages, dtype=torch.float64)[owner],
        entropy=torch.zeros_like(ref),
        sample=owner,
        group=torch.tensor([s.group for s in batch.samples]),
    )
    return terms, torch.tensor(algorithm.aggregation(batch), dtype=torch.float64)[owner]


def drawn(batch: Batch, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Log-probs under theta and ref."""
    draw = np.random.default_rng(seed)
    theta, ref = (-draw.exponential(size=batch.tokens) for _ in range(2))
    return torch.tensor(theta, requires_grad=True), torch.tensor(ref)


def preferred(rewards: Sequence[float], pairs: str) -> list[tuple[int, int]]:
    """Pairs of positions, the better first."""
    if max(rewards) - min(rewards) <= 1e-6:
        return []
    if pairs == "best_worst":
        return [(rewards.index(max(rewards)), rewards.index(min(rewards)))]
    return [(i, j) for i, a in enumerate(rewards) for j, b in enumerate(rewards) if a - b > 1e-6]


def closed_form(
    name: str,
    groups: Sequence[Sequence[float]],
    theta: Array,
    ref: Array,
    lengths: Sequence[int],
    pairs: str,
) -> tuple[float, Array]:
    """Loss and its gradient with respect to theta's log-probs, each group weighing 1 / (number of
    groups).
    """
    starts = np.concatenate([[0], np.cumsum(lengths)])
    beta, gamma = {"dpo": (0.1, 0.0), "dpo_norm": (5.0, 0.0), "simpo": (2.0, 1.0)}[name]
    over = theta if name == "simpo" else theta - ref
    loss, gradient, first = 0.0, np.zeros_like(theta), 0
    for rewards in groups:
        chosen = preferred(rewards, pairs)
        for winner, loser in chosen:
            spans = [slice(starts[first + i], starts[first + i + 1]) for i in (winner, loser)]
            shares = [1.0 if name == "dpo" else 1 / (s.stop - s.start) for s in spans]
            margin = (
                beta * (shares[0] * over[spans[0]].sum() - shares[1] * over[spans[1]].sum()) - gamma
            )
            weight = 1 / len(chosen) / len(groups)
            loss += weight * math.log1p(math.exp(-margin))
            slope = -weight * beta / (1 + math.exp(margin))
            gradient[spans[0]] += slope * shares[0]
            gradient[spans[1]] -= slope * shares[1]
        first += len(rewards)
    return loss, gradient


# ---- pairs ---------------------------------------------------------------------------------------


@pytest.mark.keeps("0-dpo-all", "1-simpo-best_worst")
@pytest.mark.parametrize("pairs", PAIRS)
@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("seed", range(4))
def test_value_and_gradient_equal_the_closed_form(name: str, pairs: str, seed: int) -> None:
    """Groups of several sizes, with ties, and some without pairs, which count in the
    denominator.
    """
    algorithm = VARIANTS[name].replace(objective={"pairs": pairs})
    batch = batch_of(GROUPS, seed)
    theta, ref = drawn(batch, seed)
    found = weighted_loss(algorithm, *terms_of(algorithm, batch, theta, ref))
    found.loss.backward()
    lengths = [s.tokens for s in batch.samples]
    loss, gradient = closed_form(name, GROUPS, theta.detach().numpy(), ref.numpy(), lengths, pairs)
    assert float(found.loss.detach()) == pytest.approx(loss, abs=1e-12)
    assert theta.grad is not None
    np.testing.assert_allclose(theta.grad.numpy(), gradient, rtol=0, atol=1e-12)
    assert np.abs(gradient).max() > 1e-3


def test_one_pair_by_hand() -> None:
    """Answers of 2 tokens and 1: sums of log-ratios 1.0 and -0.5; means 0.5 and -0.5; mean
    log-probs -1 and -2.
    """
    batch = Batch(
        samples=tuple(
            Sample(sequences=(batches.sequence([0], reply),), outcome=reward, group=0)
            for reply, reward in (([0, 0], 1.0), ([0], 0.0))
        )
    )
    theta = torch.tensor([-0.5, -1.5, -2.0], dtype=torch.float64)
    ref = torch.tensor([-1.0, -2.0, -1.5], dtype=torch.float64)
    for row, want in (
        (DPO, math.log1p(math.exp(-0.1 * 1.5))),
        (DPO_NORM, math.log1p(math.exp(-5 * 1.0))),
        (SIMPO, math.log1p(math.exp(-(2 * 1.0 - 1.0)))),
    ):
        found = weighted_loss(row, *terms_of(row, batch, theta, ref))
        assert float(found.loss) == pytest.approx(want, abs=1e-12), row.name
    told = weighted_loss(DPO, *terms_of(DPO, batch, theta, ref)).diagnostics
    assert told["pairs"].tolist() == [1]
    assert told["pair_margin"].tolist() == pytest.approx([0.15])
    assert told["pair_accuracy"].tolist() == [True]


@pytest.mark.keeps("rewards0-dpo-all", "rewards1-simpo-best_worst")
@pytest.mark.parametrize("pairs", PAIRS)
@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("rewards", DEGENERATE)
def test_groups_without_pairs_give_exactly_nothing(
    name: str, pairs: str, rewards: list[float]
) -> None:
    """Not a small number: 0."""
    algorithm = VARIANTS[name].replace(objective={"pairs": pairs})
    batch = batch_of([rewards, rewards])
    theta, ref = drawn(batch)
    found = weighted_loss(algorithm, *terms_of(algorithm, batch, theta, ref))
    found.loss.backward()
    assert float(found.loss.detach()) == 0
    assert theta.grad is not None
    assert not theta.grad.any()
    assert all(x.isfinite().all() for x in found.diagnostics.values())


@pytest.mark.parametrize("name", VARIANTS)
def test_only_the_order_of_rewards_matters(name: str) -> None:
    """A monotone change of the rewards, or another advantage that keeps their order, changes
    nothing.
    """
    algorithm = VARIANTS[name]
    batch = batch_of(GROUPS)
    theta, ref = drawn(batch)
    want = float(weighted_loss(algorithm, *terms_of(algorithm, batch, theta, ref)).loss.detach())
    other = replace(
        batch, samples=tuple(replace(s, outcome=math.exp(3 * s.outcome)) for s in batch.samples)
    )
    assert float(
        weighted_loss(algorithm, *terms_of(algorithm, other, theta, ref)).loss.detach()
    ) == pytest.approx(want, abs=1e-12)
    raw = algorithm.replace(advantage="raw")
    assert float(
        weighted_loss(raw, *terms_of(raw, batch, theta, ref)).loss.detach()
    ) == pytest.approx(want, abs=1e-12)


def test_what_a_group_weighs() -> None:
    """`prompt` lets every group weigh 1 / P; `sequence` samples / samples, which differs where
    sizes do.
    """
    batch = batch_of([[1.0, 0.0], [1.0, 0.0, 0.0, 0.0]])
    theta, ref = drawn(batch)
    alone = []
    for group in (0, 1):
        part = batch.only(batch.groups[group])
        part = replace(part, samples=tuple(replace(s, group=0) for s in part.samples))
        owners = [s.group for s in batch.samples for _ in range(s.tokens)]
        places = [k for k, owner in enumerate(owners) if owner == group]
        alone.append(
            float(
                weighted_loss(DPO, *terms_of(DPO, part, theta[places], ref[places])).loss.detach()
            )
        )
    both = {name: DPO.replace(aggregation=name) for name in ("prompt", "sequence")}
    loss = {
        name: float(weighted_loss(row, *terms_of(row, batch, theta, ref)).loss.detach())
        for name, row in both.items()
    }
    assert loss["prompt"] == pytest.approx(alone[0] / 2 + alone[1] / 2, abs=1e-12)
    assert loss["sequence"] == pytest.approx(alone[0] / 3 + alone[1] * 2 / 3, abs=1e-12)


def test_best_and_worst_are_the_first_of_their_reward() -> None:
    batch = batch_of([[0.5, 1.0, 0.0, 1.0, 0.0], [2.0, 2.0], [0.0, 3.0]])
    terms, _ = terms_of(DPO, batch, *drawn(batch))
    winner, loser = ranked(terms, "best_worst", 1e-6)
    assert winner.tolist() == [1, 8]
    assert loser.tolist() == [2, 7]
    with pytest.raises(UsageError, match="expected 'all' or 'best_worst'"):
        ranked(terms, "random", 1e-6)  # type: ignore[arg-type]


def test_rewards_within_the_tolerance_are_no_pair() -> None:
    """Of three rewards two are equal but for rounding: their order is noise."""
    batch = batch_of([[0.3, 0.1 + 0.2, 1.0]])
    terms, _ = terms_of(DPO, batch, *drawn(batch))
    winner, loser = ranked(terms, "all", 1e-6)
    assert sorted(zip(winner.tolist(), loser.tolist(), strict=True)) == [(2, 0), (2, 1)]


@pytest.mark.parametrize(
    ("offset", "scale"), [(1e7, 1.0), (-2.5e6, 1.0), (1.7e9, 60.0), (0.0, 1e-9)]
)
def test_rewards_of_any_offset_and_scale_are_ranked(offset: float, scale: float) -> None:
    rewards = [[offset + scale * r for r in (0.0, 1.0, 1.0, 4.0)]]
    batch = batch_of(rewards)
    terms, _ = terms_of(DPO, batch, *drawn(batch))
    winner, loser = ranked(terms, "all", SPREAD_TOLERANCE)

    assert sorted(zip(winner.tolist(), loser.tolist(), strict=True)) == [
        (1, 0),
        (2, 0),
        (3, 0),
        (3, 1),
        (3, 2),
    ]


def test_algorithms_and_pieces_are_found_by_name_and_bad_pairs_refused() -> None:
    for algorithm in (RFT, DPO, DPO_NORM, SIMPO):
        assert current().load("algorithm", algorithm.name) is algorithm
    assert find("objective", "dpo") is dpo
    assert find("advantage", "winners") is winners
    assert (
        ALGORITHMS["reinforce"].replace(advantage="winners", aggregation="winners").aggregation
        is RFT.aggregation
    )
    assert DPO.uses_reference
    assert DPO_NORM.uses_reference
    assert not SIMPO.uses_reference
    assert not RFT.uses_reference
    with pytest.raises(UsageError, match="one term per group"):
        DPO.replace(correction="tis")


# ---- winners -------------------------------------------------------------------------------------


def tallied(
    outcomes: Sequence[float], shaping: Sequence[float] = (), replies: Sequence[str] = ()
) -> Batch:
    """A group with these outcomes; equal *replies* are equal tokens."""
    words = replies or [str(i) for i in range(len(outcomes))]
    extra = shaping or [0.0] * len(outcomes)
    rows = [
        batches.sequence([9], list(word.encode()) * (i + 1 if not replies else 1))
        for i, word in enumerate(words)
    ]
    samples = (
        Sample(sequences=(row,), outcome=v, shaping=s, group=0)
        for row, v, s in zip(rows, outcomes, extra, strict=True)
    )
    return Batch(samples=tuple(samples))


@pytest.mark.parametrize(
    "options, batch, want",
    [
        ({}, tallied([1, 0, 1, 0.5]), [1, 0, 1, 0]),
        ({}, tallied([0.1 * 3 + 0.7 - 1e-12, 0.99]), [1, 0]),
        ({}, tallied([0, 0]), [0, 0]),
        ({"success": 0.5}, tallied([1, 0, 0.5]), [1, 0, 1]),
        ({"best": 1}, tallied([1, 1, 0], [0.0, 0.2, 5.0]), [0, 1, 0]),
        ({"best": 2}, tallied([1, 1, 1]), [1, 1, 0]),
        ({"best": 1, "success": -math.inf}, tallied([-2, -1, -1]), [0, 1, 0]),
        ({"dedupe": True}, tallied([1, 1, 0, 1], replies=["a", "a", "b", "c"]), [1, 0, 0, 1]),
        ({"dedupe": True, "best": 2}, tallied([1, 1, 1], [0, 9, 0], ["a", "a", "b"]), [1, 0, 1]),
        ({"dedupe": True}, tallied([0, 1], replies=["a", "a"]), [0, 1]),
    ],
)
def test_winners(options: dict[str, Any], batch: Batch, want: list[int]) -> None:
    algorithm = RFT.replace(advantage=options, aggregation=options)
    assert algorithm.advantage(Step(batch=batch, rewards=(0.0,) * len(batch.samples))) == want
    weights = algorithm.aggregation(batch)
    assert [w > 0 for w in weights] == [w > 0 for w in want]
    total = sum(w * s.tokens for w, s in zip(weights, batch.samples, strict=True))
    assert total == pytest.approx(1.0 if any(want) else 0.0)


def test_best_is_at_least_one() -> None:
    with pytest.raises(UsageError, match="best is 0"):
        winners(Step(batch=tallied([1.0]), rewards=(1.0,)), best=0)


def random_batch(seed: int = 5) -> Batch:
    return batches.batch(groups=4, group_size=4, vocab=3, seed=seed, longest=5)


def learned(algorithm: Algorithm | None, module: Any, **options: Any) -> Learner:
    return Learner(copy.deepcopy(module), algorithm, lr=0.0, max_grad_norm=0.0, **options)


def gradient(learner: Learner) -> Array:
    return torch.cat([p.grad.flatten() for p in learner.module.parameters()]).numpy().copy()


def test_rft_is_supervised_training_on_the_winners() -> None:
    """The same gradient, to rounding; the losers count nowhere."""
    module, batch = transformer(0), random_batch()
    won = [s for s in batch.samples if s.outcome == 1]
    assert 0 < len(won) < len(batch.samples)
    reinforced, supervised = learned(RFT, module), learned(None, module)
    reinforced.step(batch)
    supervised.supervised_step([s.sequences[0] for s in won])
    np.testing.assert_allclose(gradient(reinforced), gradient(supervised), rtol=0, atol=1e-12)


def test_rft_is_reinforce_without_a_baseline() -> None:
    """Rewards are 0 or 1: divided by a constant, both are the same update, hence the same
    expectation.
    """
    module, batch = transformer(0), random_batch()
    both = [
        learned(algorithm, module)
        for algorithm in (
            RFT.replace(aggregation="constant"),
            ALGORITHMS["reinforce"].replace(advantage="raw"),
        )
    ]
    for learner in both:
        learner.step(batch)
    np.testing.assert_array_equal(*map(gradient, both))


def test_without_winners_nothing_moves() -> None:
    module = transformer(0)
    batch = replace(
        random_batch(), samples=tuple(replace(s, outcome=0.5) for s in random_batch().samples)
    )
    learner = Learner(copy.deepcopy(module), RFT, lr=1.0)
    metrics = learner.step(batch)
    assert metrics["idle"] == 1
    assert metrics["updates"] == 0
    for before, after in zip(module.parameters(), learner.module.parameters(), strict=True):
        assert torch.equal(before, after)


# ---- the real path -------------------------------------------------------------------------------


def plain_logps(module: Any, sample: Sample, temperature: float) -> Tensor:
    """Log-probs of a sample's trained tokens by one plain forward pass."""
    (row,) = sample.sequences
    logits = module(input_ids=torch.tensor([row.ids])).logits[0] / temperature
    return torch.stack(
        [logits[k - 1].log_softmax(-1)[row.ids[k]] for k, trains in enumerate(row.mask) if trains]
    )


def plain_loss(name: str, module: Any, reference: Any, batch: Batch) -> Tensor:
    """As the papers write it, pair by pair."""
    sigmoid = torch.nn.functional.logsigmoid
    loss = torch.zeros((), dtype=torch.float64)
    for indices in batch.groups:
        held = [batch.samples[i] for i in indices]
        theta = [plain_logps(module, s, batch.temperature) for s in held]
        with torch.no_grad():
            ref = [plain_logps(reference, s, batch.temperature) for s in held]
        chosen = preferred([s.outcome for s in held], "all")
        for w, x in chosen:
            if name == "dpo":
                part = sigmoid(0.1 * ((theta[w] - ref[w]).sum() - (theta[x] - ref[x]).sum()))
            elif name == "dpo_norm":
                part = sigmoid(5 * ((theta[w] - ref[w]).mean() - (theta[x] - ref[x]).mean()))
            else:
                part = sigmoid(2 * (theta[w].mean() - theta[x].mean()) - 1)
            loss = loss - part / len(chosen) / len(batch.groups)
    return loss


@pytest.mark.keeps("dpo-{}", "dpo_norm-{'token_budget': 8}")
@pytest.mark.parametrize("options", [{}, {"token_budget": 8}, {"skip_idle": False}], ids=str)
@pytest.mark.parametrize("name", VARIANTS)
def test_a_step_equals_plain_forward_passes(name: str, options: dict[str, Any]) -> None:
    """Through batch, layout, scorer and objective in float64, whatever the micro-batches; one group
    has no pairs.
    """
    module, reference = transformer(0), transformer(2)
    batch = replace(
        batches.batch(groups=3, group_size=4, vocab=3, seed=3, longest=5), temperature=0.8
    )
    rewards = [1.0, 0.0, 0.5, 1.0, 0.0, 0.0, 0.0, 0.0, 0.2, 0.1, 0.2, 0.9]
    batch = replace(
        batch,
        samples=tuple(replace(s, outcome=r) for s, r in zip(batch.samples, rewards, strict=True)),
    )
    learner = learned(VARIANTS[name], module, reference=reference, **options)
    metrics = learner.step(batch)
    loss = plain_loss(name, module, reference, batch)
    want = torch.cat(
        [g.flatten() for g in torch.autograd.grad(loss, list(module.parameters()))]
    ).numpy()
    assert metrics["loss"] == pytest.approx(float(loss.detach()), abs=1e-9)
    np.testing.assert_allclose(gradient(learner), want, rtol=0, atol=1e-9)
    assert 0 <= metrics["objective.pair_accuracy"] <= 1
    pairs = [len(preferred(rewards[k : k + 4], "all")) for k in (0, 4, 8)]
    trained = [p for p in pairs if p] if "skip_idle" not in options else pairs
    assert metrics["objective.pairs"] == pytest.approx(np.mean(trained))


def test_samples_of_reward_0_stay_in_their_group() -> None:
    """`raw` gives them an advantage of exactly 0, which lets no single sample of a group go without
    a pass.
    """
    module, reference = transformer(0), transformer(2)
    batch = batches.batch(groups=2, group_size=4, vocab=3, seed=3, longest=5, rewards=[1.0, 0.0])
    learner = learned(DPO.replace(advantage="raw"), module, reference=reference)
    learner.step(batch)
    loss = plain_loss("dpo", module, reference, batch)
    want = torch.cat(
        [g.flatten() for g in torch.autograd.grad(loss, list(module.parameters()))]
    ).numpy()
    np.testing.assert_allclose(gradient(learner), want, rtol=0, atol=1e-9)


def test_dpo_starts_at_log_two() -> None:
    """theta = ref: every pair costs log 2 and pulls at the two answers with beta / 2."""
    module = transformer(0)
    batch = batches.batch(groups=2, group_size=2, vocab=3, seed=3, longest=5, rewards=[1.0, 0.0])
    metrics = learned(DPO, module).step(batch)
    assert metrics["loss"] == pytest.approx(math.log(2), abs=1e-9)
    assert metrics["objective.pair_margin"] == pytest.approx(0, abs=1e-9)


def test_choices_of_winners_that_would_mislead_are_refused() -> None:
    """When the algorithm is made."""
    for changes, reason in (
        ({"kl": {"where": "reward", "estimator": "k1", "coefficient": 0.1}}, "does nothing"),
        ({"overlong": 0.2}, "does nothing"),
        ({"mask_truncated": True, "advantage": {"best": 1}}, "to the aggregation alone"),
    ):
        with pytest.raises(UsageError, match=reason):
            RFT.replace(**changes)
    assert RFT.replace(mask_truncated=True, aggregation={"best": 1}).mask_truncated


# ---- desirability --------------------------------------------------------------------------------


def kto_form(
    groups: Sequence[Sequence[float]],
    theta: Array,
    ref: Array,
    lengths: Sequence[int],
    beta: float,
    weights: Array,
) -> tuple[float, Array]:
    """Loss and gradient of KTO in NumPy; a value of 0 marks a sample of the reference point
    alone.
    """
    starts = np.concatenate([[0], np.cumsum(lengths)])
    loss, gradient, first = 0.0, np.zeros_like(theta), 0
    for values in groups:
        spans = [slice(starts[first + i], starts[first + i + 1]) for i in range(len(values))]
        h = np.array([(theta[s] - ref[s]).sum() for s in spans])
        alone = [i for i, value in enumerate(values) if value == 0] or list(range(len(values)))
        z = max(0.0, h[alone].mean())
        labelled = [(i, 1 if v > 0 else -1) for i, v in enumerate(values) if v]
        for i, sign in labelled:
            weight = weights[0 if sign > 0 else 1] / len(labelled) / len(groups)
            s = 1 / (1 + math.exp(-beta * sign * (h[i] - z)))
            loss += weight * (1 - s)
            gradient[spans[i]] -= weight * s * (1 - s) * beta * sign
        first += len(values)
    return loss, gradient


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("unlabelled", [False, True])
def test_kto_equals_its_formula(unlabelled: bool, seed: int) -> None:
    """On the policy's own groups, and with answers that only set the reference point; no gradient
    passes through it.
    """
    groups = [[1.0, 0.0, 0.0, 1.0], [1.0, 1.0], [0.0], [0.0, 1.0, 0.5]]
    batch = batch_of(groups, seed)
    algorithm = KTO.replace(objective={"beta": 0.7, "desired": 1.3, "undesired": 0.8})
    theta, ref = drawn(batch, seed)
    terms, weight = terms_of(algorithm, batch, theta, ref)
    signs = [[1.0 if v >= 1 else -1.0 for v in values] for values in groups]
    if unlabelled:
        signs[0][2:], signs[3][1:] = [0.0, 0.0], [0.0, 0.0]
        values = torch.tensor([v for group in signs for v in group], dtype=torch.float64)
        terms = replace(terms, advantage=values[terms.sample])
    found = weighted_loss(algorithm, terms, weight)
    found.loss.backward()

    lengths = [s.tokens for s in batch.samples]
    loss, gradient = kto_form(
        signs, theta.detach().numpy(), ref.numpy(), lengths, 0.7, np.array([1.3, 0.8])
    )
    assert float(found.loss.detach()) == pytest.approx(loss, abs=1e-12)
    assert theta.grad is not None
    np.testing.assert_allclose(theta.grad.numpy(), gradient, rtol=0, atol=1e-12)
    assert np.abs(gradient).max() > 1e-3


def test_kto_labels_follow_the_outcome() -> None:
    """Shaping does not make an answer desirable."""
    batch = tallied([1.0, 0.99, 0.0], [0.0, 5.0, 0.0])
    assert KTO.advantage(Step(batch=batch, rewards=(1.0, 5.99, 0.0))) == [1.0, -1.0, -1.0]
    assert KTO.uses_reference
    assert current().load("algorithm", "kto") is KTO
