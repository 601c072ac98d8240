"""What the embedded engine does on a GPU, with the flash kernel of a CPU in place of its own:
steps over static tensors, which are made again where the cache moves.
"""

from __future__ import annotations

import gc
import inspect
import weakref
from collections.abc import Sequence
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from quintain.engine import decoding, embedded
from quintain.engine.cache import KVStore
from quintain.engine.decoding import LayerForward
from quintain.engine.embedded import EmbeddedEngine
from quintain.models import kernels
from quintain.models.flash import checks
from quintain.models.flash import runs as flash
from quintain.models.flash.caches import ReplayedSteps, StaticSteps, rows_of_graph
from quintain.models.flash.replay import WARM_UPS, GraphReplay
from quintain.models.flash.shape import AttentionShape
from quintain.types.sampling import Sampling

from ...engine.test_embedded_engine import engine_of, prompts, run, sample_all
from ..tiny import tiny_model
from . import cpu_flash


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
    assert steps == [ReplayedSteps, decoding.LayerSteps]
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
            assert forward._static._by_rows

    for _ in range(2):
        run(episode())
        assert forward.store.rows == forward.store.capacity == 0
        assert not forward._static._by_rows


def test_replayed_steps_are_made_again_where_the_cache_moves(as_on_gpu: None) -> None:
    forward = LayerForward(decoding.Decoder.of(tiny_model("qwen3")), 512)  # type: ignore[arg-type]
    forward.store.least_rows = 1
    steps = forward.steps([3, 4], 5)
    assert forward.steps([9, 2], 5) is steps
    assert forward.steps([9, 2, 1], 5) is not steps
    capacity = forward.store.capacity
    assert forward.steps([capacity, 2], 1) is not steps
    assert forward.store.capacity == capacity * 3 // 2 + (-(capacity * 3 // 2) % 256)


@pytest.mark.parametrize(
    ("rows", "found"), [(1, 1), (3, 4), (9, 16), (16, 16), (17, 32), (250, 256)]
)
def test_a_graph_has_a_power_of_two_or_a_multiple_of_sixteen_rows(rows: int, found: int) -> None:
    assert rows_of_graph(rows) == found


class Device:
    """A stand-in for CUDA: one number that a function counts up, and the stream of the thread.

    Where *broken*, a record cannot end, and its stream stays current.
    """

    def __init__(self, broken: bool = False) -> None:
        self.number = torch.zeros(1)
        self.stream, self.records, self.modes = "default", 0, list[str]()
        self._broken = broken

    def count(self) -> Tensor:
        """Count up on the default stream, and record on another."""
        if self.stream == "default":
            self.number.add_(1)
        return self.number

    def set_stream(self, stream: str) -> None:
        self.stream = stream

    def graph(self, graph: Graph, *, pool: str, capture_error_mode: str) -> Device:
        self.records += 1
        self.modes.append(capture_error_mode)
        return self

    def __enter__(self) -> None:
        self.stream = "of the record"

    def __exit__(self, *error: object) -> None:
        if self._broken:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.stream = "default"

    def use(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: Graph(self))
        monkeypatch.setattr(torch.cuda, "graph", self.graph)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: self.stream)
        monkeypatch.setattr(torch.cuda, "set_stream", self.set_stream)


class Graph:
    def __init__(self, device: Device) -> None:
        self._device = device

    def replay(self) -> None:
        self._device.count()


@pytest.mark.parametrize(("pool", "records"), [(None, 0), ("pool", 1)])
def test_a_graph_is_recorded_once_and_replayed(
    monkeypatch: pytest.MonkeyPatch, pool: str | None, records: int
) -> None:
    """Recording computes nothing; a replay does what the function does. Only the calls of this
    thread are refused while it records.
    """
    device = Device()
    device.use(monkeypatch)
    replay = GraphReplay(device.count, pool)
    assert [float(replay()) for _ in range(WARM_UPS + 3)] == [1, 2, 3, 4, 5]
    assert device.modes == ["thread_local"] * records


def test_a_record_that_fails_leaves_the_stream_and_is_not_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = Device(broken=True)
    device.use(monkeypatch)
    replay = GraphReplay(device.count, "pool")
    assert [float(replay()) for _ in range(WARM_UPS + 2)] == [1, 2, 3, 4]
    assert device.stream == "default"
    assert device.records == 1


def test_steps_that_are_dropped_are_freed_at_once() -> None:
    """A graph holds memory of the device, and the next garbage collection may be far away."""
    shape = AttentionShape(torch.device("cpu"), torch.float32, 1, 1, 8)
    store = SimpleNamespace(data=torch.zeros(1, 2, 4, 1, 8, 8))

    def make(lengths: Sequence[int], attention: object) -> SimpleNamespace:
        places = torch.zeros(len(lengths))
        return SimpleNamespace(begins=places, positions=places, step=lambda ids: ids)

    steps = StaticSteps(shape, store, make, graphs=False)
    gc.disable()
    try:
        dropped = weakref.ref(steps.begin([1]))
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
        flash.attend_cache(torch.zeros(2, 4, 8), keys, keys, torch.arange(3), begins, used, 1.0)
    assert torch.equal(seen[0], keys[2].transpose(0, 1))
    assert torch.equal(seen[1], keys[0, :, :5].transpose(0, 1))


def test_torch_takes_the_arguments_of_decoding() -> None:
    with torch.device("meta"):
        query = torch.empty(3, 4, 64, dtype=torch.bfloat16)
        keys = torch.empty(5, 2, 256, 64, dtype=torch.bfloat16)
        ends, used = (torch.empty(n, dtype=torch.int32) for n in (4, 3))
    assert flash.attend_cache(query, keys, keys, ends, ends, used, 0.1).shape == query.shape


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
