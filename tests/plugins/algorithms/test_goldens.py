"""Closed-form values and derivatives for every branch of every clip, cap and mask of core and
`quintain-algorithms`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from quintain.interfaces.pieces import Piece
from quintain.learning import ALGORITHMS, LossInputs
from quintain.learning.loss import weighted_loss
from quintain.registry.pieces import find
from quintain_algorithms import GSPO


def terms(
    theta: Sequence[float],
    advantage: Sequence[float],
    *,
    prox: Sequence[float] | float = 1.0,
    mu: Sequence[float] | float | None = None,
    samples: Sequence[int] = (),
    ratio_to: str = "prox",
    **statistics: Tensor,
) -> LossInputs:
    """Probabilities (or, with the others 1, ratios) per token; *samples* is which sample each token
    belongs to.
    """
    n = len(theta)
    owner = torch.tensor(samples or [0] * n)

    def logs(given: Sequence[float] | float) -> Tensor:
        return torch.tensor(
            [given] * n if isinstance(given, float) else given, dtype=torch.float64
        ).log()

    return LossInputs(
        logp=logs(theta).requires_grad_(),
        mu_logp=logs(prox if mu is None else mu),
        prox_logp=logs(prox),
        advantage=torch.tensor(advantage, dtype=torch.float64),
        entropy=torch.zeros(n, dtype=torch.float64),
        sample=owner,
        group=torch.zeros(int(owner.max()) + 1, dtype=torch.long),
        ratio_to=ratio_to,  # type: ignore[arg-type]
        statistics=statistics,
    )


def outcome(piece: Piece, t: LossInputs) -> tuple[list[float], list[float], dict[str, list[bool]]]:
    """Terms, their derivatives by log theta of each token, and what else was told."""
    found = piece(t)
    values, told = found if isinstance(found, tuple) else (found, {})
    (slope,) = torch.autograd.grad(values.sum(), t.logp)
    return values.tolist(), slope.tolist(), {name: value.tolist() for name, value in told.items()}


def piece(name: str, **args: Any) -> Piece:
    return find("objective", name).configure(**args)


# ---------------------------------------------------------------- clips

CLIPS = [
    # piece, arguments, ratio, advantage, term, d term / d log theta, what is told
    ("ppo_clip", {"high": 0.28}, 0.5, 2.0, -1.0, -1.0, ""),
    ("ppo_clip", {"high": 0.28}, 1.0, 2.0, -2.0, -2.0, ""),
    ("ppo_clip", {"high": 0.28}, 1.27, 2.0, -2.54, -2.54, ""),
    ("ppo_clip", {"high": 0.28}, 1.29, 2.0, -2.56, 0.0, "clip.high"),
    ("ppo_clip", {"high": 0.28}, 0.5, -2.0, 1.6, 0.0, "clip.low"),
    ("ppo_clip", {"high": 0.28}, 0.81, -2.0, 1.62, 1.62, ""),
    ("ppo_clip", {"high": 0.28}, 1.5, -2.0, 3.0, 3.0, ""),
    ("ppo_clip", {"high": 0.28}, 9.0, 0.0, 0.0, 0.0, ""),
    ("ppo_clip", {"dual": 3.0}, 2.9, -2.0, 5.8, 5.8, ""),
    ("ppo_clip", {"dual": 3.0}, 3.5, -2.0, 6.0, 0.0, "clip_dual"),
    ("ppo_clip", {"dual": 3.0}, 0.5, -2.0, 1.6, 0.0, "clip.low"),
    ("ppo_clip", {"dual": 3.0}, 3.5, 2.0, -2.4, 0.0, "clip.high"),
    ("ppo_clip", {"dual": 3.0}, 0.5, 2.0, -1.0, -1.0, ""),
    ("gspo_token", {"low": 0.1, "high": 0.2}, 1.3, 1.0, -1.2, 0.0, "clip.high"),
    ("gspo_token", {"low": 0.1, "high": 0.2}, 1.1, 1.0, -1.1, -1.1, ""),
    ("gspo_token", {"low": 0.1, "high": 0.2}, 0.8, -1.0, 0.9, 0.0, "clip.low"),
    ("gspo_token", {"low": 0.1, "high": 0.2}, 0.8, 1.0, -0.8, -0.8, ""),
    ("gspo_token", {"low": 0.1, "high": 0.2}, 1.3, -1.0, 1.3, 1.3, ""),
    ("importance", {}, 7.0, 2.0, -14.0, -14.0, ""),
    ("importance", {}, 0.1, -2.0, 0.2, 0.2, ""),
]


@pytest.mark.parametrize("name, args, ratio, advantage, term, slope, told", CLIPS)
def test_clips_of_tokens(
    name: str,
    args: dict[str, float],
    ratio: float,
    advantage: float,
    term: float,
    slope: float,
    told: str,
) -> None:
    values, slopes, said = outcome(piece(name, **args), terms([ratio], [advantage]))
    assert values == pytest.approx([term])
    assert slopes == pytest.approx([slope])
    assert (slopes[0] == 0) == (slope == 0)
    assert [name for name, at in said.items() if at[0]] == ([told] if told else [])


@pytest.mark.parametrize(
    "ratios, advantage, term, slopes, told",
    [
        ((1.1, 1.2), 1.0, -1.2, 0.0, "clip.high"),  # product 1.32
        ((1.1, 1.05), 1.0, -1.155, -1.155, ""),
        ((2.0, 0.5), -1.0, 1.0, 1.0, ""),  # tokens far apart, the sample where it was
        ((0.7, 1.1), -1.0, 0.8, 0.0, "clip.low"),
        ((0.7, 1.1), 1.0, -0.77, -0.77, ""),
        ((1.5, 1.2), -1.0, 1.5, 0.0, "clip_dual"),  # dual clip at 1.5
        ((1.2, 1.2), -1.0, 1.44, 1.44, ""),
    ],
)
def test_clip_of_the_product(
    ratios: tuple[float, float], advantage: float, term: float, slopes: float, told: str
) -> None:
    """One term per sample; each of its tokens has the derivative of the whole."""
    values, got, said = outcome(piece("sequence_clip", dual=1.5), terms(ratios, [advantage] * 2))
    assert values == pytest.approx([term])
    assert got == pytest.approx([slopes] * 2)
    assert [name for name, at in said.items() if at == [True, True]] == ([told] if told else [])


@pytest.mark.parametrize(
    "ratios, advantage, term, slope, told",
    [
        ((1.0, 1.0), 1.0, -1.0, -0.5, ""),
        ((1.001, 1.0), 1.0, -1.0004, 0.0, "clip.high"),
        ((1.0004, 1.0), 1.0, -math.sqrt(1.0004), -math.sqrt(1.0004) / 2, ""),
        ((0.999, 1.0), -1.0, 0.9997, 0.0, "clip.low"),
        ((0.999, 1.0), 1.0, -math.sqrt(0.999), -math.sqrt(0.999) / 2, ""),
        ((4.0, 1.0), -1.0, 2.0, 1.0, ""),
    ],
)
def test_clip_of_the_geometric_mean(
    ratios: tuple[float, float], advantage: float, term: float, slope: float, told: str
) -> None:
    """GSPO's own bounds, 3e-4 and 4e-4: s = sqrt(r1 r2), ds / d log theta = s / 2."""
    values, slopes, said = outcome(piece("gspo"), terms(ratios, [advantage] * 2))
    assert values == pytest.approx([term], rel=1e-12)
    assert slopes == pytest.approx([slope] * 2, rel=1e-12)
    assert [name for name, at in said.items() if at == [True, True]] == ([told] if told else [])


