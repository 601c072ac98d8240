"""Slots, shared prefixes, weight versions, and runs that repeat bit for bit."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from quintain.engine.decoding import LayerForward
from quintain.engine.embedded import EmbeddedEngine
from quintain.engine.sampler import PLAIN_SIZE, Sampler, invert, truncate
from quintain.errors import InfrastructureError, UsageError
from quintain.learning import ModuleWeights
from quintain.models.adapters import merged_tensors
from quintain.models.lora import with_adapters
from quintain.models.prefix_tree import LONG_START, common_length
from quintain.models.snapshot import Snapshot
from quintain.types.sampling import Sampling
from quintain.types.transcript import Sampled

from ..models.architectures import architecture
from ..models.tiny import tiny_model
from .test_embedded_engine import (
    TOKENIZER,
    engine_of,
    plain_logps,
    prompts,
    run,
    sample_all,
    under_way,
)


@dataclass
class Given:
    """Weights as tensors by name."""

    version: int
    named: Mapping[str, Tensor]

    def tensors(self) -> Mapping[str, Any]:
        return self.named


def counting(engine: EmbeddedEngine) -> list[int]:
    """The number of prompt tokens (padding included) of each prefill pass from now on."""
    passes: list[int] = []
    forward = engine._forward
    extend = forward.extend

    def counted(rows: Sequence[int], ids: Sequence[Sequence[int]], starts: Sequence[int]) -> Tensor:
        passes.append(sum(map(len, ids)))
        return extend(rows, ids, starts)

    forward.extend = counted  # type: ignore[method-assign]
    return passes


def test_a_groups_prompt_is_computed_once() -> None:
    engine = engine_of(tiny_model())
    passes = counting(engine)
    run(sample_all(engine, [(list(range(30)), Sampling(seed=i, max_tokens=3)) for i in range(16)]))
    assert sum(passes) == 30


@pytest.mark.parametrize("slots", [64, 5])
def test_what_prompts_begin_with_is_computed_once(slots: int) -> None:
    """Prompts of an admission behind the same examples: of these the first one's alone, also where
    later admissions find it in the cache. Replies are those of each prompt by itself.
    """
    model = tiny_model()
    start = [7 * i % 250 for i in range(LONG_START + 1)]
    ends = [[1, 2, 3], [4], [5] * 40, [], [1, 2, 6]]
    calls = [
        ([*start, *end], Sampling(seed=i + 10 * k, max_tokens=4))
        for k, end in enumerate(ends)
        for i in range(2)
    ]
    calls.append((start[1:], Sampling(seed=99, max_tokens=4)))
    engine = engine_of(model, slots=slots)
    passes = counting(engine)
    outs = run(sample_all(engine, calls))
    # the last token of a prompt that others go on from is computed again: its logits are needed
    assert sum(passes) <= len(start) + sum(map(len, ends)) + len(ends) + len(start) - 1
    for (ids, sampling), out in zip(calls, outs, strict=True):
        assert list(out.logps) == pytest.approx(plain_logps(model, ids, out.ids, 1.0), abs=1e-5)
        assert run(sample_all(engine_of(model), [(ids, sampling)]))[0].ids == out.ids


def test_prompts_branch_from_the_one_that_shares_most() -> None:
    """The first prompt is a worked example of the others and has another one in its place; one is no
    longer than what decides; and a row of an earlier prompt holds a little of all.
    """
    start = [7 * i % 250 for i in range(400)]
    prompts_ = [[*start[:140], 1, 2, 3], start[:LONG_START], *([*start, k, 9] for k in range(5))]
    engine = engine_of(tiny_model(), slots=32)
    passes = counting(engine)

    async def scenario() -> None:
        with engine.register():  # rows keep their content
            await engine.sample([*start[:135], 99], Sampling(seed=1, max_tokens=2))
            del passes[:]
            calls = [
                engine.sample(ids, Sampling(seed=k, max_tokens=2)) for k, ids in enumerate(prompts_)
            ]
            await asyncio.gather(*calls)

    run(scenario())
    longest = len(start) + 2
    # what is left of the first one behind the old row, a token and its neighbours of each other one
    assert sum(passes) <= longest - 135 + 4 * 2 + (143 - 135) + 8


def test_later_turns_compute_only_what_is_new() -> None:
    model = tiny_model()
    engine = engine_of(model, slots=4)
    passes = counting(engine)
    starts = prompts(4, seed=5)

    async def episode(i: int) -> None:
        ids = [*starts[i], *range(20)]
        with engine.register():
            for turn in range(3):
                out = await engine.sample(ids, Sampling(seed=10 * i + turn, max_tokens=12))
                assert list(out.logps) == pytest.approx(
                    plain_logps(model, ids, out.ids, 1.0), abs=1e-4
                )
                ids = [*ids, *out.ids, 7, 7, 7]

    async def scenario() -> None:
        await asyncio.gather(*(episode(i) for i in range(4)))

    run(scenario())
    first = sum(len(s) + 20 for s in starts)
    # each later turn: the last sampled token, which was never fed, and three of the environment
    assert sum(passes) == first + 4 * 2 * 4
    assert not any(row.cached for row in engine._slots.rows)


def test_fewer_slots_than_requests_changes_no_token() -> None:
    model = tiny_model(dtype=torch.float64)
    rng = Random(0)
    calls = [
        (ids, Sampling(seed=i, max_tokens=rng.randint(1, 25)))
        for i, ids in enumerate(prompts(20, group=2))
    ]
    wide = run(sample_all(engine_of(model, slots=64), calls))
    assert [o.ids for o in run(sample_all(engine_of(model, slots=3), calls))] == [
        o.ids for o in wide
    ]


@pytest.mark.parametrize("order", [1, 2])
def test_arrival_order_does_not_matter(order: int) -> None:
    """In float32 a different batch could show in the last bits; the log-probs are equal to the last
    one.
    """
    model = tiny_model()
    calls = [
        (ids, Sampling(seed=i, max_tokens=10 + i)) for i, ids in enumerate(prompts(12, group=2))
    ]
    shuffled = list(enumerate(calls))
    Random(order).shuffle(shuffled)
    expected = run(sample_all(engine_of(model, slots=5), calls))
    got = run(sample_all(engine_of(model, slots=5), [call for _, call in shuffled]))
    assert got == [expected[i] for i, _ in shuffled]


def test_jitter_in_episodes_does_not_matter() -> None:
    """Three turns with delays of the environment between them, twice: equal to the last bit."""
    model = tiny_model()
    starts = prompts(8, seed=3)

    async def episode(engine: EmbeddedEngine, i: int, jitter: Random) -> list[Sampled]:
        outs: list[Sampled] = []
        ids = list(starts[i])
        with engine.register():
            for turn in range(1 + i % 3):
                await asyncio.sleep(jitter.random() * 0.01)
                outs.append(
                    await engine.sample(ids, Sampling(seed=100 * i + turn, max_tokens=5 + 3 * i))
                )
                ids = [*ids, *outs[-1].ids, 1]
        return outs

    async def scenario(seed: int) -> list[list[Sampled]]:
        engine = engine_of(model, slots=5)
        jitter = Random(seed)
        return await asyncio.gather(*(episode(engine, i, jitter) for i in range(8)))

    assert run(scenario(1)) == run(scenario(2))


def test_an_episode_that_waits_for_another_does_not_hang_the_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = engine_of(tiny_model(), patience=0.05)

    async def scenario() -> None:
        lock = asyncio.Lock()

        async def episode(i: int) -> None:
            with engine.register():
                async with lock:
                    await engine.sample([i], Sampling(seed=i, max_tokens=3))

        await asyncio.gather(episode(1), episode(2))

    run(scenario())
    assert engine.stalls == 1
    assert "have not come back" in caplog.text


def test_an_engine_that_need_not_repeat_does_not_wait() -> None:
    engine = engine_of(tiny_model(), reproducible=False)

    async def scenario() -> None:
        with engine.register(), engine.register():
            await engine.sample([1], Sampling(seed=0, max_tokens=3))

    run(scenario())
    assert engine.stalls == 0


def test_sharing_sees_the_learners_tensors_at_once() -> None:
    model = tiny_model()
    engine = engine_of(model)
    assert engine.shares
    sampling = Sampling(seed=0, max_tokens=10)
    before = run(engine.sample([1, 2], sampling))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.3)
    assert run(engine.update(Given(version=7, named={}))) == engine.version == 7
    after = run(engine.sample([1, 2], sampling))
    assert after.versions == (7,) * 10
    assert after.logps != before.logps
    assert list(after.logps) == pytest.approx(plain_logps(model, [1, 2], after.ids, 1.0), abs=1e-4)


def test_a_snapshot_changes_with_the_version_only() -> None:
    model = tiny_model()
    engine = engine_of(model, dtype="bfloat16")
    assert not engine.shares
    assert next(engine._module.parameters()).dtype == torch.bfloat16
    sampling = Sampling(seed=0, max_tokens=10)
    before = run(engine.sample([1, 2], sampling))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.3)
    assert run(engine.sample([1, 2], sampling)) == before
    run(engine.update(Given(version=1, named={})))
    after = run(engine.sample([1, 2], sampling))
    assert after.versions == (1,) * 10
    assert list(after.logps) == pytest.approx(plain_logps(model, [1, 2], after.ids, 1.0), abs=0.3)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.parametrize("kind", ["qwen2", "gpt2"])
def test_adapters_are_merged_into_the_snapshot(kind: str) -> None:
    from peft import LoraConfig, get_peft_model

    base = tiny_model(kind)
    targets = ["c_attn", "c_fc"] if kind == "gpt2" else ["q_proj", "down_proj"]
    config = LoraConfig(
        r=4, target_modules=targets, init_lora_weights=False, fan_in_fan_out=kind == "gpt2"
    )
    adapted = get_peft_model(copy.deepcopy(base), config)
    names = {name for name, _ in merged_tensors(adapted)}
    assert names == {name for name, _ in base.named_parameters()}
    engine = engine_of(adapted)
    assert not engine.shares
    out = run(engine.sample([1, 2], Sampling(seed=0, max_tokens=10)))
    assert list(out.logps) == pytest.approx(plain_logps(adapted, [1, 2], out.ids, 1.0), abs=1e-4)
    assert list(out.logps) != pytest.approx(plain_logps(base, [1, 2], out.ids, 1.0), abs=1e-2)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.add_(0.05)
    run(engine.update(Given(version=1, named={})))
    out = run(engine.sample([1, 2], Sampling(seed=0, max_tokens=10)))
    assert list(out.logps) == pytest.approx(plain_logps(adapted, [1, 2], out.ids, 1.0), abs=1e-4)


@pytest.mark.keeps("gpt2-torch.float32")
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["qwen3", "gpt2"])
def test_adapters_that_are_not_merged_are_decoded_from_the_learners_tensors(
    kind: str, dtype: torch.dtype
) -> None:
    """Without a copy, the log-probs are those of the module and those of the merged copy, up to
    rounding, after an update of the adapters too.
    """
    torch.manual_seed(1)
    adapted: Any = with_adapters(tiny_model(kind, dtype=dtype), {"r": 4})
    own, merged = engine_of(adapted, merge=False), engine_of(adapted)
    assert own.shares
    assert not merged.shares
    tolerance = 1e-4 if dtype == torch.float32 else 0.05
    for version in (1, 2):
        with torch.no_grad():
            for name, parameter in adapted.named_parameters():
                if "lora_" in name:
                    parameter.normal_(0, 0.1)
        weights = ModuleWeights(adapted, version)
        for engine in (own, merged):
            run(engine.update(weights))
            assert run(engine.outdated(weights)) == ""
        out = run(own.sample([1, 2], Sampling(seed=0, max_tokens=10)))
        scores = run(merged.score([1, 2, *out.ids], 2, 1.0))
        plain = plain_logps(adapted, [1, 2], out.ids, 1.0)
        assert list(out.logps) == pytest.approx(plain, abs=tolerance)
        assert list(out.logps) == pytest.approx(scores, abs=tolerance)
    other = ModuleWeights(tiny_model(kind, seed=5, dtype=dtype), 2)
    assert run(own.outdated(other)) != ""


def test_an_engine_on_another_device_decodes_a_copy() -> None:
    """Of a learner whose processes have the GPUs, and the run the weights on the host."""
    module = tiny_model("qwen3")
    engine = engine_of(module, device="cpu")
    assert engine.snapshot is not None
    other = ModuleWeights(tiny_model("qwen3", seed=5), 1)
    assert run(engine.outdated(other)) != ""
    assert run(engine.update(other)) == 1
    assert run(engine.outdated(other)) == ""
    with pytest.raises(UsageError, match="decodes the weights of the run, which has none"):
        engine_of(copy.deepcopy(module).to("meta"))


def test_adapters_are_merged_where_the_engine_needs_a_copy() -> None:
    """The error names what to change."""
    adapted = with_adapters(tiny_model("qwen3"), {"r": 4})
    with pytest.raises(UsageError, match=r"merge = false.*set model\.dtype to the precision"):
        engine_of(adapted, dtype="bfloat16", merge=False)


@pytest.mark.parametrize(
    "settings",
    [
        {"use_rslora": True, "rank_pattern": {"q_proj": 3}, "alpha_pattern": {"up_proj": 9}},
        {"init_lora_weights": "orthogonal", "bias": "none", "use_dora": False, "lora_dropout": 0.0},
        {"target_modules": ["q_proj", "embed_tokens"]},
    ],
)
def test_settings_that_are_accepted_are_exact(settings: dict[str, Any]) -> None:
    """What is published is the trained policy, and without the adapters it is the model before,
    also after updates.
    """
    base, ids = tiny_model("llama"), torch.tensor([[1, 5, 9, 22, 7, 3]])
    with torch.no_grad():
        before = base(ids).logits
        adapted: Any = with_adapters(base, {"r": 4, **settings})
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter.normal_(0, 0.2)
        published = tiny_model("llama", seed=1)
        published.load_state_dict(dict(ModuleWeights(adapted, 1).tensors()))
        torch.testing.assert_close(published(ids).logits, adapted(ids).logits, rtol=0, atol=1e-4)
        assert (published(ids).logits - before).abs().max() > 0.1
        with adapted.disable_adapter():
            torch.testing.assert_close(adapted(ids).logits, before, rtol=0, atol=1e-6)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.parametrize("name", ["qwen3-moe", "mixtral", "deepseek-v3", "gpt-oss", "llama"])
def test_adapters_on_experts_are_merged(name: str) -> None:
    """Their two maps are parameters of one module, each with an adapter; names and sums are the
    plain ones.
    """
    base = architecture(name)
    adapted = with_adapters(copy.deepcopy(base), {"r": 2})
    with torch.no_grad():
        for parameter_name, parameter in adapted.named_parameters():
            if "lora_" in parameter_name:
                parameter.normal_(0, 0.2)
    snapshot = Snapshot.needed(adapted, None)
    assert snapshot is not None
    ids = torch.tensor([[1, 5, 9, 22, 7, 3]])
    with torch.no_grad():
        expected = adapted(input_ids=ids).logits
        assert (expected - base(input_ids=ids).logits).abs().max() > 0.1
        torch.testing.assert_close(
            snapshot.module(input_ids=ids).logits, expected, rtol=0, atol=1e-4
        )


def test_weights_can_be_given_as_tensors(tmp_path: Any) -> None:
    from ..models.tiny import save_tiny

    engine = EmbeddedEngine(str(save_tiny(tmp_path, "llama")))
    other = tiny_model("llama", seed=1)
    run(engine.update(Given(version=3, named=dict(other.named_parameters()))))
    out = run(engine.sample([1, 2], Sampling(seed=0, max_tokens=10)))
    assert list(out.logps) == pytest.approx(plain_logps(other, [1, 2], out.ids, 1.0), abs=1e-4)
    some = dict(list(other.named_parameters())[:3])
    with pytest.raises(InfrastructureError, match="missing.*nothing was changed"):
        run(engine.update(Given(version=4, named=some)))
    assert engine.version == 3


def test_a_running_sequence_continues_under_new_weights() -> None:
    model = tiny_model()
    engine = engine_of(model)

    async def scenario() -> Sampled:
        task = asyncio.create_task(
            engine.sample([1, 2], Sampling(temperature=0, max_tokens=400, stop_ids=()))
        )
        await under_way(engine)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.3)
        await engine.update(Given(version=1, named={}))
        return await task

    out = run(scenario())
    first = out.versions.index(1)
    assert 0 < first < len(out.ids)
    assert out.versions == (0,) * first + (1,) * (len(out.ids) - first)
    assert list(out.logps[first:]) == pytest.approx(
        plain_logps(model, [1, 2], out.ids, 1.0)[first:], abs=1e-4
    )


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)))
def test_common_length(a: list[int], b: list[int]) -> None:
    n = common_length(a, b)
    assert a[:n] == b[:n]
    assert n == min(len(a), len(b)) or a[n] != b[n]


@given(
    st.lists(st.floats(0, 1), min_size=2, max_size=30).filter(lambda p: sum(p) > 0),
    st.floats(0, 1, exclude_max=True),
)
def test_inversion_never_draws_what_cannot_happen(weights: list[float], uniform: float) -> None:
    probs = torch.tensor(weights, dtype=torch.float64)
    drawn = int(invert(probs[None], torch.tensor([uniform], dtype=torch.float64)))
    before = float(probs[:drawn].sum())
    assert before <= uniform * float(probs.sum()) + 1e-9
    assert weights[drawn] > 0 or uniform > 1 - 1e-12


@given(st.integers(0, 2**32), st.sampled_from([0.1, 3.0, 40.0]), st.integers(0, 200))
def test_inversion_by_blocks_is_that_of_the_running_sum(seed: int, scale: float, more: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    size = PLAIN_SIZE + 1 + more
    probs = (torch.randn(5, size, generator=generator) * scale).softmax(-1)
    probs[torch.rand(5, size, generator=generator) < 0.5] = 0  # as truncation does
    probs[:, -1] += 1e-30
    uniforms = torch.tensor([0.0, 0.3, 0.9, 1 - 2**-24, 1 - 2**-53], dtype=torch.float64)

    drawn = invert(probs, uniforms)

    running = probs.double().cumsum(-1)
    goals = uniforms * running[:, -1]
    ends = running.gather(-1, drawn[:, None])[:, 0]
    share = probs.gather(-1, drawn[:, None])[:, 0].double()
    assert (share > 0).all()
    assert (ends >= goals * (1 - 1e-6)).all()
    assert (ends - share <= goals * (1 + 1e-6) + 1e-12).all()


@pytest.mark.parametrize("size", [30, PLAIN_SIZE + 5])
def test_inversion_of_what_is_no_distribution_stays_in_the_vocabulary(size: int) -> None:
    rows = torch.stack([torch.full((size,), float("nan")), torch.zeros(size), torch.ones(size)])

    drawn = invert(rows, torch.tensor([0.3, 0.3, 1 - 2**-53], dtype=torch.float64))

    assert (drawn >= 0).all()
    assert (drawn < size).all()


@given(
    st.lists(st.floats(0.001, 1), min_size=1, max_size=30),
    st.floats(0, 1),
    st.integers(0, 5),
    st.floats(0, 1),
)
def test_truncation_keeps_the_likeliest(
    weights: list[float], top_p: float, top_k: int, min_p: float
) -> None:
    probs = torch.tensor(weights, dtype=torch.float64)
    kept = truncate(probs, Sampling(top_p=top_p, top_k=top_k, min_p=min_p))
    assert kept[probs.argmax()] == probs.max()
    assert ((kept == probs) | (kept == 0)).all()
    assert not top_k or (kept > 0).sum() <= top_k
    lowest = kept[kept > 0].min()
    assert (probs[kept == 0] <= lowest).all()


def test_rows_of_a_batch_do_not_influence_each_other() -> None:
    logits = torch.randn(8, 50, generator=torch.Generator().manual_seed(0))
    uniforms = torch.rand(8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    samplings = [
        Sampling(temperature=t, top_k=k)
        for t, k in [(1, 0), (0.5, 0), (0, 0), (1, 5), (2, 0), (1, 0), (0.7, 3), (0, 0)]
    ]
    together = Sampler(samplings, logits.device, 50).pick(logits, uniforms)
    for i, sampling in enumerate(samplings):
        alone = Sampler([sampling], logits.device, 50)
        ids, logps = alone.pick(logits[i : i + 1], uniforms[i : i + 1])
        assert ids[0] == together[0][i]
        assert logps[0] == together[1][i]


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=0.0),
        Sampling(top_k=9),
        Sampling(top_p=0.9),
        Sampling(min_p=0.01),
    ],
)
def test_rows_of_a_padded_vocabulary_are_never_drawn(sampling: Sampling) -> None:
    """Their probability stays in the log-probs of the others, which the learner has as well."""
    draw = torch.Generator().manual_seed(2)
    logits = torch.randn(400, 60, generator=draw)
    logits[:, 50:] += 2
    uniforms = torch.rand(400, generator=draw, dtype=torch.float64)
    ids, logps = Sampler([sampling] * 400, logits.device, 50).pick(logits, uniforms)
    assert int(ids.max()) < 50
    expected = logits.log_softmax(-1).gather(-1, ids[:, None]).squeeze(-1)
    torch.testing.assert_close(logps, expected, rtol=0, atol=1e-5)


class Mixed(Sampler):
    """Half of the mass is that of the model, half is spread over the vocabulary."""

    def distribution(self, logits: Tensor) -> Tensor:
        probs = super().distribution(logits)
        return 0.5 * probs + 0.5 / probs.shape[-1]


class Explore(EmbeddedEngine):
    sampler = Mixed


def test_a_sampler_of_an_engine_draws_and_records_its_own_distribution() -> None:
    """First tokens and later ones, greedy ones too: their log-probs are those of the mixture."""
    model = tiny_model("llama")
    engine = Explore.sharing(model, TOKENIZER, slots=4)
    size = model.config.vocab_size
    requests = [(prompt, Sampling(seed=i, max_tokens=6)) for i, prompt in enumerate(prompts(6))]
    requests.append((prompts(1)[0], Sampling(temperature=0.0, max_tokens=6)))

    for (prompt, _), sampled in zip(requests, run(sample_all(engine, requests)), strict=True):
        own = torch.tensor(plain_logps(model, prompt, sampled.ids, 1.0), dtype=torch.float64)
        mixed = (0.5 * own.exp() + 0.5 / size).log()
        assert sampled.logps == pytest.approx(mixed.tolist(), abs=1e-5)


def test_the_cache_grows_with_what_is_stored() -> None:
    engine = engine_of(tiny_model(context=2048), slots=8)
    assert isinstance(engine._forward, LayerForward)
    run(engine.sample([1], Sampling(seed=0, max_tokens=10, stop_ids=())))
    assert engine._forward.store.rows == 1
    assert engine._forward.store.capacity == 256
    run(sample_all(engine, [([1] * 300, Sampling(seed=i, max_tokens=10)) for i in range(3)]))
    assert engine._forward.store.rows == 3
    assert engine._forward.store.capacity == 512
    assert TOKENIZER.stop_ids
