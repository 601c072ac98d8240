"""Pieces and algorithms: closed forms, tolerances, refused pairs, and the door for pieces from
outside.
"""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from quintain.errors import BindingError, PluginError, UnknownNameError, UsageError
from quintain.interfaces.algorithm import KL, GroupStats
from quintain.interfaces.pieces import Piece, objective, per_group, pieces
from quintain.learning import ALGORITHMS, Learner, LossInputs
from quintain.learning.batch import Batch, Sample
from quintain.learning.loss import weighted_loss
from quintain.learning.pieces.advantages import (
    Step,
    batch_mean,
    ema,
    group_mean,
    group_norm,
    leave_one_out,
    raw,
)
from quintain.learning.pieces.aggregation import constant, prompt, sequence, token
from quintain.learning.pieces.corrections import tis
from quintain.learning.pieces.group_filter import minimum, varied
from quintain.learning.pieces.objectives import kl_estimate, kl_terms, ppo_clip
from quintain.registry.binding import bind, signature_of
from quintain.registry.discovery import Component
from quintain.registry.lookup import isolated
from quintain.registry.pieces import find
from quintain_authoring.devtools.docstrings import doc_of

from ..models.tiny import tiny_model
from . import batches

REWARDS = st.lists(st.floats(-10, 10), min_size=1, max_size=9)


def step(rewards: list[float]) -> Step:
    samples = tuple(
        Sample(sequences=(batches.sequence([1], [2]),), outcome=r, group=0) for r in rewards
    )
    return Step(batch=Batch(samples=samples), rewards=tuple(rewards))


def terms(
    logp: list[float], advantage: list[float], *, prox: list[float], mu: list[float] | None = None
) -> LossInputs:
    """One sample of one group."""
    n = len(logp)
    return LossInputs(
        logp=torch.tensor(logp, dtype=torch.float64, requires_grad=True),
        mu_logp=torch.tensor(mu or prox, dtype=torch.float64),
        prox_logp=torch.tensor(prox, dtype=torch.float64),
        ref_logp=torch.tensor(prox, dtype=torch.float64),
        advantage=torch.tensor(advantage, dtype=torch.float64),
        entropy=torch.zeros(n),
        sample=torch.zeros(n, dtype=torch.long),
        group=torch.zeros(1, dtype=torch.long),
    )


# advantages


@given(REWARDS)
def test_advantages_equal_their_formulas(rewards: list[float]) -> None:
    r = numpy.array(rewards)
    if numpy.ptp(r) <= 1e-5 * max(1, numpy.abs(r).max()):
        return
    centred = r - r.mean()
    assert group_mean(step(rewards)) == pytest.approx(centred, abs=1e-9)
    assert group_norm(step(rewards)) == pytest.approx(centred / (r.std(ddof=0) + 1e-4), abs=1e-6)
    others = [r[i] - numpy.delete(r, i).mean() for i in range(len(r))]
    assert leave_one_out(step(rewards)) == pytest.approx(others, abs=1e-9)
    assert raw(step(rewards)) == rewards


@given(
    st.floats(-100, 100),
    st.integers(1, 12),
    st.sampled_from([group_mean, group_norm, leave_one_out, batch_mean]),
)
def test_constant_rewards_give_exactly_nothing(
    reward: float, group_size: int, piece: Piece
) -> None:
    noise = [reward * (1 + 1e-15 * (i % 2)) for i in range(group_size)]
    assert piece(step(noise)) == [0.0] * group_size


def test_groups_do_not_see_each_other() -> None:
    rewards = (0.0, 5.0, 1.0, 5.0)
    samples = tuple(
        Sample(sequences=(batches.sequence([1], [2]),), outcome=r, group=g)
        for r, g in zip(rewards, (0, 1, 0, 1), strict=True)
    )
    both = Step(batch=Batch(samples=samples), rewards=rewards)
    assert leave_one_out(both) == [-1.0, 0.0, 1.0, 0.0]


def test_moving_average_is_of_earlier_batches_only() -> None:
    first, state = ema(step([1.0, 3.0]), state=None)
    assert first == [1.0, 3.0]
    second, state = ema(step([2.0, 2.0]), state=state)
    assert second == [0.0, 0.0]
    third, _ = ema(step([2.0]), decay=0.9, state=state)
    assert third == pytest.approx([0.0])


# aggregation