def test_gspo_of_tokens_is_gspo_where_a_sample_has_one_advantage() -> None:
    """Values and gradients under the sequence mean, for all four branches at once."""
    owner = (0, 0, 0, 1, 2, 2, 3, 3)
    theta = (1.2, 0.9, 1.3, 0.7, 0.8, 0.9, 1.1, 1.4)
    advantage = (1.0, 1.0, 1.0, -0.5, 2.0, 2.0, -1.0, -1.0)
    weight = torch.tensor([1 / (4 * owner.count(k)) for k in owner], dtype=torch.float64)
    found = []
    for name in ("gspo", "gspo_token"):
        t = terms(theta, advantage, samples=owner)
        loss = weighted_loss(
            GSPO.replace(objective={"use": name, "low": 0.1, "high": 0.15}), t, weight
        ).loss
        found.append(torch.autograd.grad(loss, t.logp)[0])
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("advantage", [1.0, 0.0, -1.0])
@pytest.mark.parametrize("name", ["ppo_clip", "sequence_clip", "gspo", "gspo_token"])
def test_a_ratio_that_overflows_and_is_held_has_no_gradient(name: str, advantage: float) -> None:
    """Products over long samples leave the range of floats. Where the clip holds them, the
    derivative is 0, not 0 times infinity; where nothing does (A < 0 without dual clip), it is
    infinite, which the learner refuses loudly.
    """
    args = {"dual": 3.0} if name in ("ppo_clip", "sequence_clip") else {}
    t = replace(
        terms([1.0] * 2, [advantage] * 2), prox_logp=torch.full((2,), -800.0, dtype=torch.float64)
    )
    values, slopes, _ = outcome(piece(name, **args), t)
    if advantage < 0 and not args:
        assert slopes == [math.inf] * 2
    else:
        assert all(map(math.isfinite, values))
        assert slopes == [0.0] * 2


