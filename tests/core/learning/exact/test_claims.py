"""What the expected update of each algorithm is, on-policy, by enumeration: the true gradient of
the expected reward, a known multiple of it, the gradient of another objective, or something else
(then how far from it, on a fixed example).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest

from quintain.interfaces.algorithm import KL, Algorithm, GroupStats
from quintain.learning.pieces.group_filter import varied

from ..algorithms import INSTALLED
from .bench import Bench, Package, pruned, tables
from .methods import PAIRS
from .policies import Array, Path, Tree, log_softmax, multisets

TREE = Tree(vocab=3, longest=2)
LONGEST = TREE.longest
REWARDS = (0.1, 0.9, 0.0, 1.0, 0.1, 0.0, 0.9)
RIGHT = (0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0)
"""An outcome of 0 or 1 per reply."""


@cache
def bench(
    size: int = 3,
    *,
    on_policy: bool = True,
    prune: float = 0.0,
    rewards: tuple[float, ...] = REWARDS,
    seed: int = 3,
) -> Bench:
    """One group of one-turn samples; on-policy theta, prox and mu are one, and ref is elsewhere."""
    logits = tables(TREE, 1, apart=0.7, seed=seed)
    if on_policy:
        logits |= {"theta": logits["prox"], "mu": logits["prox"]}
    return Bench(
        tree=TREE, sizes=(size,), logits=logits, rewards=(rewards,), plain=True, prune=prune
    )


def update(algorithm: Algorithm, held: Bench) -> Array:
    """Against the gradient of the loss."""
    return -Package(algorithm, held).expected()


def along(held: Bench, values: Array, policy: str = "theta") -> Array:
    """sum over replies of their probability under a policy, times *values*, times grad log theta of
    the reply.
    """
    logits = pruned(held.logits[policy], held.prune)
    logp, prob = log_softmax(logits), np.exp(log_softmax(pruned(held.logits["theta"], held.prune)))
    out = np.zeros_like(prob)
    for path, value in zip(held.paths[0], values, strict=True):
        weight = value * np.exp(
            sum(logp[at, token] for at, token in zip(path.at, path.ids, strict=True))
        )
        for at, token in zip(path.at, path.ids, strict=True):
            out[at] -= weight * prob[at]
            out[at, token] += weight
    return out


def truth(held: Bench) -> Array:
    """Gradient of the expected reward."""
    return along(held, np.array(held.rewards[0]))


def cosine(a: Array, b: Array) -> float:
    return float((a * b).sum() / np.linalg.norm(a) / np.linalg.norm(b))


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The expected update on-policy, in groups of G, is *multiple* (of G) times the true gradient;
    or it is biased, and *cosine* is that with the true gradient on the example here.
    """

    multiple: Callable[[int], float] | None = None
    cosine: float | None = None
    why: str = ""


def unbiased(why: str = "", scale: float = 1 / LONGEST) -> Claim:
    return Claim(multiple=lambda size: scale, why=why)


def own_mean(why: str, scale: float = 1 / LONGEST) -> Claim:
    return Claim(multiple=lambda size: scale * (size - 1) / size, why=why)


def biased(cosine: float, why: str) -> Claim:
    return Claim(cosine=cosine, why=why)