def test_weights_of_aggregations() -> None:
    lengths = ((0, 2), (0, 6), (1, 4))
    samples = tuple(
        Sample(sequences=(batches.sequence([1], [2] * n),), outcome=0.0, group=g)
        for g, n in lengths
    )
    b = Batch(samples=samples, max_tokens=10)
    assert token(b) == [1 / 12] * 3
    assert sequence(b) == [1 / 6, 1 / 18, 1 / 12]
    assert constant(b) == [1 / 30] * 3
    assert constant(b, length=5) == [1 / 15] * 3
    assert prompt(b) == [1 / 16, 1 / 16, 1 / 8]
    for piece in (token, sequence, prompt):
        assert sum(c * s.tokens for c, s in zip(piece(b), samples, strict=True)) == pytest.approx(1)
    with pytest.raises(UsageError, match="maximum of new tokens"):
        constant(replace(b, max_tokens=None))


def test_branches_of_a_rollout_are_one_sample() -> None:
    branches = (batches.sequence([1], [2, 3]), batches.sequence([1, 9], [4, 5, 6, 7]))
    whole = Sample(sequences=branches, outcome=0.0, group=0)
    other = Sample(sequences=branches[:1], outcome=0.0, group=0)
    assert sequence(Batch(samples=(whole, other))) == [1 / 12, 1 / 4]


# objectives


@pytest.mark.parametrize(
    "ratio, advantage, loss, slope, low, high",
    [
        (1.0, 1.0, -1.0, -1.0, 0, 0),
        (1.19, 1.0, -1.19, -1.19, 0, 0),
        (1.3, 1.0, -1.2, 0.0, 0, 1),
        (1.3, -1.0, 1.3, 1.3, 0, 0),
        (0.7, -1.0, 0.8, 0.0, 1, 0),
        (0.7, 1.0, -0.7, -0.7, 0, 0),
        (0.7, 0.0, 0.0, 0.0, 0, 0),
    ],
)
def test_every_branch_of_the_clip(
    ratio: float, advantage: float, loss: float, slope: float, low: int, high: int
) -> None:
    """*slope* is the derivative with respect to log theta: -r A where the clip is not active."""
    t = terms([math.log(ratio)], [advantage], prox=[0.0])
    got, told = ppo_clip(t)
    assert got.item() == pytest.approx(loss)
    assert torch.autograd.grad(got.sum(), t.logp)[0].item() == pytest.approx(slope)
    assert told["clip.low"].item() == bool(low)
    assert told["clip.high"].item() == bool(high)


def test_clip_higher_moves_the_upper_bound_only() -> None:
    t = terms([math.log(1.25), math.log(0.75)], [1.0, -1.0], prox=[0.0, 0.0])
    got, _ = ppo_clip.configure(high=0.28)(t)
    assert got.tolist() == pytest.approx([-1.25, 0.8])


def test_ratios_of_tokens_and_samples() -> None:
    t = terms([math.log(2), math.log(8)], [1.0, 1.0], prox=[0.0, 0.0], mu=[math.log(4), 0.0])
    assert t.ratio().tolist() == pytest.approx([2, 8])
    assert replace(t, ratio_to="mu").ratio().tolist() == pytest.approx([0.5, 8])
    assert t.ratio("product").tolist() == pytest.approx([16])
    assert t.ratio("geometric").tolist() == pytest.approx([4])
    assert t.mismatch().tolist() == pytest.approx([0.25, 1])
    assert tis.configure(cap=0.5)(t).tolist() == pytest.approx([0.25, 0.5])


def test_kl_gradients_on_a_softmax() -> None:
    """k1 as a loss moves nothing, k2 follows the reverse KL, k3 the forward KL; the score factor
    gives each the gradient of its own expectation, which is the reverse KL for k1 and k3.
    """
    draw = torch.Generator().manual_seed(3)
    logits = torch.randn(7, generator=draw, dtype=torch.float64, requires_grad=True)
    ref = torch.randn(7, generator=draw, dtype=torch.float64).log_softmax(0)
    theta = logits.log_softmax(0)

    def gradient(loss: Tensor) -> Tensor:
        return torch.autograd.grad(loss, logits, retain_graph=True)[0]

    reverse = gradient((theta.exp() * (theta - ref)).sum())
    forward = gradient((ref.exp() * (ref - theta)).sum())
    on_policy = theta.exp().detach()
    t = replace(terms([0.0] * 7, [0.0] * 7, prox=[0.0] * 7), logp=theta, ref_logp=ref)
    second = gradient((theta.exp() * (theta - ref).square() / 2).sum())
    expected = {"k1": torch.zeros(7, dtype=torch.float64), "k2": reverse, "k3": forward}
    for estimator, want in expected.items():
        loss = (on_policy * kl_estimate(theta - ref, estimator)).sum()  # type: ignore[arg-type]
        torch.testing.assert_close(gradient(loss), want, rtol=0, atol=1e-14)
        kl = KL(where="loss", estimator=estimator, coefficient=1.0, score_factor=True)  # type: ignore[arg-type]
        torch.testing.assert_close(
            gradient((on_policy * kl_terms(t, kl)).sum()),
            second if estimator == "k2" else reverse,
            rtol=0,
            atol=1e-14,
        )


