"""A run stops where engine and learner disagree about the same tokens, and says which part is at
fault; else never.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from quintain.engine.cache import KVStore
from quintain.engine.embedded import EmbeddedEngine
from quintain.errors import UndeliveredWeights
from quintain.learning import ALGORITHMS, Batch, Learner, Sample, SamplerMismatch
from quintain.models.forward import Forward
from quintain.models.sampler_mismatch import differences, own_logps, typical_difference
from quintain.models.snapshot import Snapshot
from quintain.recipe.plan import (
    MISMATCH_LIMIT_ADAPTERS,
    MISMATCH_LIMIT_FLOAT32,
    MISMATCH_LIMIT_HALF,
    RunPlan,
)
from quintain.recipe.tables import Recipe
from quintain.store.run_folder import Record
from quintain.types.sampling import Sampling
from quintain.types.transcript import Sampled

from ..learning import batches
from ..learning.batches import sequence
from ..models.tiny import save_tiny, tiny_model
from . import everything
from .everything import played, settings

pytestmark = pytest.mark.usefixtures("no_curves")

STALE = {"plan": {"staleness": 1}}


def recipe(**changes: Any) -> Recipe:
    return settings(
        **{
            "environments": [{"use": f"{everything.__name__}:Word"}],
            "algorithm": {"use": "grpo"},
            "sampling__max_tokens": 24,
            "evaluation__every": 0,
        }
        | changes
    )


def steps(place: Path, **changes: Any) -> list[Record]:
    """The metrics of each step of a run."""
    return played(place / "run", recipe(**changes))[0][1:]


@pytest.mark.keeps("{}-0.01")
@pytest.mark.parametrize(
    ("changes", "limit"),
    [
        ({}, MISMATCH_LIMIT_FLOAT32),
        pytest.param({"model__dtype": "bfloat16"}, MISMATCH_LIMIT_HALF, marks=pytest.mark.slow),
        pytest.param({"learner__precision": "bf16"}, MISMATCH_LIMIT_HALF, marks=pytest.mark.slow),
        ({"model__dtype": "bfloat16", "learner__precision": "bf16"}, MISMATCH_LIMIT_HALF),
        pytest.param({"learner__precision": "fp16"}, MISMATCH_LIMIT_HALF, marks=pytest.mark.slow),
        pytest.param(
            {"sampling__temperature": 0.6}, MISMATCH_LIMIT_FLOAT32, marks=pytest.mark.slow
        ),
        ({"model__lora": {"r": 4}}, MISMATCH_LIMIT_FLOAT32),
        pytest.param({"algorithm__args": STALE}, MISMATCH_LIMIT_FLOAT32, marks=pytest.mark.slow),
        ({"algorithm__args": STALE, "model__dtype": "bfloat16"}, MISMATCH_LIMIT_HALF),
        pytest.param(
            {"algorithm__args": {"minibatches": 3, "epochs": 2}},
            MISMATCH_LIMIT_FLOAT32,
            marks=pytest.mark.slow,
        ),
        ({"environments": [{"use": f"{everything.__name__}:Talk"}]}, MISMATCH_LIMIT_FLOAT32),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_healthy_run_stays_far_below_the_limit(
    changes: dict[str, Any], limit: float, tmp_path: Path
) -> None:
    for step in steps(tmp_path, **changes):
        assert step["mismatch.sample"] < limit / 5


@pytest.mark.more
def test_a_windowed_model_in_fixed_batches_is_healthy(tmp_path: Path) -> None:
    model = save_tiny(tmp_path / "model", "mistral", sliding_window=6)
    for step in steps(tmp_path, model__name=str(model)):
        assert step["mismatch.sample"] < MISMATCH_LIMIT_FLOAT32 / 5


@pytest.mark.parametrize(
    ("changes", "limit"),
    [
        ({"model__lora": {"r": 4}}, MISMATCH_LIMIT_FLOAT32),
        ({"model__lora": {"r": 4}, "model__dtype": "bfloat16"}, MISMATCH_LIMIT_ADAPTERS),
        ({"model__dtype": "bfloat16"}, MISMATCH_LIMIT_HALF),
        ({"model__lora": {"r": 4}, "run__max_sample_mismatch": 0.05}, 0.05),
    ],
    ids=str,
)
def test_adapters_merged_in_half_precision_may_differ_by_more(
    changes: dict[str, Any], limit: float
) -> None:
    assert RunPlan.of(recipe(**changes)).learner.max_sample_mismatch == limit


def shifted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine records other log-probs than those that it sampled with."""
    sample = EmbeddedEngine.sample

    async def wrong(self: EmbeddedEngine, ids: Any, sampling: Sampling) -> Sampled:
        out = await sample(self, ids, sampling)
        return replace(out, logps=tuple(logp - 0.4 for logp in out.logps))

    monkeypatch.setattr(EmbeddedEngine, "sample", wrong)


