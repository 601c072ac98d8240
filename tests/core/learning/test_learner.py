"""The learner: invariances of a step, exact resume, policies by name, adapters, precision."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from quintain.errors import RunError, UsageError
from quintain.interfaces import changes_of
from quintain.interfaces.algorithm import KL, Algorithm
from quintain.interfaces.pieces import optimizer_step
from quintain.learning import ALGORITHMS, Batch, Learner, MicroBatch, Sample, micro_batches
from quintain.learning.optimizer_step import OptimizerStep
from quintain.models import Forward
from quintain.models.prefix_tree import LONG_START
from quintain.types.transcript import TrainingSequence

from ..models.tiny import tiny_model
from . import batches

GRPO = ALGORITHMS["grpo"]
VARIANTS = [
    GRPO,
    ALGORITHMS["rloo"],
    GRPO.replace(name="grpo+tis", correction="tis", aggregation="prompt"),
]
"""Three kinds of algorithms; `test_invariances` has all."""
EXACT = {"rtol": 1e-9, "atol": 1e-11}


def gradient(
    batch: Batch, algorithm: Algorithm, *, kind: str = "qwen3", module: Any = None, **options: Any
) -> Tensor:
    """The unclipped gradient of the last update, flat; float64, learning rate 0 unless told."""
    module = module if module is not None else tiny_model(kind, dtype=torch.float64)
    learner = Learner(module, algorithm, **({"lr": 0.0, "max_grad_norm": 0.0} | options))
    learner.step(batch)
    return torch.cat([p.grad.flatten() for p in learner.module.parameters() if p.grad is not None])


@pytest.mark.keeps("rloo")
@pytest.mark.parametrize("algorithm", VARIANTS, ids=lambda algorithm: algorithm.name)
def test_gradient_does_not_depend_on_the_cut(algorithm: Algorithm) -> None:
    batch = batches.batch(groups=3, group_size=4)
    whole = gradient(batch, algorithm, token_budget=10**6)
    assert whole.abs().max() > 1e-3
    for budget in (1, 30):
        torch.testing.assert_close(gradient(batch, algorithm, token_budget=budget), whole, **EXACT)


@pytest.mark.parametrize(
    ("prompt", "budget", "most"),
    [(20, 400, 1), (20, 64, 2), (100, 64, 1), (100, 300, 1), (4, 16, 6)],
)
def test_a_prompt_longer_than_the_budget_is_not_computed_for_each_sample(
    prompt: int, budget: int, most: int
) -> None:
    """A part takes twice its common prefix or the budget, so a group costs at most twice its
    tokens, split or not.
    """
    rows = [batches.sequence(range(1, prompt + 1), [200 + i] * 6) for i in range(12)]
    batch = Batch(samples=tuple(Sample(sequences=(row,), outcome=0.0, group=0) for row in rows))
    cost = Forward(tiny_model()).cost

    parts = micro_batches(batch, range(12), budget=budget, level="token", cost=cost)

    assert len(parts) == most
    assert all(cost(part.prefix_groups[0]) <= max(budget, 2 * prompt + 6) for part in parts)


@pytest.mark.keeps("rloo")
@pytest.mark.parametrize("algorithm", VARIANTS, ids=lambda algorithm: algorithm.name)
def test_what_groups_begin_with_is_computed_once_for_all(algorithm: Algorithm) -> None:
    """Six groups behind the same examples, and one that begins otherwise."""
    start = [7 * i % 250 for i in range(LONG_START)]
    alike = batches.batch(groups=6, group_size=4, start=start)
    other = [replace(s, group=6) for s in batches.batch(groups=1, start=start[1:], seed=1).samples]
    batch = replace(alike, samples=(*alike.samples, *other))
    cost = Forward(tiny_model()).cost
    together, alone, half, none = (
        micro_batches(batch, range(len(batch.samples)), budget=budget, level="token", cost=cost)
        for budget in (10**4, LONG_START + 1, 250, 1)
    )

    def tokens(parts: Sequence[MicroBatch]) -> int:
        return sum(cost(rows) for part in parts for rows in part.prefix_groups)

    assert len(together) == 1
    assert [len(rows) for rows in together[0].prefix_groups] == [24, 4]
    # of each group alone: its prompt and, for each sample, a reply of at most 8 tokens
    assert tokens(together) <= 2 * LONG_START + 7 * (8 + 4 * 8)
    assert tokens(alone) >= 7 * LONG_START
    assert tokens(together) < tokens(half) < tokens(alone) <= tokens(none)
    joined = gradient(batch, algorithm, token_budget=10**4)
    for budget in (1, 250):
        torch.testing.assert_close(gradient(batch, algorithm, token_budget=budget), joined, **EXACT)


@pytest.mark.keeps("gpt2")
@pytest.mark.parametrize("kind", ["qwen3", "gpt2"])
def test_gradient_does_not_depend_on_layout_or_order(kind: str) -> None:
    batch = batches.batch(groups=2, group_size=3)
    algorithm = ALGORITHMS["grpo"]
    alone = gradient(batch, algorithm, kind=kind, token_budget=1)
    layouts = ["bucketed", "packed"] + ["shared"] * (kind != "gpt2")
    for layout in layouts:
        # transformers' own norms round to float32 even in float64
        torch.testing.assert_close(
            gradient(batch, algorithm, kind=kind, layout=layout), alone, rtol=1e-4, atol=1e-6
        )
    order = list(range(len(batch.samples)))
    random.Random(0).shuffle(order)
    torch.testing.assert_close(gradient(batch.only(order), algorithm, kind=kind), alone, **EXACT)


@pytest.mark.more
def test_padding_id_and_stop_id_are_nothing_special() -> None:
    """Sequences that end in, or hold, the id that padding uses (0) train on it like on any
    other.
    """
    algorithm = ALGORITHMS["rloo"]
    for end in (0, 259):
        samples = tuple(
            Sample(
                sequences=(batches.sequence([3, 4], [7] * n + [end]),),
                outcome=float(n == 2),
                group=0,
            )
            for n in (1, 2, 5)
        )
        batch = Batch(samples=samples, max_tokens=8)
        for kind in ("qwen3", "gpt2"):
            split = gradient(batch, algorithm, kind=kind, token_budget=1)
            torch.testing.assert_close(
                gradient(batch, algorithm, kind=kind), split, rtol=1e-7, atol=1e-9
            )
        assert batch.tokens == 2 + 3 + 6


def test_ratio_is_exactly_one_on_the_first_pass_whatever_the_algorithm() -> None:
    """So on-policy the clip changes nothing: dr_grpo is the plain gradient with the same
    weights.
    """
    batch = batches.batch()
    learner = Learner(tiny_model("qwen3"), ALGORITHMS["dr_grpo"], token_budget=30)
    metrics = learner.step(batch)
    assert metrics["ratio.min"] == metrics["ratio.max"] == metrics["ratio.mean"] == 1.0
    assert metrics["clip.low"] == metrics["clip.high"] == 0.0
    plain = ALGORITHMS["dr_grpo"].replace(objective="policy_gradient")
    assert torch.equal(gradient(batch, ALGORITHMS["dr_grpo"]), gradient(batch, plain))


def test_later_minibatches_have_a_ratio_and_prox_stays_frozen() -> None:
    batch = batches.batch(groups=4)
    algorithm = ALGORITHMS["dr_grpo"].replace(minibatches=2, epochs=2)
    learner = Learner(tiny_model("qwen3"), algorithm, lr=3e-3)
    metrics = learner.step(batch)
    assert metrics["updates"] == 4
    assert metrics["ratio.min"] < 0.95 < 1.05 < metrics["ratio.max"]
    assert learner.version == 1


def test_constant_rewards_and_groups_of_one_move_nothing() -> None:
    for batch in (batches.batch(rewards=[0.7]), batches.batch(group_size=1)):
        for name in ("dr_grpo", "rloo"):
            assert not gradient(batch, ALGORITHMS[name]).any()
            assert not gradient(batch, ALGORITHMS[name], skip_idle=False).any()


@pytest.mark.more
def test_skipping_idle_samples_changes_no_gradient() -> None:
    mixed = batches.batch(groups=2).samples + batches.batch(groups=2, rewards=[1.0], seed=1).samples
    batch = Batch(
        samples=tuple(replace(s, group=i // 4) for i, s in enumerate(mixed)), max_tokens=9
    )
    for algorithm in VARIANTS:
        kept, skipped = (gradient(batch, algorithm, skip_idle=skip) for skip in (False, True))
        torch.testing.assert_close(skipped, kept, **EXACT)
    metrics = Learner(tiny_model("qwen3"), ALGORITHMS["rloo"]).step(batch)
    assert metrics["idle"] >= 0.3
    assert metrics["tokens"] == batch.tokens


def test_masked_places_have_exactly_no_derivative() -> None:
    """Tokens that come only after the last trained one get a gradient of exactly 0."""
    ids, mask = (1, 2, 3, 40, 41, 5, 60), (False, False, True, False, False, True, False)
    logps = tuple(-1.0 if m else 0.0 for m in mask)
    samples = tuple(
        Sample(
            sequences=(TrainingSequence(ids=ids, mask=mask, logps=logps, versions=(0,) * 7),),
            outcome=v,
            group=0,
        )
        for v in (0.0, 1.0)
    )
    samples = (samples[0], replace(samples[1], sequences=(batches.sequence([1, 2], [9, 8]),)))
    module = tiny_model("llama", dtype=torch.float64)
    learner = Learner(module, ALGORITHMS["rloo"], lr=0.0, max_grad_norm=0.0)
    learner.step(Batch(samples=samples, max_tokens=7))
    embedding = module.get_input_embeddings().weight.grad
    assert not embedding[60].any()
    assert embedding[40].any()


def test_inserted_observations_leave_terms_alone() -> None:
    """Observation tokens between sampled ones: advantages, weights and the loss over fixed
    log-probs stay the same.
    """

    plain = batches.sequence([1, 2], [3, 4, 5], logps=[-0.1, -0.2, -0.3])
    gap = TrainingSequence(
        ids=(1, 2, 3, 90, 91, 92, 4, 5),
        mask=(False, False, True, False, False, False, True, True),
        logps=(0.0, 0.0, -0.1, 0.0, 0.0, 0.0, -0.2, -0.3),
        versions=(0,) * 8,
    )
    other = Sample(sequences=(batches.sequence([1, 2], [6]),), outcome=1.0, group=0)
    made = [
        Batch(samples=(Sample(sequences=(s,), outcome=0.0, group=0), other), max_tokens=5)
        for s in (plain, gap)
    ]
    assert torch.equal(made[0].mu_logp, made[1].mu_logp)
    assert torch.equal(made[0].sample_of_tokens, made[1].sample_of_tokens)
    for algorithm in VARIANTS:
        assert algorithm.aggregation(made[0]) == algorithm.aggregation(made[1])


def test_resume_is_bitwise() -> None:
    algorithm = ALGORITHMS["grpo"].replace(epochs=2, minibatches=2, advantage="ema")
    steps = [batches.batch(seed=s) for s in range(4)]
    straight = Learner(tiny_model("qwen3"), algorithm, lr=1e-3, warmup_steps=5)
    told = [straight.step(b) for b in steps]
    first = Learner(tiny_model("qwen3"), algorithm, lr=1e-3, warmup_steps=5)
    for b in steps[:2]:
        first.step(b)
    state = copy.deepcopy(first.state_dict())
    second = Learner(tiny_model("qwen3", seed=9), algorithm, lr=1e-3, warmup_steps=5)
    second.load_state_dict(state)
    again = [second.step(b) for b in steps[2:]]
    times = {"seconds"}
    for x, y in zip(told[2:], again, strict=True):
        assert {k: v for k, v in x.items() if k not in times} == {
            k: v for k, v in y.items() if k not in times
        }
    for (name, p), q in zip(
        straight.module.named_parameters(), second.module.parameters(), strict=True
    ):
        assert torch.equal(p, q), name
    assert second.version == 4


def test_reference_stays_and_costs_nothing_without_kl() -> None:
    module = tiny_model("qwen3")
    before = copy.deepcopy(module.state_dict())
    learner = Learner(module, ALGORITHMS["grpo"], lr=1e-2)
    batch = batches.batch()
    assert learner.step(batch)["kl.ref.k3"] == 0.0
    assert learner.step(batch)["kl.ref.k3"] > 0.0
    kept = learner.state_dict()["reference"]
    assert all(torch.equal(before[name], kept[name]) for name in before)
    assert "reference" not in Learner(module, ALGORITHMS["rloo"]).state_dict()
    with pytest.raises(UsageError, match="no reference"):
        Learner(module, ALGORITHMS["rloo"]).logprobs(batch, policy="ref")


def test_kl_in_the_reward_lowers_it_before_the_baseline() -> None:
    batch = batches.batch(rewards=[0.5])
    algorithm = ALGORITHMS["rloo"].replace(kl=KL(where="reward", estimator="k1", coefficient=0.1))
    other = tiny_model("qwen3", seed=5, dtype=torch.float64)
    module = tiny_model("qwen3", dtype=torch.float64)
    learner = Learner(module, algorithm, lr=0.0, max_grad_norm=0.0, reference=other)
    theta, ref = learner.logprobs(batch), learner.logprobs(batch, policy="ref")
    sums, at = [], 0
    for sample in batch.samples:
        sums.append(float((theta - ref)[at : at + sample.tokens].sum()))
        at += sample.tokens
    lowered = tuple(
        replace(s, shaping=-0.1 * kl) for s, kl in zip(batch.samples, sums, strict=True)
    )
    want = gradient(replace(batch, samples=lowered), ALGORITHMS["rloo"])
    got = gradient(batch, algorithm, reference=other)
    assert got.abs().max() > 1e-4
    torch.testing.assert_close(got, want, rtol=1e-8, atol=1e-10)


def test_bf16_is_autocast_over_float32_masters() -> None:
    module = tiny_model("qwen3").bfloat16()
    learner = Learner(module, ALGORITHMS["dr_grpo"], lr=1e-3, precision="bf16")
    metrics = learner.step(batches.batch())
    assert {p.dtype for p in module.parameters()} == {torch.float32}
    assert metrics["grad_norm"] > 0
    batch = batches.batch(seed=2)
    half = learner.logprobs(batch)
    learner.scorer.half = learner.scorer.math = None
    assert 0 < (half - learner.logprobs(batch)).abs().max() < 0.3


def test_adapters_train_alone_and_merge() -> None:
    pytest.importorskip("peft")
    base = tiny_model("qwen3")
    names, frozen = set(base.state_dict()), copy.deepcopy(base.state_dict())
    learner = Learner(base, ALGORITHMS["grpo"], lr=1e-2, lora={"r": 2})
    batch = batches.batch()
    learner.step(batch)
    after = learner.step(batch)
    assert after["kl.ref.k3"] > 0
    torch.testing.assert_close(
        learner.logprobs(batch, policy="ref"), Learner(tiny_model("qwen3")).logprobs(batch)
    )
    merged = learner.weights().tensors()
    assert set(merged) == names
    fresh = tiny_model("qwen3", seed=3)
    fresh.load_state_dict(dict(merged))
    torch.testing.assert_close(
        Learner(fresh).logprobs(batch), learner.logprobs(batch), rtol=0, atol=1e-4
    )
    assert any(not torch.equal(merged[n], frozen[n]) for n in names)
    assert torch.equal(merged["model.embed_tokens.weight"], frozen["model.embed_tokens.weight"])


def test_supervised_steps_fit_and_average_over_tokens() -> None:
    learner = Learner(tiny_model("qwen3"), lr=5e-3)
    rows = [batches.sequence([1, 2], [3, 4, 5]), batches.sequence([7], [8])]
    first = learner.supervised_step(rows)
    want = -learner_logps(tiny_model("qwen3"), rows).mean()
    assert first["loss"] == pytest.approx(float(want), abs=1e-5)
    for _ in range(30):
        last = learner.supervised_step(rows)
    assert last["loss"] < 0.5 * first["loss"]
    assert learner.version == 31
    with pytest.raises(UsageError, match="without an algorithm"):
        learner.step(batches.batch())


def learner_logps(module: Any, rows: list[TrainingSequence]) -> Tensor:
    batch = Batch(
        samples=tuple(Sample(sequences=(r,), outcome=0.0, group=i) for i, r in enumerate(rows))
    )
    return Learner(module).logprobs(batch)


def test_mismatch_is_measured_against_the_sampler() -> None:
    batch = batches.batch(temperature=0.7)
    module = tiny_model("qwen3")
    logps = Learner(module).logprobs(batch).tolist()
    samples = []
    for sample in batch.samples:
        (row,) = sample.sequences
        replaced = tuple(logps.pop(0) + 0.25 if m else 0.0 for m in row.mask)
        samples.append(replace(sample, sequences=(replace(row, logps=replaced),)))
    metrics = Learner(module, ALGORITHMS["rloo"].replace(correction="tis")).step(
        replace(batch, samples=tuple(samples))
    )
    assert metrics["mismatch.mean"] == pytest.approx(0.25, abs=1e-4)
    assert metrics["mismatch.max"] == pytest.approx(0.25, abs=1e-4)
    assert metrics["correction.mean"] == pytest.approx(0.7788, abs=1e-3)


def test_warm_up_and_clipping() -> None:
    learner = Learner(
        tiny_model("qwen3"), ALGORITHMS["rloo"], lr=1e-3, warmup_steps=4, max_grad_norm=1e-3
    )
    rates = [learner.step(batches.batch(seed=s))["lr"] for s in range(5)]
    assert rates == pytest.approx([2.5e-4, 5e-4, 7.5e-4, 1e-3, 1e-3])
    norm = torch.cat([p.grad.flatten() for p in learner.module.parameters()]).norm()
    assert norm == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize("own", [False, True], ids=["adamw", "the-algorithm-s-own"])
def test_a_change_of_the_weights_is_seen_before_it_begins(own: bool) -> None:
    """What is copied while they are written is torn, and torch counts a write when it has ended."""
    seen: list[bool] = []

    def note(*_: Any) -> None:
        seen.append(changes_of(learner.weights()) != changes)

    @optimizer_step(name="noted_update")
    def noted_update(step: OptimizerStep) -> dict[str, float]:
        loss = step.backward()
        note()
        return {"loss": loss, "grad_norm": 1.0}

    learner = Learner(tiny_model(), GRPO.replace(optimizer_step=noted_update) if own else GRPO)
    learner._optimizer.register_step_pre_hook(note)
    changes = changes_of(learner.weights())
    learner.step(batches.batch())
    assert seen == [True]


def test_bad_input() -> None:
    learner = Learner(tiny_model("qwen3"), ALGORITHMS["rloo"])
    nothing = batches.sequence([1, 2], [])
    with pytest.raises(UsageError, match="no token that trains"):
        learner.step(Batch(samples=(Sample(sequences=(nothing,), outcome=0.0, group=0),)))
    with pytest.raises(UsageError, match="not finite"):
        Sample(sequences=(nothing,), outcome=float("nan"), group=0)
    with pytest.raises(UsageError, match="no context"):
        Sample(sequences=(batches.sequence([], [1]),), outcome=0.0, group=0)
    with pytest.raises(UsageError, match="greedy policy"):
        batches.batch(temperature=0)
    with pytest.raises(UsageError, match="precision"):
        Learner(tiny_model("qwen3"), precision="fp8")  # type: ignore[arg-type]
    before = copy.deepcopy(learner.module.state_dict())
    with torch.no_grad():
        learner.module.lm_head.weight[0, 0] = float("inf")
    broken = copy.deepcopy(learner.module.state_dict())
    with pytest.raises(RunError, match="not finite"):
        learner.step(batches.batch())
    after = learner.module.state_dict()
    assert all(torch.equal(broken[name], after[name]) for name in before)


def test_advantages_may_come_from_outside() -> None:
    batch = batches.batch(groups=1, group_size=3)
    per_sample = [1.0, -0.5, 0.0]
    spread = torch.tensor(
        [a for a, s in zip(per_sample, batch.samples, strict=True) for _ in range(s.tokens)],
        dtype=torch.float64,
    )
    grads = []
    for given in (per_sample, spread):
        module = tiny_model("qwen3", dtype=torch.float64)
        Learner(module, ALGORITHMS["rloo"], lr=0.0, max_grad_norm=0.0).step(batch, advantages=given)
        grads.append(torch.cat([p.grad.flatten() for p in module.parameters()]))
    assert torch.equal(*grads)


@pytest.mark.parametrize("given", [[1.0], [0.0] * 4, torch.zeros(4), torch.zeros(3, 1)])
def test_advantages_of_another_length_are_refused(given: Any) -> None:
    """Three samples; one value too many would otherwise go unseen, and a list is never per
    token.
    """
    batch = batches.batch(groups=1, group_size=3)
    learner = Learner(tiny_model("qwen3"), ALGORITHMS["rloo"])
    for values in (given, [0.0] * batch.tokens):
        with pytest.raises(
            UsageError, match=r"leave_one_out\(\) gave values of shape .* one per sample \(3\)"
        ):
            learner.step(batch, advantages=values)


def test_a_batch_without_signal_leaves_the_weights_alone() -> None:
    """Equal rewards everywhere: no update, so that momentum from earlier steps does not carry the
    policy on.
    """
    learner = Learner(tiny_model(), ALGORITHMS["dr_grpo"], lr=1e-2)
    learner.step(batches.batch(rewards=[0.0, 1.0]))
    before = {name: p.detach().clone() for name, p in learner.module.named_parameters()}
    metrics = learner.step(batches.batch(rewards=[1.0]))

    assert metrics["updates"] == 0
    assert all(torch.equal(before[name], p) for name, p in learner.module.named_parameters())