CLAIMS = {
    "rloo": unbiased("the mean of the others is independent of the sample"),
    "raw": unbiased("no baseline"),
    "ema": unbiased("the baseline is from earlier batches"),
    "greedy": unbiased("the greedy answer depends on no sample"),
    "turn_level": unbiased(
        "the mean of the others is independent of the sample; one turn here, several below"
    ),
    "trm": unbiased("nothing is masked on-policy"),
    "dvp": unbiased("of the pruned policy, its vocabulary held fixed"),
    "dvp-coarse": unbiased("of the pruned policy, its vocabulary held fixed"),
    "reinforce": own_mean("the mean holds the sample itself"),
    "group_mean": own_mean("the mean holds the sample itself"),
    "dr_grpo": own_mean("the mean holds the sample itself; every ratio is 1"),
    "dppo": own_mean("the mean holds the sample itself; nothing moved yet"),
    "kimi": own_mean("the mean holds the sample itself; d = 0; no division by a length", scale=1.0),
    "grpo": biased(0.976, "divided by the spread of the group and the length of the sample"),
    "dapo": biased(
        0.345, "divided by the spread of the group and the tokens of the batch; punished for length"
    ),
    "cispo": biased(
        0.345, "divided by the spread of the group and the tokens of the batch; punished for length"
    ),
    "gspo": biased(0.976, "divided by the spread of the group and the length of the sample"),
    "olmorl": biased(0.998, "divided by the tokens of the batch"),
    "scalerl": biased(0.987, "divided by the spread of the batch and the tokens of the group"),
    "reinforce_pp": biased(0.985, "whitened over the tokens of the batch"),
    "reinforce_pp_baseline": biased(0.985, "whitened over the tokens of the batch"),
    "otb": biased(0.983, "the baseline holds the sample itself; see below for 1 / G"),
    "maxrl": biased(0.986, "an objective of its own; see below"),
    "sft": biased(-0.451, "reads no reward; see below"),
}


def test_every_algorithm_claims_something() -> None:
    assert set(INSTALLED) <= set(CLAIMS)


@pytest.mark.keeps("rloo", "grpo", "turn_level")
@pytest.mark.parametrize("name", CLAIMS)
def test_expected_update_on_policy(name: str) -> None:
    claim = CLAIMS[name]
    algorithm = PAIRS[name][0].replace(kl=KL())
    for size in (3,) if claim.multiple is None else (2, 3):
        held = bench(size, prune=algorithm.prune)
        got, want = update(algorithm, held), truth(held)
        if claim.multiple is None:
            assert cosine(got, want) == pytest.approx(claim.cosine, abs=1e-3), claim.why
        else:
            np.testing.assert_allclose(
                got, claim.multiple(size) * want, rtol=0, atol=1e-12, err_msg=claim.why
            )


@pytest.mark.keeps("success-2", "centred-2")
@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("form", ["success", "centred"])
def test_maxrl_climbs_a_truncated_logarithm(form: str, size: int) -> None:
    """log p = -sum_k (1 - p)^k / k; the first G terms have the gradient (1 - (1 - p)^G) / p grad p.
    Centred: G - 1.
    """
    held = bench(size, rewards=RIGHT)
    p = sum(
        probability * right for probability, right in zip(held.probabilities(0), RIGHT, strict=True)
    )
    terms = size if form == "success" else size - 1
    slope = sum((1 - p) ** (k - 1) for k in range(1, terms + 1))
    assert slope == pytest.approx((1 - (1 - p) ** terms) / p)
    got = update(INSTALLED["maxrl"].replace(advantage={"form": form}), held)
    np.testing.assert_allclose(got, slope * truth(held) / LONGEST, rtol=0, atol=1e-12)


@pytest.mark.more
def test_optimal_token_baseline_has_a_bias_of_one_over_the_group() -> None:
    """What is missing from the true gradient halves, about, where the group doubles."""
    missing = []
    for size in (2, 4):
        held = bench(size)
        missing.append(
            np.linalg.norm(update(INSTALLED["otb"], held) * LONGEST - truth(held))
            / np.linalg.norm(truth(held))
        )
    assert missing[0] < 0.7
    assert 0.4 < missing[1] / missing[0] < 0.65


class Turns(Bench):
    """Each token is a turn; the score of a turn depends on the tokens up to its own."""

    def _path(self, task: int, i: int) -> Path:
        reply = self.tree.replies[i]
        scores = tuple(
            float(np.random.default_rng((*reply[: k + 1], 7)).normal()) for k in range(len(reply))
        )
        at = self.tree.path(reply, task)
        return Path(at=at, ids=reply, outcome=sum(scores), turns=(1,) * len(reply), scores=scores)