def mixed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that shares a prompt copies the cache of another prompt."""
    copy = KVStore.copy

    def wrong(self: KVStore, moves: Sequence[tuple[int, int, int]]) -> None:
        others = [source for source, _, _ in (*moves[3:], *moves[:3])]
        copy(self, [(other, *move[1:]) for other, move in zip(others, moves, strict=True)])

    monkeypatch.setattr(KVStore, "copy", wrong)


def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's copy keeps the initial weights of a layer."""
    refresh = Snapshot.refresh
    filled = set[int]()

    def wrong(self: Snapshot, weights: Any) -> None:
        tensor = self.module.get_parameter("model.layers.1.mlp.down_proj.weight")
        before = tensor.clone()
        refresh(self, weights)
        if id(self) in filled:
            tensor.data.copy_(before)
        filled.add(id(self))

    monkeypatch.setattr(Snapshot, "refresh", wrong)


def displaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The learner's layout is right on the short texts of the probe alone."""
    statistics = Forward.statistics

    def wrong(self: Forward, prefix_groups: Any, **options: Any) -> Any:
        found = statistics(self, prefix_groups, **options)
        short = max(len(row.ids) for group in prefix_groups for row in group) < 10
        return found if short else replace(found, logp=found.logp - 0.4)

    monkeypatch.setattr(Forward, "statistics", wrong)


PATH = "LayerForward over Qwen3ForCausalLM"
CACHE = f"At fault: the cache of {PATH} was wrong"
FROM_START = rf"{CACHE}.*, from its token \d+ of \d+ on"
WEIGHT = r"another model\.layers\.1\.mlp\.down_proj\.weight of Linear than the learner"


