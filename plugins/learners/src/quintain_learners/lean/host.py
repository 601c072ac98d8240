"""AdamW in host memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class HostAdamW(Optimizer):
    """AdamW whose float32 weights and moments lie in host memory. Each step copies the gradients to
    the host and the new weights, rounded to the parameters' type, to the device.

    Rounding loses nothing that adds up: the weights that learn are those in float32.
    """

    def __init__(self, groups: Any, **settings: Any) -> None:
        super().__init__(groups, dict(settings))
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
        for group, on_host, masters in zip(
            self.param_groups, self._adamw.param_groups, self._masters, strict=True
        ):
            on_host["lr"] = group["lr"]
            for parameter, master in zip(group["params"], masters, strict=True):
                if parameter.grad is None:
                    continue
                # One at a time, so that host memory holds one gradient and not all of them.
                master.grad = _to_host(parameter.grad)
                self._adamw.step()
                parameter.copy_(master)
                master.grad = None
        return loss

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