def test_an_exactly_open_clip_has_the_whole_gradient() -> None:
    """At ratio 1 both sides of the minimum are equal, and so is their gradient: nothing is
    halved.
    """
    assert outcome(piece("ppo_clip"), terms([1.0, 1.0], [1.0, -1.0]))[1] == [-1.0, 1.0]


# ---------------------------------------------------------------- caps and divergence masks

MASKS = [
    # piece, arguments, theta, ratio_to (probabilities), advantage, d term / d log theta = -weight
    # A, what is told
    ("cispo", {}, 0.9, 0.3, 1.0, -3.0, ""),
    ("cispo", {}, 0.9, 0.1, 1.0, -5.0, "clip.high"),
    ("cispo", {}, 0.9, 0.1, -1.0, 5.0, "clip.high"),
    ("cispo", {}, 0.001, 0.9, -1.0, 0.001 / 0.9, ""),  # no lower clip
    ("dppo_tv", {}, 0.30, 0.20, 1.0, -1.5, ""),  # moved by 0.10
    ("dppo_tv", {}, 0.36, 0.20, 1.0, 0.0, "clip.high"),
    ("dppo_tv", {}, 0.36, 0.20, -1.0, 1.8, ""),  # pushed back
    ("dppo_tv", {}, 0.10, 0.20, -1.0, 0.5, ""),
    ("dppo_tv", {}, 0.04, 0.20, -1.0, 0.0, "clip.low"),
    ("dppo_tv", {}, 0.04, 0.20, 1.0, -0.2, ""),
    # a rare token may grow a hundredfold; its weight is capped
    ("dppo_tv", {}, 0.10, 0.001, 1.0, -20.0, ""),
    ("dppo_tv", {"cap": 3.0}, 0.10, 0.001, -1.0, 3.0, ""),
    ("dppo_kl", {}, 0.30, 0.20, 1.0, -1.5, ""),  # 0.0257 nats
    ("dppo_kl", {}, 0.40, 0.20, 1.0, 0.0, "clip.high"),  # 0.0915
    ("dppo_kl", {}, 0.40, 0.20, -1.0, 2.0, ""),
    ("dppo_kl", {}, 0.06, 0.20, -1.0, 0.0, "clip.low"),  # 0.1117
    ("dppo_kl", {}, 0.06, 0.20, 1.0, -0.3, ""),
    ("dppo_kl", {}, 0.15, 0.20, -1.0, 0.75, ""),  # 0.0090
    ("dppo_kl", {}, 1.0, 1.0, 1.0, -1.0, ""),  # certain tokens have no divergence, and no infinity
]


@pytest.mark.parametrize("ratio_to", ["mu", "prox"])
@pytest.mark.parametrize("name, args, theta, before, advantage, slope, told", MASKS)
def test_caps_and_divergence_masks(
    name: str,
    args: dict[str, float],
    theta: float,
    before: float,
    advantage: float,
    slope: float,
    told: str,
    ratio_to: str,
) -> None:
    """Weights carry no gradient, and the algorithm's ratio_to is the one that counts."""
    other = 0.5
    prox, mu = (before, other) if ratio_to == "prox" else (other, before)
    t = terms([theta], [advantage], prox=prox, mu=mu, ratio_to=ratio_to)
    values, slopes, said = outcome(piece(name, **args), t)
    assert slopes == pytest.approx([slope])
    assert values == pytest.approx([slope * math.log(theta)])
    assert [name for name, at in said.items() if at[0]] == ([told] if told else [])


def top_terms(
    sampled: int, advantage: float, before: Sequence[float], now: Sequence[float], top: int
) -> LossInputs:
    """One token of a small vocabulary; the likeliest *top* are prox's."""
    p, q = (torch.tensor(x, dtype=torch.float64) for x in (before, now))
    ids = p.topk(top).indices
    return terms(
        [now[sampled]],
        [advantage],
        prox=before[sampled],
        top_logp=q[ids].log()[None],
        prox_top_logp=p[ids].log()[None],
        prox_top_has=(ids == sampled).any()[None],
    )