# algorithms


def test_pinned_definitions() -> None:
    grpo, dr_grpo, rloo = ALGORITHMS["grpo"], ALGORITHMS["dr_grpo"], ALGORITHMS["rloo"]
    assert grpo.kl == KL(where="loss", estimator="k3", coefficient=0.04)
    assert grpo.advantage.parameters["ddof"] == 0
    assert grpo.aggregation.name == "sequence"
    assert grpo.objective.name == "ppo_clip"
    assert grpo.objective.parameters["low"] == 0.2
    assert dr_grpo.advantage.name == "group_mean"
    assert dr_grpo.aggregation.name == "constant"
    assert dr_grpo.kl.active is False
    assert dr_grpo.objective.name == "ppo_clip"
    assert dr_grpo.objective.parameters["low"] == 0.2
    assert rloo.advantage.name == "leave_one_out"
    assert rloo.objective.name == "policy_gradient"
    assert rloo.kl.active is False
    assert all(
        algorithm.summary and algorithm.source and algorithm.name == name
        for name, algorithm in ALGORITHMS.items()
    )


def test_variants_by_name_and_arguments() -> None:
    algorithm = ALGORITHMS["grpo"].replace(
        advantage="leave_one_out",
        objective={"high": 0.28},
        aggregation={"use": "constant", "length": 7},
        kl={"coefficient": 0},
    )
    assert algorithm.advantage is leave_one_out
    assert dict(algorithm.objective.args) == {"high": 0.28}
    assert algorithm.aggregation(batches.batch(groups=1, group_size=1)) == [1 / 7]
    assert not algorithm.kl.active
    assert algorithm.kl.estimator == "k3"


def test_what_is_refused() -> None:
    grpo = ALGORITHMS["grpo"]
    with pytest.raises(UsageError, match="zero gradient"):
        KL(where="loss", estimator="k1", coefficient=0.1)
    with pytest.raises(UsageError, match="already holds the mismatch"):
        grpo.replace(ratio_to="mu", correction="tis")
    with pytest.raises(UsageError, match="did you mean 'epochs'"):
        grpo.replace(epoch=2)
    with pytest.raises(UnknownNameError, match="did you mean 'ppo_clip'"):
        grpo.replace(objective="ppo_clp")
    with pytest.raises(BindingError, match="did you mean 'low'"):
        grpo.replace(objective={"lo": 0.1})
    with pytest.raises(UsageError, match="expected a function decorated with @objective"):
        grpo.replace(objective=tis)
    assert grpo.replace(ratio_to="mu").ratio_to == "mu"
    assert any("forward KL" in note for note in grpo.notes())
    assert any("off-policy" in note for note in ALGORITHMS["rloo"].replace(epochs=2).notes())


@pytest.mark.usefixtures("own_pieces")
def test_an_algorithm_from_outside() -> None:

    @objective
    def heavy_tail(t: LossInputs, *, cap: float = 5.0) -> Tensor:
        return -t.ratio().clamp(max=cap).detach() * t.advantage * t.logp

    @per_group
    def ranks(rewards: list[float], *, scale: float = 1.0) -> list[float]:
        return [scale * sum(r > other for other in rewards) for r in rewards]

    assert find("objective", "heavy_tail") is heavy_tail
    assert "ranks" in pieces("advantage")
    algorithm = ALGORITHMS["grpo"].replace(
        objective={"use": "heavy_tail", "cap": 2.0}, advantage={"use": "ranks", "scale": 2.0}
    )
    assert algorithm.advantage(step([1.0, 5.0, 3.0])) == [0.0, 4.0, 2.0]
    t = terms([math.log(3), 0.0], [1.0, -1.0], prox=[0.0, 0.0])
    weighed = weighted_loss(
        algorithm.replace(kl={"coefficient": 0}), t, torch.ones(2, dtype=torch.float64)
    )
    assert torch.autograd.grad(weighed.loss, t.logp)[0].tolist() == pytest.approx([-2.0, 1.0])

    def other(t: LossInputs) -> Tensor:
        return t.logp

    objective(name="heavy_tail")(other)
    with pytest.raises(PluginError, match="claimed by .*say which"):
        find("objective", "heavy_tail")