@pytest.mark.keeps("0.5")
@pytest.mark.parametrize("gamma", [1.0, 0.5, 0.0])
def test_turn_level_climbs_the_discounted_return_of_each_turn(gamma: float) -> None:
    """The expected update is sum_k E[G_k grad log theta(turn k)]: without a discount, the true
    gradient. The mean that holds the sample itself scales each turn by what others reach it, which
    is no multiple of the true gradient.
    """
    tree = Tree(vocab=3, longest=3)
    logits = tables(tree, 1, apart=0.0, seed=3)
    held = Turns(tree=tree, sizes=(2,), logits=logits)
    algorithm = INSTALLED["rloo"].replace(advantage={"use": "turn_level", "gamma": gamma})
    prob, want = np.exp(log_softmax(logits["theta"])), np.zeros_like(logits["theta"])
    for path, chance in zip(held.paths[0], held.probabilities(0), strict=True):
        for k, (at, token) in enumerate(zip(path.at, path.ids, strict=True)):
            gain = chance * sum(gamma ** (j - k) * r for j, r in enumerate(path.scores) if j >= k)
            want[at] -= gain * prob[at]
            want[at, token] += gain
    np.testing.assert_allclose(update(algorithm, held), want / tree.longest, rtol=0, atol=1e-12)
    totals = along(held, np.array([path.outcome for path in held.paths[0]]))
    assert (gamma == 1.0) == bool(np.allclose(want, totals, rtol=0, atol=1e-12))
    own = update(algorithm.replace(advantage={"baseline": "mean"}), held)
    assert 0.9 < cosine(own, want) < 1 - 1e-4


def test_sft_follows_the_sampler_and_no_reward() -> None:
    """Expected update: minus the gradient of the cross-entropy of theta under mu, over the constant
    length.
    """
    algorithm = INSTALLED["sft"].replace(aggregation="constant")
    held = bench(2, on_policy=False)
    np.testing.assert_allclose(
        update(algorithm, held), along(held, np.ones(7), "mu") / LONGEST, rtol=0, atol=1e-12
    )
    np.testing.assert_allclose(update(algorithm, bench(2)), 0, atol=1e-12)
    others = bench(2, on_policy=False, rewards=RIGHT)
    np.testing.assert_array_equal(update(INSTALLED["sft"], held), update(INSTALLED["sft"], others))


# ---------------------------------------------------------------- off-policy


def test_the_ratio_of_whole_samples_repairs_off_policy_data_exactly() -> None:
    """Unclipped and to mu: the true gradient under theta, from samples of mu. With a ratio per
    token only the surrogate's gradient is left, whose direction differs.
    """
    held = bench(2, on_policy=False, seed=6)
    whole = INSTALLED["dr_grpo"].replace(
        advantage="leave_one_out",
        objective={"use": "sequence_clip", "low": 1.0, "high": 1e9},
        aggregation="sequence",
        ratio_to="mu",
    )
    want = truth(held)
    raw = update(whole.replace(advantage="raw"), held)
    np.testing.assert_allclose(raw, want, rtol=0, atol=1e-12)
    # Others' mean is drawn under mu, yet independent: E_mu[ratio grad log theta] = 0.
    np.testing.assert_allclose(update(whole, held), want, rtol=0, atol=1e-12)
    tokens = update(
        whole.replace(advantage="raw", objective="importance", aggregation="constant"), held
    )
    assert cosine(tokens, want) == pytest.approx(0.889, abs=1e-3)
    none = update(INSTALLED["rloo"].replace(advantage="raw"), held)
    assert cosine(none, want) == pytest.approx(0.601, abs=1e-3)


