"""What the embedded engine does on a GPU, with the flash kernel of a CPU in place of its own:
steps over static tensors, which are made again where the cache moves.
"""

from __future__ import annotations

import gc
import inspect
import weakref
from collections.abc import Sequence
from itertools import pairwise
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from quintain.engine import decoding, embedded, sampler
from quintain.engine.cache import KVStore
from quintain.engine.decoding import LayerForward
from quintain.engine.embedded import EmbeddedEngine
from quintain.models import kernels
from quintain.models.flash import caches, checks
from quintain.models.flash import runs as flash
from quintain.models.flash.caches import ReplayedSteps, Results, StaticSteps, rows_of_graph
from quintain.models.flash.replay import WARM_UPS, GraphReplay
from quintain.models.flash.shape import AttentionShape
from quintain.models.module_weights import ModuleWeights
from quintain.models.transfers import room_beside_peak
from quintain.types.sampling import Sampling

from ...engine.test_embedded_engine import engine_of, prompts, run, sample_all
from ..tiny import tiny_model
from . import cpu_flash
from .recorder import Recorder


@pytest.fixture
def as_on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all take the way of a GPU, but for the graphs."""
    cpu_flash.everywhere(monkeypatch)
    monkeypatch.setattr(embedded, "on_gpu", lambda device: True)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)


def engine_of_a_cpu(model: Any, **options: Any) -> EmbeddedEngine:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding, "kernels_of", kernels.kernels_of)
        return engine_of(model, **options)


def calls_of(count: int, **sampling: Any) -> list[tuple[list[int], Sampling]]:
    rng = Random(1)
    return [
        (ids, Sampling(seed=i, max_tokens=rng.randint(1, 60), **sampling))
        for i, ids in enumerate(prompts(count, group=3))
    ]


@pytest.mark.parametrize("kind", ["qwen3", "qwen2"])
def test_tokens_and_log_probs_are_those_of_a_cpu(kind: str, as_on_gpu: None) -> None:
    """Ragged prompts and lengths, fewer slots than requests, groups, rows that end early."""
    model = tiny_model(kind, dtype=torch.float64)
    calls = calls_of(12)
    ours = engine_of(model, slots=6)
    found = run(sample_all(ours, calls))
    plain = engine_of_a_cpu(model, slots=6)
    steps: list[type] = [type(e._forward.steps([1], 1)) for e in (ours, plain)]
    assert steps == [StaticSteps, decoding.LayerSteps]
    want = run(sample_all(plain, calls))
    assert [o.ids for o in found] == [o.ids for o in want]
    assert [o.finish for o in found] == [o.finish for o in want]
    for ours_out, plain_out in zip(found, want, strict=True):
        assert list(ours_out.logps) == pytest.approx(list(plain_out.logps), abs=1e-12)


def test_memory_of_the_cache_is_given_back_when_no_episode_is_left(as_on_gpu: None) -> None:
    ours = engine_of(tiny_model("qwen3"), slots=5)
    forward: Any = ours._forward

    async def episode() -> None:
        with ours.register():
            await ours.sample([1, 2, 3], Sampling(seed=1, max_tokens=4))
            assert forward.store.rows == 5, "all slots at once: a move would drop the graphs"
            assert forward._static._made

    for _ in range(2):
        run(episode())
        assert forward.store.rows == forward.store.capacity == 0
        assert not forward._static._made


def test_replayed_steps_are_made_again_where_the_cache_moves(as_on_gpu: None) -> None:
    forward = LayerForward(decoding.Decoder.of(tiny_model("qwen3")), 512)  # type: ignore[arg-type]
    forward.store.least_rows = 1

    def made(lengths: Sequence[int], count: int) -> dict[tuple[int, int], ReplayedSteps]:
        forward.steps(lengths, count).step(torch.tensor([1] * len(lengths)))
        static: Any = forward._static
        return dict(static._made)

    first = made([3, 4], 5)
    assert made([9, 2], 5) == first, "of this many rows"
    more = made([9, 2, 1], 5)
    assert set(more) == {(4, 256)}
    capacity = forward.store.capacity
    moved = made([capacity, 2], 1)
    assert set(moved) == {(2, 512)}
    assert forward.store.capacity == capacity * 3 // 2 + (-(capacity * 3 // 2) % 256)


@pytest.mark.parametrize("bursts", [[8], [2, 6], [3, 3, 2], [1] * 8])
def test_the_reach_of_a_step_follows_from_its_longest_row(
    as_on_gpu: None, monkeypatch: pytest.MonkeyPatch, bursts: list[int]
) -> None:
    """Neither from where a burst begins, which the clock decides, nor from the room of the cache:
    the kernel adds up in another order for another reach.
    """
    reaches: list[int] = []
    attend = caches.attend_cache

    def seen(*args: Any) -> Tensor:
        reaches.append(args[6])
        return attend(*args)

    monkeypatch.setattr(caches, "attend_cache", seen)
    decoder: Any = decoding.Decoder.of(tiny_model("qwen3", layers=1))
    forward = LayerForward(decoder, 1024)
    lengths = [252, 3]
    for count in bursts:
        steps = forward.steps(lengths, count)
        for _ in range(count):
            steps.step(torch.tensor([1, 2]))
        lengths = [length + count for length in lengths]
    assert reaches == [256] * 4 + [512] * 4


@pytest.mark.parametrize(
    ("rows", "found"), [(1, 1), (3, 4), (9, 16), (16, 16), (17, 32), (250, 256)]
)
def test_a_graph_has_a_power_of_two_or_a_multiple_of_sixteen_rows(rows: int, found: int) -> None:
    assert rows_of_graph(rows) == found


@pytest.mark.parametrize(("pool", "records"), [(None, 0), ("pool", 1)])
def test_a_graph_is_recorded_once_and_replayed(
    monkeypatch: pytest.MonkeyPatch, pool: str | None, records: int
) -> None:
    """Recording computes nothing; a replay does what the function does. Only the calls of this
    thread are refused while it records.
    """
    recorder, number = Recorder(monkeypatch), torch.zeros(1)
    replay = GraphReplay(lambda: number.add_(1), pool, torch.empty_like)
    assert [float(replay()) for _ in range(WARM_UPS + 3)] == [1, 2, 3, 4, 5]
    assert recorder.modes == ["thread_local"] * records


def test_a_record_that_fails_leaves_the_stream_and_is_not_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorder, number = Recorder(monkeypatch, broken=True), torch.zeros(1)
    replay = GraphReplay(lambda: number.add_(1), "pool", torch.empty_like)
    assert [float(replay()) for _ in range(WARM_UPS + 2)] == [1, 2, 3, 4]
    assert recorder.stream == "default"
    assert len(recorder.modes) == 1


def test_what_waits_for_the_device_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder, number = Recorder(monkeypatch), torch.zeros(1)

    def count() -> Tensor:
        return number.add_(1 if float(number) < 9 else 0)

    replay = GraphReplay(count, "pool", torch.empty_like)
    assert [float(replay()) for _ in range(WARM_UPS + 2)] == [1, 2, 3, 4]
    assert recorder.stream == "default"
    assert len(recorder.modes) == 1


def test_graphs_share_the_memory_of_their_results() -> None:
    results = Results(8)
    first, second = results.room(torch.zeros(8, 3)), results.room(torch.zeros(2, 3))
    assert first.shape == (8, 3)
    assert second.shape == (2, 3)
    assert first.data_ptr() == second.data_ptr()


class Memory:
    """A stand-in for what torch says of the memory of a GPU, in bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, free: int) -> None:
        self.free, self.held, self.most = free, 10, 10
        answers = {
            "mem_get_info": lambda: (self.free, 10_000),
            "memory_allocated": lambda: self.held,
            "memory_reserved": lambda: self.held,
            "max_memory_allocated": lambda: self.most,
        }
        for name, answer in answers.items():
            monkeypatch.setattr(torch.cuda, name, lambda device, answer=answer: answer())


