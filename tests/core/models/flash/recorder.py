"""A stand-in for CUDA graphs on a CPU: what torch is asked to compute in a record is written down
and not done, and a replay does it over the same memory.

What would make the host wait for the device, or needs its numbers, fails in a record as there.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

ATEN = torch.ops.aten
WAITS = {
    ATEN._local_scalar_dense.default,
    ATEN.equal.default,
    ATEN.is_nonzero.default,
    ATEN.masked_select.default,
    ATEN.nonzero.default,
    ATEN.repeat_interleave.Tensor,
}
REFUSED = "operation not permitted when stream is capturing"


class Graph:
    """As `torch.cuda.CUDAGraph`."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def replay(self) -> None:
        for func, args, kwargs, results in self.calls:
            again = tree_leaves(func(*args, **kwargs))
            for old, new in zip(tree_leaves(results), again, strict=True):
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


class Recorder:
    """`torch.cuda.graph` and the stream of the thread.

    Attributes:
        stream: the current one.
        modes: of which records were begun.

    Args:
        broken: a record cannot end, and its stream stays current.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, broken: bool = False) -> None:
        self.stream, self.modes = "default", list[str]()
        self._broken = broken
        monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
        monkeypatch.setattr(torch.cuda, "graph", self._graph)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: self.stream)
        monkeypatch.setattr(torch.cuda, "set_stream", self._set_stream)

    def _set_stream(self, stream: str) -> None:
        self.stream = stream

    def _graph(self, graph: Graph, *, pool: str, capture_error_mode: str) -> Recorder:
        self.modes.append(capture_error_mode)
        self._graph_now = graph
        return self

    def __enter__(self) -> None:
        self.stream, self._record = "of the record", _Record()
        self._record.__enter__()

    def __exit__(self, *error: object) -> None:
        self._record.__exit__(None, None, None)
        self._record.undo()
        if self._broken:
            raise RuntimeError(REFUSED)
        self._graph_now.calls = self._record.calls
        self.stream = "default"


class _Record(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []
        self._before: dict[int, tuple[Any, Any]] = {}
        self._own: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in WAITS:
            raise RuntimeError(f"{REFUSED}: {func}")
        for tensor in tree_leaves((args, kwargs)):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in self._own | self._before:
                    self._before[storage.data_ptr()] = storage, storage.clone()
        results = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(results):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in self._before:
                    self._own[storage.data_ptr()] = storage
        self.calls.append((func, args, kwargs or {}, results))
        return results

    def undo(self) -> None:
        """Give all memory from before the record what it had: a record computes nothing."""
        for storage, before in self._before.values():
            storage.copy_(before)