def test_truncated_importance_sampling_repairs_the_mismatch_of_the_sampler() -> None:
    """theta = prox, samples of mu: the weight of whole samples without a cap gives the true
    gradient; a cap costs.
    """
    logits = bench(on_policy=False).logits
    held = Bench(
        tree=TREE,
        sizes=(2,),
        logits=logits | {"theta": logits["prox"]},
        rewards=(REWARDS,),
        plain=True,
    )
    algorithm = INSTALLED["rloo"].replace(
        advantage="raw", correction={"use": "tis_sequence", "cap": 1e9}
    )
    np.testing.assert_allclose(update(algorithm, held), truth(held) / LONGEST, rtol=0, atol=1e-12)
    got = {
        name: cosine(update(algorithm.replace(correction=correction), held), truth(held))
        for name, correction in {
            "none": "none",
            "tis": {"use": "tis", "cap": 2.0},
            "sequence": {"use": "tis_sequence", "cap": 2.0},
        }.items()
    }
    assert got["none"] < got["tis"] < 1
    assert got["none"] < got["sequence"] < 1


# ---------------------------------------------------------------- dynamic sampling


@pytest.mark.keeps("rloo-1.0")
@pytest.mark.parametrize("name, factor", [("rloo", 1.0), ("dr_grpo", 2 / 3)])
def test_dynamic_sampling_is_the_gradient_over_the_chance_of_acceptance(
    name: str, factor: float
) -> None:
    """Rejected groups have advantages of 0, so that conditional on acceptance the update is the
    same, only larger.
    """
    held = bench(3)
    package = Package(INSTALLED[name], held)
    total, accepted = None, 0.0
    for paths, weight in held.batches():
        totals = tuple(path.outcome for path in paths)
        if varied(GroupStats(outcomes=totals, totals=totals, requested=3)):
            continue
        accepted += weight
        part = weight * package.loss(paths)
        total = part if total is None else total + part
    chances: dict[float, float] = {}
    for reward, p in zip(REWARDS, held.probabilities(0), strict=True):
        chances[reward] = chances.get(reward, 0.0) + p
    assert accepted == pytest.approx(1 - sum(p**3 for p in chances.values()))
    assert total is not None
    got = -package.gradient(total) / accepted
    np.testing.assert_allclose(got, factor * truth(held) / LONGEST / accepted, rtol=0, atol=1e-12)


# ---------------------------------------------------------------- KL


@cache
def divergences() -> dict[str, Array]:
    """Gradients by the logits of theta, on-policy, in NumPy: of KL(theta || ref) of whole samples;
    and, with the chances of contexts held fixed ("prefix"), of the reverse KL, the forward KL and
    E[d^2] / 2 at each context.
    """
    held = bench()
    theta, ref = log_softmax(held.logits["theta"]), log_softmax(held.logits["ref"])
    d = theta - ref
    chance = np.zeros(len(theta))
    for path, p in zip(held.paths[0], held.probabilities(0), strict=True):
        chance[list(path.at)] += p
    whole = np.array(
        [sum(d[at, token] for at, token in zip(p.at, p.ids, strict=True)) for p in held.paths[0]]
    )

    def at_contexts(weights: Array) -> Array:
        """sum over contexts and tokens of their chance, times *weights*, times grad log theta."""
        return chance[:, None] * (weights - weights.sum(1, keepdims=True) * np.exp(theta))

    return {
        "whole": along(held, whole),
        "reverse": at_contexts(np.exp(theta) * d),
        "forward": at_contexts(-np.exp(ref)),
        "second": at_contexts(np.exp(theta) * (d**2 / 2 + d)),
        "k3 of whole": along(held, np.array([_sum_k3(d, p.at, p.ids) for p in held.paths[0]])),
        "k2 of whole": along(
            held,
            np.array(
                [
                    sum(d[a, t] ** 2 / 2 for a, t in zip(p.at, p.ids, strict=True))
                    for p in held.paths[0]
                ]
            ),
        ),
    }


def _sum_k3(d: Array, at: tuple[int, ...], ids: tuple[int, ...]) -> float:
    return float(sum(np.exp(-d[a, t]) - 1 + d[a, t] for a, t in zip(at, ids, strict=True)))


