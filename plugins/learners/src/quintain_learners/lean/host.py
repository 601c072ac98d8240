"""AdamW in host memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

PIECE = 2**26
"""Bytes that are copied at a time between a GPU and the host."""
BUFFERS = 2
"""Pieces in each direction that are under way at once."""


class HostAdamW(Optimizer):
    """AdamW whose float32 weights and moments lie in host memory. Each step copies the gradients to
    the host and the new weights, rounded to the parameters' type, to the device. Between a GPU and
    the host, pieces are under way while the weights of others are computed.

    Rounding loses nothing that adds up: the weights that learn are those in float32.
    """

    def __init__(self, groups: Any, **settings: Any) -> None:
        super().__init__(groups, dict(settings))
        self._lanes: list[Lane] = []
        self._masters = [
            [torch.nn.Parameter(_to_host(p.detach()).clone()) for p in group["params"]]
            for group in self.param_groups
        ]
        on_host = [
            {**group, "params": masters}
            for group, masters in zip(self.param_groups, self._masters, strict=True)
        ]
        self._adamw = torch.optim.AdamW(on_host, fused=True, **settings)
        self.state = self._adamw.state

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Take one step of all parameters that have a gradient."""
        loss = None if closure is None else closure()
        trained = [
            (index, parameter, master)
            for index, (group, masters) in enumerate(
                zip(self.param_groups, self._masters, strict=True)
            )
            for parameter, master in zip(group["params"], masters, strict=True)
            if parameter.grad is not None
        ]
        for group, on_host in zip(self.param_groups, self._adamw.param_groups, strict=True):
            on_host["lr"] = group["lr"]
        gradients = self._arriving([parameter.grad for _, parameter, _ in trained])
        for _, parameter, master in trained:
            # One at a time, so that host memory holds one gradient and not all of them.
            master.grad = next(gradients).view_as(master)
            self._adamw.step()
            master.grad = None
            self._send(master, parameter)
        return loss

    def _arriving(self, tensors: Sequence[Tensor]) -> Iterator[Tensor]:
        """Yield each of *tensors* in float32 on the host, flat. Pieces of those that follow arrive
        meanwhile.
        """
        if not on_gpu(tensors):
            yield from (_to_host(tensor).reshape(-1) for tensor in tensors)
            return
        lane = self._lane(0)
        pieces = (piece for tensor in tensors for piece in pieces_of(tensor))
        under_way = deque(lane.fetch(piece) for piece in islice(pieces, BUFFERS))
        for tensor in tensors:
            whole = torch.empty(tensor.numel(), dtype=torch.float32)
            for part in pieces_of(whole, count=PIECE // tensor.element_size()):
                arrived, event = under_way.popleft()
                event.synchronize()
                part.copy_(arrived)
                if (piece := next(pieces, None)) is not None:
                    under_way.append(lane.fetch(piece))
            yield whole

    def _send(self, source: Tensor, target: Tensor) -> None:
        """Copy *source*, of the host, to *target*, rounded to its type."""
        if not on_gpu([target]):
            target.copy_(source)
            return
        count = PIECE // target.element_size()
        flat = target.view(-1)
        for part, there in zip(
            pieces_of(source, count=count), pieces_of(flat, count=count), strict=True
        ):
            self._lane(1).send(part, there)

    def _lane(self, direction: int) -> Lane:
        if not self._lanes:
            self._lanes = [Lane(), Lane()]
        return self._lanes[direction]

    def state_dict(self) -> dict[str, Any]:
        """Return the float32 weights and the state of AdamW."""
        masters = [[m.detach() for m in group] for group in self._masters]
        return {"masters": masters, "adamw": self._adamw.state_dict()}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; the parameters become the float32 weights, rounded."""
        self._adamw.load_state_dict(state_dict["adamw"])
        self.state = self._adamw.state
        for masters, saved in zip(self._masters, state_dict["masters"], strict=True):
            for master, values in zip(masters, saved, strict=True):
                master.copy_(values)
        for on_device, learned in self._pairs():
            on_device.copy_(learned)

    def _pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        for group, masters in zip(self.param_groups, self._masters, strict=True):
            yield from zip(group["params"], masters, strict=True)


def _to_host(tensor: Tensor) -> Tensor:
    return tensor.to("cpu", torch.float32)


class Lane:
    """Copies between a GPU and pinned memory of the host, in the order of the device's stream. The
    host waits where a buffer is still in use.
    """

    def __init__(self) -> None:
        self._buffers = [self.pinned(PIECE) for _ in range(BUFFERS)]
        self._events: list[Any] = [None] * BUFFERS
        self._turn = 0

    def pinned(self, size: int) -> Tensor:
        """Return *size* bytes of pinned memory."""
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def begin(self, source: Tensor, target: Tensor) -> Any:
        """Begin to copy; return the event of its end."""
        target.copy_(source, non_blocking=True)
        event: Any = cast(Any, torch.cuda).Event()
        event.record(torch.cuda.current_stream(source.device if source.is_cuda else target.device))
        return event

    def fetch(self, piece: Tensor) -> tuple[Tensor, Any]:
        """Begin to copy *piece* of the device; return where it arrives, which is used again after
        the next `BUFFERS` calls, and the event after which it is there.
        """
        buffer = self._buffer(piece)
        self._events[self._turn] = event = self.begin(piece, buffer)
        return buffer, event

    def send(self, part: Tensor, target: Tensor) -> None:
        """Begin to copy *part* of the host to *target*, rounded to its type. *part* may change."""
        buffer = self._buffer(target)
        buffer.copy_(part)
        self._events[self._turn] = self.begin(buffer, target)

    def _buffer(self, like: Tensor) -> Tensor:
        self._turn = (self._turn + 1) % BUFFERS
        if (event := self._events[self._turn]) is not None:
            event.synchronize()
        return self._buffers[self._turn][: like.nbytes].view(like.dtype)


def pieces_of(tensor: Tensor, *, count: int | None = None) -> Iterator[Tensor]:
    """Yield *tensor*, flat, in pieces of *count* numbers; by default of `PIECE` bytes."""
    yield from torch.split(tensor.reshape(-1), count or PIECE // tensor.element_size())


def on_gpu(tensors: Sequence[Tensor]) -> bool:
    """Return whether *tensors* are on a GPU."""
    return any(tensor.is_cuda for tensor in tensors)
