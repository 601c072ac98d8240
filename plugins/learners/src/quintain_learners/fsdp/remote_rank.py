"""A rank on another machine than the driver: what it shares in memory with it elsewhere, it asks for
and sends.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from .rank import COLLECTIVE, Worker
from .remote_team import CHUNK
from .setup import Place, Setup
from .shards import local, materialize, read, rows_of
from .sources import Source
from .spares import REFERENCE, Spare
from .wire import Wire


class RemoteWorker(Worker):
    """A rank's learner.

    Args:
        rank: its number.
        setup: what all ranks are started with, without the module.
        hollow: the module without memory for its parameters.
        sources: files of the model that have parameters, by their names.
        spare: files for copies, which the driver keeps.
        wire: to the driver.
        host: of the driver, as this machine knows it.
        gpu: number of the GPU on this machine.
    """

    def __init__(
        self,
        rank: int,
        setup: Setup,
        hollow: bytes,
        sources: Mapping[str, Source],
        *,
        spare: Spare,
        wire: Wire,
        host: str,
        gpu: int,
    ) -> None:
        self._wire, self._host, self._gpu = wire, host, gpu
        self._hollow, self._files = hollow, sources
        super().__init__(rank, setup, spare=spare)
        self._images = dict.fromkeys(self._images)  # type: ignore[assignment]

    def _meet(self, rank: int, setup: Setup) -> None:
        if setup.device == "cuda":
            torch.cuda.set_device(self._gpu % torch.cuda.device_count())
        port, _, number = setup.rendezvous.lstrip(":").partition("/")
        store = TCPStore(self._host, int(port), is_master=False, timeout=COLLECTIVE)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if setup.device == "cuda" else "gloo",
            store=PrefixStore(f"learner-{number}", store),
            rank=rank,
            world_size=setup.ranks,
            timeout=COLLECTIVE,
        )

    def _module(self, setup: Setup) -> nn.Module:
        module: nn.Module = pickle.loads(self._hollow)
        self._hollow = b""
        return module

    @torch.no_grad()
    def _fill(self, copies: Sequence[nn.Module]) -> None:
        if self._sources is not None:
            super()._fill(copies)
            return
        for copied in copies:
            materialize(copied)
        found: list[bool] = [False] * dist.get_world_size()
        files = {source.path: source for source in self._files.values()}
        dist.all_gather_object(found, all(source.is_here for source in files.values()))
        for name in self._images:
            first, *others = (copied.get_parameter(name) for copied in copies)
            rows = rows_of(first)
            if not all(found) or name not in self._files:
                read(first, self._asked(name, first.shape, first.dtype))
            elif rows.start < rows.stop:
                local(first).copy_(self._files[name].read(rows))
            for other in others:
                local(other).copy_(local(first))

    def _image(self, name: str) -> Tensor:
        like = self._parameters[name]
        return self._asked(name, like.shape, like.dtype)

    def _arrived(self, value: Any) -> Any:
        return (
            self._asked(value.index, value.shape, value.dtype)
            if isinstance(value, Place)
            else value
        )

    def _asked(self, key: str | int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return a whole tensor of the driver, which the first rank asks for and gives to all."""
        if self.rank == 0:
            self._wire.send(("want", key))
            whole: Tensor = self._wire.recv()
        else:
            whole = torch.empty(shape, dtype=dtype)
        dist.broadcast(whole, 0)
        return whole

    def _deliver(self, key: str | int, part: Tensor, whole: Tensor | None) -> None:
        tensor = self.learner.ranks.whole(part.detach())  # of all ranks together
        if self.rank == 0:
            self._wire.send(("part", key, tensor.cpu()))

    def _publish(self) -> None:
        if self._sources is not None:
            return
        for name, parameter in self._parameters.items():
            if parameter.requires_grad:
                self._deliver(name, parameter, None)

    def copy(self, slot: int, reference: bool) -> None:
        super().copy(slot, reference)
        for key in (slot, REFERENCE) if reference and self._reference else (slot,):
            file = self._spare[key]
            begins = True
            while data := file.read(CHUNK):
                self._wire.send(("copied", key, begins, data))
                begins = False

    def restore(self, slot: int) -> None:
        for key in (slot, REFERENCE) if self._reference else (slot,):
            file = self._spare[key]
            self._wire.send(("copy", key, 0))
            while data := self._wire.recv():
                file.write(data)
                self._wire.send(("copy", key, file.tell()))
            file.truncate()
            file.flush()
        super().restore(slot)