@pytest.mark.parametrize(
    "where, estimator, score, what",
    [
        ("reward", "k1", False, "whole"),
        ("reward", "k2", False, "k2 of whole"),
        ("reward", "k3", False, "k3 of whole"),
        ("loss", "k2", False, "reverse"),
        ("loss", "k3", False, "forward"),
        ("loss", "k1", True, "reverse"),
        ("loss", "k2", True, "second"),
        ("loss", "k3", True, "reverse"),
    ],
)
def test_whose_gradient_each_kl_estimate_is(
    where: str, estimator: str, score: bool, what: str
) -> None:
    """k1 in the reward: the KL of whole samples, exactly. In the loss the chances of contexts are
    not differentiated: k2, and k1 or k3 with the score factor, give the reverse KL per context, k3
    alone the forward KL.
    """
    held = bench(2, rewards=(0.0,) * 7)
    kl = KL(where=where, estimator=estimator, coefficient=1.0, score_factor=score)  # type: ignore[arg-type]
    got = -update(INSTALLED["rloo"].replace(kl=kl), held) * LONGEST
    np.testing.assert_allclose(got, divergences()[what], rtol=0, atol=1e-12)


def test_the_kl_gradients_differ() -> None:
    """So that the test above tells them apart. k3 in the reward lacks the forward KL of what k1
    there gives.
    """
    found = divergences()
    names = list(found)
    for i, a in enumerate(names):
        for b in names[:i]:
            assert np.abs(found[a] - found[b]).max() > 1e-3, (a, b)
    np.testing.assert_allclose(
        found["k3 of whole"], found["whole"] - found["forward"], rtol=0, atol=1e-12
    )
    np.testing.assert_allclose(
        found["k2 of whole"] + found["reverse"], _gradient_of_mean_square(), rtol=0, atol=1e-6
    )


def _gradient_of_mean_square() -> Array:
    """Of E[sum_t d_t^2 / 2] over whole samples, by central differences."""
    held, step = bench(), 1e-5
    ref, base = log_softmax(held.logits["ref"]), held.logits["theta"]

    def value(logits: Array) -> float:
        logp = log_softmax(logits)
        rows = [(list(path.at), list(path.ids)) for path in held.paths[0]]
        return float(
            sum(
                np.exp(logp[r].sum()) * ((logp[r] - ref[r]) ** 2).sum() / 2
                for r in map(tuple, rows)
            )
        )

    out = np.zeros_like(base)
    for at in np.ndindex(base.shape):
        up, down = base.copy(), base.copy()
        up[at] += step
        down[at] -= step
        out[at] = (value(up) - value(down)) / (2 * step)
    return out


def test_k1_in_the_loss_has_no_gradient() -> None:
    """Why it is refused: with the coefficient around the refusal, its expected gradient is 0."""
    kl = KL(where="loss", estimator="k1", coefficient=1.0, score_factor=True)
    object.__setattr__(kl, "score_factor", False)
    got = update(INSTALLED["rloo"].replace(kl=kl), bench(2, rewards=(0.0,) * 7))
    np.testing.assert_allclose(got, 0, atol=1e-12)


# ---------------------------------------------------------------- pruning


def test_pruned_policy_is_what_both_sides_mean() -> None:
    """mu's samples never leave mu's vocabulary; the update has no slope towards tokens outside
    prox's.
    """
    held = bench(2, prune=0.3)
    out = pruned(held.logits["mu"], 0.3) == -np.inf
    assert 0.1 < out.mean() < 0.7
    assert all(
        np.isfinite(held.samples[path].sequences[0].logps).all() or p == 0
        for path, p in _chances(held)
    )
    got = update(INSTALLED["dvp"].replace(prune=0.3), held)
    assert not got[out].any()
    assert np.abs(got).max() > 1e-3
    assert sum(p for _, p in _chances(held)) == pytest.approx(1)


def _chances(held: Bench) -> list[tuple[object, float]]:
    return list(zip(held.paths[0], held.probabilities(0), strict=True))


def test_multisets_are_a_distribution() -> None:
    assert sum(weight for _, weight in multisets([0.2, 0.3, 0.5], 4)) == pytest.approx(1)