BEFORE, NOW = (0.5, 0.3, 0.15, 0.05), (0.3, 0.3, 0.15, 0.25)


@pytest.mark.parametrize(
    "sampled, top, advantage, kept",
    [
        # the parts: top 1 = {0}, then the sampled token, then the rest
        (0, 1, -1.0, False),  # {0} {rest}: TV 0.2
        (3, 1, 1.0, False),  # {0} {3} {rest}: 0.2
        (3, 1, -1.0, True),  # pushed back
        (0, 1, 1.0, True),
        (1, 1, 1.0, True),  # did not move itself
        (3, 2, 1.0, False),
        # the whole vocabulary; the sampled token is the least likely of the top
        (3, 4, 1.0, False),
        (0, 4, -1.0, False),
    ],
)
def test_mask_by_the_likeliest_tokens(sampled: int, top: int, advantage: float, kept: bool) -> None:
    """Total variation over the likeliest tokens of prox, the sampled one and all others as one: 0.2
    here.
    """
    for delta in (0.199, 0.201):
        t = top_terms(sampled, advantage, BEFORE, NOW, top)
        _, slopes, _ = outcome(piece("dppo_top", top=top, delta=delta), t)
        weight = min(NOW[sampled] / BEFORE[sampled], 20.0)
        assert slopes == pytest.approx([-advantage * weight if kept or delta > 0.2 else 0.0])


def test_a_sampled_token_among_the_likeliest_counts_once() -> None:
    """Its log-prob comes from another pass than theirs and rounds otherwise: below the least of
    them, here.
    """
    t = top_terms(3, 1.0, BEFORE, NOW, 4)
    t = replace(t, prox_logp=t.prox_logp - 1e-6)
    for delta, kept in ((0.199, False), (0.201, True)):
        _, slopes, _ = outcome(piece("dppo_top", top=4, delta=delta), t)
        assert (slopes != [0.0]) is kept


def test_all_but_the_likeliest_tokens_count_as_one() -> None:
    """Moves among the others that cancel are not seen; they are with a larger *top*."""
    before, now = (0.6, 0.2, 0.1, 0.1), (0.6, 0.2 + 1e-9, 0.19, 0.01 - 1e-9)
    for top, dropped in ((1, False), (4, True)):
        t = top_terms(1, 1.0, before, now, top)
        assert (outcome(piece("dppo_top", top=top, delta=0.05), t)[1] == [0.0]) is dropped


def test_squared_loss_of_kimi() -> None:
    """(A - tau d)^2 / (2 tau), d = log 6 over both tokens: derivative tau d - A for each."""
    values, slopes, _ = outcome(piece("mirror_descent", tau=0.5), terms([2.0, 3.0], [1.0, 1.0]))
    d = math.log(6)
    assert values == pytest.approx([(1 - 0.5 * d) ** 2])
    assert slopes == pytest.approx([0.5 * d - 1] * 2)
    assert outcome(piece("mirror_descent", tau=0.5), terms([2.0, 3.0], [0.0, 0.0]))[1] != [0.0, 0.0]


# ---------------------------------------------------------------- corrections


def weights(
    name: str, prox: Sequence[float], samples: Sequence[int] = (), **args: Any
) -> list[float]:
    """Of tokens with prox / mu as given."""
    t = terms([1.0] * len(prox), [1.0] * len(prox), prox=prox, mu=1.0, samples=samples)
    found = find("correction", name).configure(**args)(t)
    assert not found.requires_grad
    return list(found.tolist())


def test_truncated_and_banded_weights() -> None:
    assert weights("tis", [0.3, 1.0, 1.9, 2.1]) == pytest.approx([0.3, 1.0, 1.9, 2.0])
    assert weights("tis_sequence", [2.0, 2.0, 2.0, 3.0, 0.5], (0, 0, 1, 1, 2)) == pytest.approx(
        [4.0, 5.0, 0.5]
    )
    assert weights("icepop", [0.49, 0.51, 1.0, 4.99, 5.01]) == pytest.approx(
        [0.0, 0.51, 1.0, 4.99, 0.0]
    )
    assert weights("mis", [1.5, 1.9, 1.8, 1.8, 0.1], (0, 0, 1, 1, 2)) == pytest.approx(
        [2.85, 0.0, 0.1]
    )
    assert weights("mis", [1.5, 0.1], (0, 1), low=0.2) == pytest.approx([1.5, 0.0])
    assert weights("none", [0.1, 9.0]) == [1.0, 1.0]