@pytest.fixture
def recorder(as_on_gpu: None, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Let all take the way of a GPU, graphs too."""
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
    return Recorder(monkeypatch)


def moved(model: Any) -> None:
    """Change all weights in their place, as an optimizer does."""
    with torch.no_grad():
        for i, parameter in enumerate(model.parameters()):
            parameter.mul_(1 + 0.02 * (i % 7))


def trained(engine: EmbeddedEngine, model: Any, steps: int) -> list[list[Any]]:
    """Sample, then change the weights: the steps of a run."""
    found = []
    for version in range(1, steps + 1):

        async def step() -> list[Any]:
            with engine.register():
                return await sample_all(engine, calls_of(6))

        found.append(run(step()))
        moved(model)
        run(engine.update(ModuleWeights(model, version)))
    return found


@pytest.mark.parametrize(
    ("free", "in_steps"), [(10**9, [4, 4, 0, 0]), (100, [4, 4, 4, 4])], ids=["room", "no-room"]
)
def test_graphs_stay_over_updates_where_learner_and_cache_have_room(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, free: int, in_steps: list[int]
) -> None:
    """Replies are those of plain steps, of the weights of their step. The first step gives the
    memory back: no update has shown yet what the learner needs.
    """
    Memory(monkeypatch, free=free)
    model, same = (tiny_model("qwen3", dtype=torch.float64) for _ in range(2))
    ours, plain = engine_of(model, slots=6), engine_of_a_cpu(same, slots=6)
    counts = [len(recorder.modes)]  # the check of the forward is one
    for _ in in_steps:
        (found,), (want,) = trained(ours, model, 1), trained(plain, same, 1)
        counts.append(len(recorder.modes))
        assert [o.ids for o in found] == [o.ids for o in want]
        for one, other in zip(found, want, strict=True):
            assert list(one.logps) == pytest.approx(list(other.logps), abs=1e-12)
    assert [b - a for a, b in pairwise(counts)] == in_steps


def test_the_numbers_of_a_draw_are_sent_before_the_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sent after it they would wait for its end, and so would the host with the draw itself."""
    order: list[str] = []
    send, step = sampler.to_device, decoding.LayerSteps.step

    def sent(values: Any, device: torch.device, dtype: Any = torch.long) -> Tensor:
        order.append(str(dtype))
        return send(values, device, dtype)

    def stepped(self: Any, ids: Tensor) -> Tensor:
        order.append("step")
        return step(self, ids)

    engine = engine_of(tiny_model("qwen3"), slots=2)
    monkeypatch.setattr(sampler, "to_device", sent)
    monkeypatch.setattr(decoding.LayerSteps, "step", stepped)
    run(engine.sample([1, 2, 3], Sampling(seed=1, max_tokens=4)))
    assert order == ["torch.int64", *["torch.float64", "step"] * 3]


def test_an_engine_apart_from_the_learner_does_not_know_what_that_needs(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    Memory(monkeypatch, free=10**9)
    model = tiny_model("qwen3", dtype=torch.float64)
    engine = engine_of(model, slots=6, device="cpu")
    for _ in range(3):
        trained(engine, model, 1)
        store: Any = engine._forward.store
        assert store.rows == 0


def test_kept_memory_leaves_room_for_the_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 1,000 bytes this process held 700 at most, 400 of which it still holds: 300 and those that
    it keeps come on top, and a tenth of what is free may be in pieces.
    """
    memory = Memory(monkeypatch, free=600)
    memory.held, memory.most = 400, 700
    device = torch.device("cpu")
    assert room_beside_peak(device, 240)
    assert not room_beside_peak(device, 241)


def test_steps_that_are_dropped_are_freed_at_once() -> None:
    """A graph holds memory of the device, and the next garbage collection may be far away."""
    shape = AttentionShape(torch.device("cpu"), torch.float32, 1, 1, 8)
    store = SimpleNamespace(data=torch.zeros(1, 2, 4, 1, 8, 8), rows=4)

    def make(lengths: Sequence[int], attention: object) -> SimpleNamespace:
        places = torch.zeros(len(lengths))
        return SimpleNamespace(begins=places, positions=places, step=lambda ids: ids)

    steps = StaticSteps(shape, store, make, graphs=False)
    gc.disable()
    try:
        steps.begin([1]).step(torch.zeros(1, dtype=torch.long))
        (dropped,) = map(weakref.ref, steps._made.values())
        steps.clear()
        assert dropped() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("capacity", [256, 300])
def test_the_cache_is_shown_to_the_kernel_as_rows_of_tokens(capacity: int) -> None:
    """Strides and beginnings name the same numbers as the cache's own places."""
    keys = torch.arange(3 * 2 * capacity * 8, dtype=torch.float32).view(3, 2, capacity, 8)
    seen: list[Tensor] = []

    def kernel(query: Tensor, flat: Tensor, *args: Any, **options: Any) -> list[Tensor]:
        begin, used = args[2].tolist(), options["seqused_k"].tolist()
        seen.extend(flat[b : b + n] for b, n in zip(begin[:-1], used, strict=True))
        return [query]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.ops.aten, "_flash_attention_forward", kernel)
        begins = torch.tensor([2 * 2 * capacity, 0, 0], dtype=torch.int32)
        used = torch.tensor([capacity, 5], dtype=torch.int32)
        flash.attend_cache(torch.zeros(2, 4, 8), keys, keys, torch.arange(3), begins, used, 7, 1.0)
    assert torch.equal(seen[0], keys[2].transpose(0, 1))
    assert torch.equal(seen[1], keys[0, :, :5].transpose(0, 1))


def test_torch_takes_the_arguments_of_decoding() -> None:
    with torch.device("meta"):
        query = torch.empty(3, 4, 64, dtype=torch.bfloat16)
        keys = torch.empty(5, 2, 256, 64, dtype=torch.bfloat16)
        ends, used = (torch.empty(n, dtype=torch.int32) for n in (4, 3))
    assert flash.attend_cache(query, keys, keys, ends, ends, used, 256, 0.1).shape == query.shape


def test_a_kernel_that_misreads_caches_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    check = inspect.unwrap(checks.flash_reads_caches)
    shape = AttentionShape(torch.device("cpu"), torch.bfloat16, 4, 2, 16)
    monkeypatch.setattr(checks, "flash_works", lambda shape: True)
    monkeypatch.setattr(checks, "attend_cache", cpu_flash.attend_cache)
    assert check(shape)
    assert not caplog.records
    monkeypatch.setattr(checks, "attend_cache", lambda *args: cpu_flash.attend_cache(*args) * 1.1)
    assert not check(shape)
    assert "flash decoding is not used: its results are off by 0.1" in caplog.text
    monkeypatch.setattr(checks, "flash_works", lambda shape: False)
    assert not check(shape)


def test_a_cache_grows_layer_by_layer_and_keeps_its_content() -> None:
    store = KVStore(3, 2, 4, dtype=torch.float32, device=torch.device("cpu"), context=4096)
    store.reserve(2, 10)
    for data in store.data:
        data.normal_()
    before = [data.clone() for data in store.data]
    sizes: list[int] = []
    empty = store._empty

    def counted(rows: int, capacity: int) -> Tensor:
        sizes.append(sum(data.numel() for data in store.data))
        return empty(rows, capacity)

    store._empty = counted  # type: ignore[method-assign]
    store.reserve(4, 300)
    old, new = before[0].numel(), store.data[0].numel()
    assert sizes == [3 * old, 2 * old + new, old + 2 * new], "old and new of one layer at once"
    for data, earlier in zip(store.data, before, strict=True):
        assert torch.equal(data[:, :2, :, :256], earlier)
        assert not data[:, 2:].any()
        assert not data[:, :, :, 256:].any()