@pytest.mark.usefixtures("own_pieces")
def test_two_modules_may_choose_one_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither breaks the other; the bare name is refused whichever was imported first."""
    monkeypatch.syspath_prepend(tmp_path)
    for owner in ("alpha", "beta"):
        (tmp_path / f"{owner}_pieces.py").write_text(
            "from quintain import objective\n\n@objective\ndef gate(t):\n    return t.logp\n"
        )
    for _ in range(2):
        for owner in ("beta", "alpha"):
            assert (
                find("objective", f"{owner}_pieces:gate").function.__module__ == f"{owner}_pieces"
            )
        with pytest.raises(
            PluginError, match="claimed by alpha_pieces:gate and by beta_pieces:gate; say which"
        ):
            find("objective", "gate")


def test_pieces_that_cannot_run_are_refused() -> None:
    """Where the algorithm is made, not at the first step."""

    async def slow(t: LossInputs) -> Tensor:
        return t.logp

    def wide(t: LossInputs, *, top: int = 2) -> Tensor:
        return t.logp

    algorithm = ALGORITHMS["rloo"]
    with pytest.raises(UsageError, match="is a coroutine; only advantages are awaited"):
        algorithm.replace(objective=Piece(kind="objective", name="slow", function=slow))
    with pytest.raises(UsageError, match="reads 'top', which only objectives see"):
        algorithm.replace(
            correction=Piece(
                kind="correction", name="wide", function=wide, reads=frozenset({"top"})
            )
        )
    for changes, message in (
        ({"kl": "k2"}, "kl is 'k2'; expected a KL"),
        ({"plan": "active"}, "plan is 'active'; expected a SamplingPlan"),
        ({"epochs": 1.5}, "epochs is 1.5; expected a whole number"),
    ):
        with pytest.raises(UsageError, match=message):
            algorithm.replace(**changes)
    long = algorithm.replace(plan={"thinking_budget": {"min_tokens": 10_000, "max_tokens": 12_000}})
    assert (
        long.replace(plan={"thinking_budget": {"min_tokens": 5}}).plan.thinking_budget.max_tokens
        == 12_000
    )
    renamed = algorithm.replace(name="mine")
    assert renamed.source == ""
    assert renamed.published == {}


def test_an_update_must_tell_its_loss() -> None:
    """Else a plugin's author would meet a KeyError of ours."""
    silent = Piece(kind="optimizer_step", name="silent", function=lambda problem: {"mine": 1.0})
    learner = Learner(tiny_model("qwen3"), ALGORITHMS["rloo"].replace(optimizer_step=silent))
    with pytest.raises(
        PluginError, match=r"must return the metrics loss and grad_norm; it gave \['mine'\]"
    ):
        learner.step(batches.batch())