@pytest.mark.more
@pytest.mark.parametrize(
    ("plant", "changes", "fault"),
    [
        (shifted, {}, FROM_START.replace(r"token \d+", "token 1")),
        (mixed_up, {}, FROM_START),
        (mixed_up, {"model__dtype": "bfloat16"}, CACHE),
        (shifted, {"algorithm__args": STALE}, CACHE),
        (
            displaced,
            {},
            "At fault: the learner's forward differs from that of Qwen3ForCausalLM itself",
        ),
    ],
)
def test_a_wrong_part_stops_the_run(
    plant: Callable[[pytest.MonkeyPatch], None],
    changes: dict[str, Any],
    fault: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    with pytest.raises(SamplerMismatch, match=fault) as stopped:
        steps(tmp_path, **changes)
    assert re.search(r"differ by 0\.\d+ nats|differ by \d(\.\d)? nats", str(stopped.value))


def test_a_tensor_that_the_engine_does_not_have_stops_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a learning rate whose steps no log-prob shows."""
    forgotten(monkeypatch)
    with pytest.raises(UndeliveredWeights, match=f"{PATH} has {WEIGHT} in version 1"):
        steps(tmp_path, model__dtype="bfloat16", learner__lr=1e-6)
    monkeypatch.undo()


def turned(monkeypatch: pytest.MonkeyPatch) -> None:
    """A buffer that no checkpoint has is wrong after an update (vllm-project/vllm#16564)."""
    refresh = Snapshot.refresh

    def wrong(self: Snapshot, weights: Any) -> None:
        refresh(self, weights)
        self.module.model.rotary_emb.inv_freq.mul_(0.8)

    monkeypatch.setattr(Snapshot, "refresh", wrong)


def untempered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Log-probs are those before the temperature (huggingface/trl#4159)."""
    sample = EmbeddedEngine.sample

    async def wrong(self: EmbeddedEngine, ids: Any, sampling: Sampling) -> Sampled:
        out = await sample(self, ids, sampling)
        logps = own_logps(self.snapshot.module, sequence([*ids], [*out.ids]), 1.0)
        return replace(out, logps=tuple(logps))

    monkeypatch.setattr(EmbeddedEngine, "sample", wrong)


@pytest.mark.keeps("turned-float32")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("plant", [turned, untempered])
def test_what_is_no_tensor_shows_in_log_probs_of_one_step(
    plant: Any, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    changes = {"engine__args": {"dtype": dtype}, "sampling__temperature": 0.5}
    with pytest.raises(SamplerMismatch):
        steps(tmp_path, learner__lr=1e-6, model__lora={"r": 4}, **changes)


@pytest.mark.more
def test_the_check_can_be_switched_off_or_widened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shifted(monkeypatch)
    assert all(
        "mismatch.sample" not in step
        for step in steps(tmp_path / "off", run__max_sample_mismatch="none")
    )
    assert all(
        0.2 < step["mismatch.sample"] < 0.4
        for step in steps(tmp_path / "wide", run__max_sample_mismatch=0.5)
    )


def test_stale_tokens_are_compared_with_the_weights_that_sampled_them(tmp_path: Path) -> None:
    """The learner moves by nats in a step; the engine's scores of what it sampled do not."""
    records = steps(tmp_path, algorithm__args=STALE, learner__lr=0.1)
    assert max(step["mismatch.max"] for step in records) > 1
    assert max(step["mismatch.sample"] for step in records) < MISMATCH_LIMIT_FLOAT32 / 5


@pytest.mark.more
def test_what_a_pruned_policy_sampled_is_not_scored_without_pruning(tmp_path: Path) -> None:
    """Log-probs of the renormalised distribution are compared with the learner's, which prunes
    alike, or not at all.
    """
    first, *stale = steps(tmp_path, algorithm__args={**STALE, "prune": 0.3})
    assert first["mismatch.sample"] < MISMATCH_LIMIT_FLOAT32 / 5
    assert stale
    assert all("mismatch.sample" not in step for step in stale)


def scored_batch(learner: Learner, shift: float = 0.0, version: int = 0) -> Batch:
    """A batch whose log-probs are the learner's, those of the fourth sample off by *shift*."""
    made = batches.batch(longest=12)
    logps = iter(learner.logprobs(made).tolist())
    samples: list[Sample] = []
    for i, sample in enumerate(made.samples):
        (row,) = sample.sequences
        own = tuple(next(logps) + shift * (i == 3) if trains else 0.0 for trains in row.mask)
        versions = tuple(version if trains else -1 for trains in row.mask)
        samples.append(
            replace(
                sample,
                outcome=float(i % 2),
                sequences=(replace(row, logps=own, versions=versions),),
            )
        )
    return replace(made, samples=tuple(samples))


def test_a_mismatch_is_found_before_any_weight_moves() -> None:
    learner = Learner(tiny_model(), ALGORITHMS["grpo"], lr=0.1, max_sample_mismatch=0.01)
    before = {name: tensor.clone() for name, tensor in learner.module.state_dict().items()}
    batch = scored_batch(learner, shift=0.3)
    with pytest.raises(SamplerMismatch, match=r"rounding explains 0\.01") as found:
        learner.step(batch)
    assert found.value.sequences == batch.samples[3].sequences
    assert found.value.difference == pytest.approx(
        0.3 / (1 + 8 / batch.samples[3].tokens), rel=1e-3
    )
    assert learner.version == learner.updates == 0
    assert all(
        torch.equal(tensor, before[name]) for name, tensor in learner.module.state_dict().items()
    )
    assert learner.step(scored_batch(learner))["mismatch.sample"] < 1e-5
    # version 0 is stale by now
    assert "mismatch.sample" not in learner.step(scored_batch(learner, shift=0.3))


def test_single_tokens_of_half_precision_do_not_count() -> None:
    """One token in five may go to another expert; nine of ten answers of one token are below their
    own limit.
    """
    gaps = [0.01, 0.9, 0.02, 0.01, 0.0] * 4
    assert typical_difference(gaps, [0.0] * 20) == pytest.approx(0.01 / 1.4)
    assert typical_difference([0.5], [0.0]) == pytest.approx(0.5 / 9)


def peaked(wrong: float, *, routed: bool = False) -> dict[int, float]:
    """`differences` of 20 samples of 48 near-certain tokens and 4 choices, whose log-probs are off
    by *wrong* nats.
    """
    mu, prox = torch.full((20, 52), -1e-4), torch.full((20, 52), -2e-4)
    mu[:, ::13], prox[:, ::13] = -1.0, -1.0 - wrong
    if routed:  # the learner sends one near-certain token in four to another expert
        prox[:, 1::4] = -1.5
    sample = torch.arange(20).repeat_interleave(52)
    return differences(prox.flatten(), mu.flatten(), sample, torch.ones(20 * 52, dtype=torch.bool))


def test_the_choices_of_a_peaked_policy_are_compared() -> None:
    """The median over all tokens is 1e-4 nats, whatever happens to the few that are choices."""
    assert max(peaked(0.4).values()) == pytest.approx(0.4 / (1 + 32 / 80), rel=1e-5)
    assert sorted(peaked(0.4).values())[-2] < 1e-3  # one sample speaks for all
    assert max(peaked(0.01).values()) < MISMATCH_LIMIT_HALF / 10
    assert max(peaked(0.01, routed=True).values()) < MISMATCH_LIMIT_HALF / 10