@pytest.mark.parametrize("name", ["tis", "tis_sequence", "icepop", "mis", "sequence_mask", "trm"])
def test_a_weight_that_overflows_is_capped_or_masked(name: str) -> None:
    """Products over long samples leave the range of floats; no weight may come out as infinite or
    as no number.
    """
    t = terms([1.0] * 3, [1.0] * 3, prox=1.0, samples=[0, 0, 1])
    t = replace(t, mu_logp=torch.tensor([-500.0, -400.0, 0.0], dtype=torch.float64))
    found = find("correction", name)(t)
    assert found.isfinite().all()
    assert found[-1] == 1.0


E = math.e
DIVERGENCES = {  # of two tokens with log prox / mu of -0.2 and 0.4
    ("k1", "sum"): 0.2,
    ("k1", "mean"): 0.1,
    ("k1", "max"): 0.4,
    ("k2", "sum"): 0.02 + 0.08,
    ("k2", "mean"): 0.05,
    ("k2", "max"): 0.08,
    ("k3", "sum"): (E**-0.2 - 0.8) + (E**0.4 - 1.4),
    ("k3", "mean"): ((E**-0.2 - 0.8) + (E**0.4 - 1.4)) / 2,
    ("k3", "max"): E**0.4 - 1.4,
}


@pytest.mark.parametrize("estimate, over", DIVERGENCES)
def test_sequence_masks_on_both_sides_of_their_limit(estimate: str, over: str) -> None:
    prox, owner = [E**-0.2, E**0.4, 1.0], (0, 0, 1)
    limit = DIVERGENCES[estimate, over]
    for factor, kept in ((0.999, 0.0), (1.001, 1.0)):
        args = {"estimate": estimate, "over": over}
        assert weights("sequence_mask", prox, owner, limit=factor * limit, **args) == [kept, 1.0]
        if over != "sum":
            assert weights("trm", prox, owner, delta=factor * limit, **args) == [kept, 1.0]


def test_a_mask_over_the_sum_leaves_out_the_longer_sample_first() -> None:
    """The same divergence per token: the mean treats them alike, the sum does not."""
    prox, owner = [1.1] * 6, (0, 0, 1, 1, 1, 1)
    each = 0.1 + math.log(1 / 1.1)
    assert weights("sequence_mask", prox, owner, over="sum", limit=3 * each) == [1.0, 0.0]
    assert weights("sequence_mask", prox, owner, over="mean", limit=1.01 * each) == [1.0, 1.0]


def test_a_masked_term_leaves_the_denominators_alone() -> None:
    """Its weight is 0; the others keep theirs. The KL term is not weighed."""
    algorithm = ALGORITHMS["dr_grpo"].replace(correction={"use": "icepop", "low": 0.5, "high": 2.0})
    t = terms([1.0, 1.0], [1.0, 1.0], prox=[1.0, 3.0], mu=1.0)
    t = replace(t, prox_logp=t.prox_logp, ref_logp=torch.full((2,), -0.5, dtype=torch.float64))
    weight = torch.full((2,), 0.25, dtype=torch.float64)
    for kl, extra in (
        ({"coefficient": 0.0}, 0.0),
        ({"where": "loss", "estimator": "k2", "coefficient": 1.0}, 0.5),
    ):
        fresh = replace(t, logp=t.logp.detach().requires_grad_())
        out = weighted_loss(algorithm.replace(kl=kl), fresh, weight)
        assert out.correction.tolist() == [1.0, 0.0]
        slope = torch.autograd.grad(out.loss, fresh.logp)[0]
        assert slope.tolist() == pytest.approx([0.25 * (extra - 1.0), 0.25 * extra])


def test_a_certain_token_that_becomes_doubtful_is_masked_in_float32() -> None:
    """Where mu's probability rounds to 1, the other side of the coin still has a logarithm."""
    for before in (0.0, -1e-8, -1e-3):
        one = torch.tensor([math.log(0.5)], dtype=torch.float32, requires_grad=True)
        held = torch.tensor([before], dtype=torch.float32)
        t = LossInputs(
            logp=one,
            mu_logp=held,
            prox_logp=held,
            advantage=torch.tensor([-1.0]),
            entropy=torch.zeros(1),
            sample=torch.zeros(1, dtype=torch.long),
            group=torch.zeros(1, dtype=torch.long),
            ratio_to="mu",
        )
        terms, told = piece("dppo_kl")(t)
        assert told["clip.low"].tolist() == [True]
        assert terms.tolist() == [0.0]
