"""What no algorithm may depend on: the cut into micro-batches, padding, layout, ids of padding and
of stops, tokens that do not train; and what every algorithm must do exactly: ratios of 1 on the
first pass, nothing for groups without signal, resume.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache
from operator import attrgetter
from typing import Any

import pytest
import torch
from torch import Tensor

from quintain.errors import RunError
from quintain.interfaces.algorithm import KL, Algorithm
from quintain.learning import ALGORITHMS, Batch, Learner, Sample
from quintain.learning.loss import weighted_loss
from quintain.learning.loss_inputs import LossInputs
from quintain.learning.pieces.advantages import Step
from quintain.types.transcript import TrainingSequence

from ...lanes import mostly_slow
from ..models.tiny import tiny_model
from . import batches
from .algorithms import INSTALLED

VARIANTS = list(INSTALLED.values())
if "gspo" in INSTALLED:  # `quintain-algorithms` is installed
    VARIANTS += [
        INSTALLED["grpo"].replace(
            name="grpo+tis", correction="tis", aggregation="prompt", advantage="process_norm"
        ),
        INSTALLED["gspo"].replace(
            name="gspo+mask", correction={"use": "sequence_mask", "limit": 0.5}, mask_truncated=True
        ),
        INSTALLED["dr_grpo"].replace(
            name="dppo_top", objective={"use": "dppo_top", "delta": 0.01, "top": 3}
        ),
        INSTALLED["dvp"].replace(
            name="dvp-coarse", prune=0.05, kl=KL(where="loss", estimator="k2", coefficient=0.1)
        ),
    ]
FAST = "reinforce grpo grpo+tis gspo reinforce_pp dppo_top dvp-coarse sft".split()
"""Of each way to get from a batch to a gradient one: raw and relative advantages, weights of tokens
and of sequences, returns per token, distributions, pruned samples, none at all.
"""
CLOSE: dict[str, Any] = {"rtol": 1e-8, "atol": 1e-11}
every_algorithm = pytest.mark.parametrize(
    "algorithm", mostly_slow(VARIANTS, FAST, name=attrgetter("name")), ids=attrgetter("name")
)


@cache
def model(kind: str = "qwen3", seed: int = 0) -> Any:
    """Copy it to train."""
    return tiny_model(
        kind, vocab=24, hidden=16, seed=seed, spread=0.4, dtype=torch.float64, pad_token_id=None
    )


@cache
def batch(kind: str = "qwen3") -> Batch:
    """Two groups of three, ragged; one reply has turns with scores, one was cut short; log-probs
    near the policy's.
    """
    made = batches.batch(groups=2, group_size=3, vocab=24, longest=7, rewards=[0.0, 1.0, 0.3])
    exact = Learner(copy.deepcopy(model(kind))).logprobs(made).tolist()
    samples = []
    for i, sample in enumerate(made.samples):
        (row,) = sample.sequences
        turns = (1, sample.tokens - 1) if i == 1 and sample.tokens > 1 else ()
        samples.append(
            replace(
                sample,
                sequences=(batches.near(row, exact),),
                turns=turns,
                turn_scores=(0.2, 0.1) if turns else (),
                truncated=i == 5,
                environment="ab"[i // 3],
            )
        )
    return replace(made, samples=tuple(samples))


def gradients(
    algorithm: Algorithm, held: Batch, *, kind: str = "qwen3", lr: float = 0.02, **options: Any
) -> list[Tensor]:
    """Of all updates of a step, unclipped, flat. ref is another model."""
    options = {"max_grad_norm": 0.0, "lr": lr, "reference": copy.deepcopy(model(kind, 1))} | options
    learner = Learner(copy.deepcopy(model(kind)), algorithm, **options)
    found: list[Tensor] = []

    def note(*_: Any) -> None:
        found.append(torch.cat([p.grad.flatten() for p in learner.module.parameters()]))  # type: ignore[union-attr]

    learner._optimizer.register_step_pre_hook(note)
    learner.step(held)
    return found


def assert_equal(got: list[Tensor], want: list[Tensor], **tolerance: float) -> None:
    assert len(got) == len(want) > 0
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, **(tolerance or CLOSE))


@pytest.mark.keeps("reinforce")
@every_algorithm
def test_cut_padding_and_layout(algorithm: Algorithm) -> None:
    """Two epochs, so that the second is off-policy: every sample alone, groups in parts, all
    together; padded or shared starts.
    """
    algorithm = algorithm.replace(epochs=2)
    whole = gradients(algorithm, batch(), token_budget=10**6)
    assert all(g.abs().max() > 1e-6 for g in whole)
    for budget in (1, 25):
        assert_equal(gradients(algorithm, batch(), token_budget=budget), whole, **CLOSE)
    # Padded algorithms go through transformers' own norms, which round to float32 even in float64.
    padded = gradients(algorithm.replace(epochs=1), batch(), layout="bucketed")
    assert_equal(padded, whole[:1], rtol=1e-4, atol=1e-6)


@pytest.mark.keeps("gspo")
@every_algorithm
def test_order_of_samples_inside_the_batch(algorithm: Algorithm) -> None:
    order = [3, 0, 5, 1, 4, 2]
    assert_equal(
        gradients(algorithm.replace(epochs=1), batch().only(order)),
        gradients(algorithm.replace(epochs=1), batch()),
        **CLOSE,
    )


@pytest.mark.keeps("reinforce")
@every_algorithm
def test_ids_of_stops_and_of_padding_are_nothing_special(algorithm: Algorithm) -> None:
    """Tokens renamed, so that a reply ends with the id that pads (0) and others with other stops:
    with the embedding's algorithms renamed too, the gradient is the same, renamed.
    """
    held = batch()
    last = held.samples[0].sequences[0].ids[-1]
    shift = (torch.arange(24) - last) % 24  # old id to new id

    def renamed(one: TrainingSequence) -> TrainingSequence:
        return replace(one, ids=tuple(int(shift[i]) for i in one.ids))

    other = replace(
        held,
        samples=tuple(replace(s, sequences=tuple(map(renamed, s.sequences))) for s in held.samples),
    )
    ends = {s.sequences[0].ids[-1] for s in other.samples}
    assert 0 in ends
    assert len(ends) > 2
    for layout in (
        ("shared", "bucketed") if algorithm.name in ("grpo", "gspo", "dvp") else ("shared",)
    ):
        found = []
        for used, moved in ((held, False), (other, True)):
            module, reference = copy.deepcopy(model()), copy.deepcopy(model("qwen3", 1))
            for one in (module, reference) if moved else ():
                weight = one.get_input_embeddings().weight.data  # tied to the head
                weight[shift] = weight.clone()
            options: dict[str, Any] = {"lr": 0.0, "max_grad_norm": 0.0, "layout": layout}
            Learner(module, algorithm.replace(epochs=1), reference=reference, **options).step(used)
            by_embedding = module.get_input_embeddings().weight.grad
            found.append(by_embedding[shift] if moved else by_embedding)
        torch.testing.assert_close(found[1], found[0], rtol=1e-6, atol=1e-8)


RELATIVE = [
    algorithm for algorithm in VARIANTS if algorithm.name != "sft" and not algorithm.kl.active
]


@pytest.mark.keeps("gspo")
@pytest.mark.parametrize(
    "algorithm", mostly_slow(RELATIVE, FAST, name=attrgetter("name")), ids=attrgetter("name")
)
def test_groups_without_signal_give_exactly_nothing(algorithm: Algorithm) -> None:
    """Equal rewards, and groups of one: no gradient at all, skipped or not."""
    algorithm = algorithm.replace(overlong=0.0, epochs=1)
    equal = replace(
        batch(),
        samples=tuple(
            replace(s, outcome=0.7, shaping=0.0, turns=(), turn_scores=()) for s in batch().samples
        ),
    )
    alone = replace(equal, samples=tuple(replace(s, group=i) for i, s in enumerate(equal.samples)))
    for held in (equal, alone):
        (found,) = gradients(algorithm, held, skip_idle=False)
        assert not found.any()
    assert not any(g.any() for g in gradients(algorithm, alone))  # or no update at all


@pytest.mark.keeps("gspo", "reinforce")
@every_algorithm
def test_ratio_is_exactly_one_on_the_first_pass(algorithm: Algorithm) -> None:
    """In float32 too, and of several micro-batches; so nothing is clipped before the first
    update.
    """
    module = copy.deepcopy(model()).float()
    algorithm = algorithm.replace(epochs=1, ratio_to="prox")
    metrics = Learner(module, algorithm, token_budget=25).step(batch())
    assert metrics["ratio.min"] == metrics["ratio.mean"] == metrics["ratio.max"] == 1.0
    assert metrics.get("clip.low", 0.0) == metrics.get("clip.high", 0.0) == 0.0


def observed(sample: Sample) -> Sample:
    """With tokens between, before and after the sampled ones that do not train."""
    (row,) = sample.sequences
    start = row.mask.index(True)
    columns: dict[str, list[Any]] = {"ids": [], "mask": [], "logps": [], "versions": []}
    for k, trains in enumerate(row.mask):
        if k > start and (k - start) % 2:
            for name, value in (("ids", 3), ("mask", False), ("logps", 0.0), ("versions", -1)):
                columns[name] += [value] * 2
        for name in columns:
            columns[name].append(getattr(row, name)[k])
        assert trains == (k >= start)
    return replace(
        sample, sequences=(TrainingSequence(**{name: tuple(x) for name, x in columns.items()}),)
    )


@every_algorithm
def test_observations_change_neither_advantages_nor_the_loss_over_fixed_log_probs(
    algorithm: Algorithm,
) -> None:
    """Terms, advantages and weights of a batch with and without observation tokens, the log-probs
    held fixed.
    """
    plain = batch()
    gaps = replace(plain, samples=tuple(map(observed, plain.samples)))
    assert sum(len(s.sequences[0].ids) for s in gaps.samples) > sum(
        len(s.sequences[0].ids) for s in plain.samples
    )
    n = plain.tokens
    draw = torch.Generator().manual_seed(1)
    prox, logp, ref = (-torch.rand(n, generator=draw, dtype=torch.float64) - 0.2 for _ in range(3))
    top = torch.rand(2, n, 3, generator=draw, dtype=torch.float64).softmax(-1).log()
    found = []
    for held in (plain, gaps):
        statistics = {
            "prox_logp": prox,
            "ref_logp": ref,
            "square": torch.full((n,), 0.4, dtype=torch.float64),
        }
        rewards = tuple(s.total for s in held.samples)
        step = Step(batch=held, rewards=rewards, statistics=statistics)
        value = algorithm.advantage(step)
        value = value[0] if algorithm.advantage.stateful else value
        advantage = (
            value
            if isinstance(value, Tensor)
            else torch.tensor(value, dtype=torch.float64)[held.sample_of_tokens]
        )
        weight = torch.tensor(algorithm.aggregation(held), dtype=torch.float64)[
            held.sample_of_tokens
        ]
        leaf = logp.clone().requires_grad_()
        terms = LossInputs(
            logp=leaf,
            mu_logp=held.mu_logp,
            prox_logp=prox,
            ref_logp=ref,
            advantage=advantage,
            entropy=torch.zeros(n),
            sample=held.sample_of_tokens,
            group=torch.tensor([s.group for s in held.samples]),
            ratio_to=algorithm.ratio_to,
            statistics={
                "top_logp": top[0],
                "prox_top_logp": top[1],
                "prox_top_has": torch.zeros(n, dtype=torch.bool),
            },
        )
        loss = weighted_loss(algorithm, terms, weight).loss
        found.append((advantage, weight, loss, torch.autograd.grad(loss, leaf)[0]))
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)


@pytest.mark.keeps("gspo", "reinforce")
@every_algorithm
def test_derivative_is_exactly_zero_at_places_that_do_not_train(algorithm: Algorithm) -> None:
    """A last observation, which no trained token follows, reaches the loss in no way at all: were
    its place scored, or read as context, its embedding would have a gradient.
    """
    tail = 23
    held = batch("llama")  # whose embedding is not tied to its head
    samples = []
    for sample in held.samples:
        (one,) = sample.sequences
        kept = tuple(i if i != tail else 1 for i in one.ids)
        longer = TrainingSequence(
            ids=(*kept, tail),
            mask=(*one.mask, False),
            logps=(*one.logps, 0.0),
            versions=(*one.versions, -1),
        )
        samples.append(replace(sample, sequences=(longer,)))
    module = copy.deepcopy(model("llama"))
    learner = Learner(
        module,
        algorithm.replace(epochs=1),
        lr=0.0,
        max_grad_norm=0.0,
        reference=copy.deepcopy(module),
    )
    learner.step(replace(held, samples=tuple(samples)))
    by_embedding = module.get_input_embeddings().weight.grad
    assert not by_embedding[tail].any()
    assert by_embedding.any()


@pytest.mark.keeps("gspo")
@every_algorithm
def test_skipping_idle_samples_changes_no_gradient(algorithm: Algorithm) -> None:
    """One group has equal rewards; two epochs."""
    held = replace(
        batch(),
        samples=tuple(
            replace(s, outcome=0.7, turns=(), turn_scores=()) if s.group else s
            for s in batch().samples
        ),
    )
    algorithm = algorithm.replace(epochs=2, overlong=0.0)
    assert_equal(
        gradients(algorithm, held, skip_idle=True),
        gradients(algorithm, held, skip_idle=False),
        **CLOSE,
    )


@pytest.mark.keeps("gspo")
@every_algorithm
def test_resume_is_bitwise(algorithm: Algorithm) -> None:
    resumes(algorithm, "float32")


def test_resume_is_bitwise_in_half_precision() -> None:
    resumes(ALGORITHMS["reinforce"].replace(name="ema", advantage="ema"), "fp16")


def resumes(algorithm: Algorithm, precision: str) -> None:
    """Three steps at once; or one, its state, and two more in a new learner of other weights."""
    steps = [
        replace(
            batch(),
            samples=tuple(replace(s, shaping=0.1 * k * i) for i, s in enumerate(batch().samples)),
        )
        for k in range(3)
    ]

    def learner(seed: int) -> Learner:
        module = copy.deepcopy(model("qwen3", seed)).float()
        return Learner(module, algorithm, lr=1e-2, warmup_steps=5, precision=precision)  # type: ignore[arg-type]

    straight = learner(0)
    told = [straight.step(one) for one in steps]
    first, second = learner(0), learner(5)
    first.step(steps[0])
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    again = [second.step(one) for one in steps[1:]]
    for x, y in zip(told[1:], again, strict=True):
        assert {k: v for k, v in x.items() if k != "seconds"} == {
            k: v for k, v in y.items() if k != "seconds"
        }
    assert_same_state(straight.state_dict(), second.state_dict())


def assert_same_state(a: Any, b: Any) -> None:
    if isinstance(a, Tensor):
        assert torch.equal(a, b)
    elif isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_same_state(a[key], b[key])
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_same_state(x, y)
    else:
        assert a == b


# ---------------------------------------------------------------- half precision


def fp16_learner(**options: Any) -> Learner:
    module = copy.deepcopy(model()).float()
    return Learner(module, ALGORITHMS["rloo"], **({"lr": 1e-2, "precision": "fp16"} | options))


def test_fp16_trains() -> None:
    """The rewarded replies become likelier; weights stay float32; gradients are those of float32,
    about.
    """
    learner = fp16_learner()
    before = learner.logprobs(batch())
    for _ in range(8):
        metrics = learner.step(batch())
    assert {p.dtype for p in learner.module.parameters()} == {torch.float32}
    assert metrics["updates"] == 1.0
    assert metrics["updates.skipped"] == 0.0
    sample = batch().sample_of_tokens
    best = torch.tensor([s.total == 1.0 for s in batch().samples])[sample]
    assert (learner.logprobs(batch()) - before)[best].mean() > 0.5
    grads = []
    for precision in ("fp16", "float32"):
        one = fp16_learner(precision=precision, lr=0.0, max_grad_norm=0.0)
        one.step(batch())
        grads.append(torch.cat([p.grad.flatten() for p in one.module.parameters()]))  # type: ignore[union-attr]
    assert torch.nn.functional.cosine_similarity(*grads, dim=0) > 0.999
    assert grads[0].norm() == pytest.approx(float(grads[1].norm()), rel=0.02)


def test_an_overflow_of_fp16_is_skipped_and_reported() -> None:
    """A loss scale that no gradient survives: weights and moments stay, the scale is halved, the
    step says so; the next ones train.
    """
    learner = fp16_learner()
    learner.step(batch())
    learner._scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40, growth_interval=10**6)
    before = copy.deepcopy(learner.state_dict())
    metrics = learner.step(batch())
    after = copy.deepcopy(learner.state_dict())
    assert metrics["updates"] == 0.0
    assert metrics["updates.skipped"] == 1.0
    assert_same_state(before["module"], after["module"])
    assert_same_state(before["optimizer"], after["optimizer"])
    assert after["updates"] == before["updates"]
    assert after["scaler"]["scale"] == 2.0**39
    for _ in range(40):
        metrics = learner.step(batch())
        if metrics["updates"]:
            break
    assert metrics["updates"] == 1.0
    assert not torch.equal(
        after["module"]["model.norm.weight"], learner.state_dict()["module"]["model.norm.weight"]
    )


def test_fp16_does_not_skip_every_step() -> None:
    """Weights that are not finite overflow at every loss scale: that is an error, not a reason to
    halve it again.
    """
    learner = fp16_learner()
    with torch.no_grad():
        learner.module.get_input_embeddings().weight[1, 0] = float("inf")
    learner._scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    assert learner.step(batch())["updates.skipped"] == 1.0
    with pytest.raises(RunError, match="not finite"):
        learner.step(batch())