@pytest.mark.usefixtures("own_pieces")
def test_a_piece_of_an_installed_algorithm_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its module is imported the first time a name is asked for that no imported module has, and
    never before.
    """
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "cubic_pieces.py").write_text(
        "from quintain import objective\nfrom quintain.learning.algorithms import RLOO\n\n\n"
        "@objective\ndef cubic(t, *, scale: float = 1.0):\n    return scale * t.logp**3\n\n\n"
        "def plain(t):\n    return t.logp\n\n\nCUBIC = RLOO.replace(name='steep', "
        "objective=cubic)\n"
    )
    steep = Component(
        kind="algorithm", name="steep", target="cubic_pieces:CUBIC", distribution="pack"
    )
    broken = Component(
        kind="algorithm",
        name="broken",
        target="no_such_module:ALGORITHM",
        distribution="broken-pack",
    )
    with isolated(steep, broken):
        assert find("objective", "ppo_clip").name == "ppo_clip"
        assert "cubic_pieces" not in sys.modules
        names = ["cubic", "objective.cubic", "cubic_pieces:cubic"]
        assert {find("objective", name).name for name in names} == {"cubic"}
        algorithm = bind(ALGORITHMS["rloo"], {"objective": {"use": "cubic", "scale": 2.0}})
        assert algorithm.objective.name == "cubic"
        assert algorithm.objective.args == {"scale": 2.0}
        with pytest.raises(
            UnknownNameError,
            match=r"did you mean 'cubic'[^$]*'broken' of broken-pack cannot be loaded",
        ):
            find("objective", "cubik")
        with pytest.raises(
            PluginError, match="is a function; expected a function decorated with @objective"
        ):
            find("objective", "cubic_pieces:plain")
        with pytest.raises(
            PluginError,
            match="of the kind objective; expected a function decorated with @advantage",
        ):
            find("advantage", "cubic_pieces:cubic")


def test_what_a_paper_sampled_with_is_no_setting() -> None:
    """It would be one that does nothing."""
    assert ALGORITHMS["grpo"].published == {"group": 64, "temperature": 1.0}
    for name in ("published", "sampling"):
        with pytest.raises(UsageError, match=f"no setting '{name}'"):
            ALGORITHMS["grpo"].replace(**{name: {"group": 8}})
        with pytest.raises(BindingError, match=f"no argument '{name}'"):
            bind(ALGORITHMS["grpo"], {name: {"group": 8}})
    shown = signature_of(ALGORITHMS["grpo"])
    assert doc_of(ALGORITHMS["grpo"]).endswith("Published with group 64, temperature 1.0.")
    assert "published" not in {f.name for f in shown.fields}


def test_terms_of_a_sequence_and_of_a_group() -> None:
    """A term weighs what its tokens weigh together, and returning another shape than the level says
    is an error.
    """
    t = replace(
        terms([-1.0, -2.0, -3.0], [1.0, 1.0, 1.0], prox=[0.0] * 3),
        sample=torch.tensor([0, 0, 1]),
        group=torch.tensor([0, 0]),
    )
    weight = torch.tensor([0.1, 0.1, 0.5], dtype=torch.float64)
    grpo = ALGORITHMS["grpo"].replace(kl={"coefficient": 0})

    def per_sample(t: LossInputs) -> Tensor:
        return t.sample_sum(t.logp)

    def per_group_of_samples(t: LossInputs) -> Tensor:
        return t.group_sum(t.sample_sum(t.logp))

    def reduced(t: LossInputs) -> Tensor:
        return t.logp.mean()

    by_sample = Piece(kind="objective", name="s", function=per_sample, level="sequence")
    by_group = Piece(kind="objective", name="g", function=per_group_of_samples, level="group")
    assert weighted_loss(grpo.replace(objective=by_sample), t, weight).loss.item() == pytest.approx(
        0.2 * -3 + 0.5 * -3
    )
    assert weighted_loss(grpo.replace(objective=by_group), t, weight).loss.item() == pytest.approx(
        0.7 * -6
    )
    with pytest.raises(UsageError, match="unreduced"):
        weighted_loss(
            grpo.replace(objective=Piece(kind="objective", name="m", function=reduced)), t, weight
        )
    with pytest.raises(UsageError, match="weighs tokens"):
        grpo.replace(objective=by_sample, correction="tis")


# group filter


def test_group_filter_reads_the_outcome() -> None:
    solved = GroupStats(outcomes=(1.0, 1.0, 1.0), totals=(1.0, 0.9, 0.8), requested=4)
    assert minimum(solved) == ""
    assert varied(solved) == "all outcomes equal"
    assert varied(GroupStats(outcomes=(1.0, 0.0), totals=(0.0, 0.0), requested=2)) == ""
    assert (
        minimum(GroupStats(outcomes=(1.0,), totals=(1.0,), requested=4))
        == "1 of 4 samples valid, 2 needed"
    )
    assert (
        minimum.configure(samples=1)(GroupStats(outcomes=(1.0,), totals=(1.0,), requested=1)) == ""
    )


def test_a_kl_term_that_would_do_nothing_is_refused_and_may_be_switched_off() -> None:
    """`grpo` has a coefficient of its own, which is not what the change asks for."""
    grpo = ALGORITHMS["grpo"]

    assert not grpo.replace(kl={"where": "none"}).kl.active
    with pytest.raises(UsageError, match=r"coefficient is 0\.1 but kl\.where is 'none'"):
        grpo.replace(kl={"where": "none", "coefficient": 0.1})
