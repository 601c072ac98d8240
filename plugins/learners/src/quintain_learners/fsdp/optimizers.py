"""Optimizers of a rank's parts of the parameters: moments in 8 bits, or in host memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from ..lean import BLOCK, SMALLEST, EightBitAdamW, HostAdamW, Moment
from .setup import Moments
from .shards import as_part, local, most_rows, part_of, rows_of


class PartOptimizer(Optimizer):
    """An optimizer of plain tensors, for parameters of which a rank may have a part.

    AdamW acts on each number alone, so a part takes the step of the whole. Its state names parts as
    parts of wholes: others read it as that of one process.

    Args:
        kind: ``adamw_8bit`` or ``adamw_host``, see `quintain_learners.lean.Lean`.
        groups: of parameters, as of `torch.optim.AdamW`.
        settings: lr, betas and eps.
    """

    def __init__(self, kind: Moments, groups: list[dict[str, Any]], **settings: Any) -> None:
        super().__init__(groups, dict(settings))
        self._parts = {p: nn.Parameter(local(p.detach())) for g in groups for p in g["params"]}
        of_parts = [{**g, "params": [self._parts[p] for p in g["params"]]} for g in groups]
        self._own: EightBitAdamW | HostAdamW
        if kind == "adamw_8bit":
            self._own = _EightBitParts(self._parts, of_parts, **settings)
        else:
            self._own = HostAdamW(of_parts, **settings)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Take one step of all parameters that have a gradient."""
        loss = None if closure is None else closure()
        for group, own in zip(self.param_groups, self._own.param_groups, strict=True):
            own["lr"] = group["lr"]
        for parameter, part in self._parts.items():
            part.grad = None if parameter.grad is None else local(parameter.grad)
        self._own.step()
        for part in self._parts.values():
            part.grad = None
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Return the state as `torch.optim.AdamW` does, each tensor as the part of a whole."""
        own = self._own.state_dict()
        own = own.get("adamw", own)
        wholes = dict(enumerate(self._parts))
        state = {
            index: {name: _named(name, value, wholes[index]) for name, value in values.items()}
            for index, values in own["state"].items()
        }
        return {"state": state, "param_groups": super().state_dict()["param_groups"]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        for group, saved in zip(self.param_groups, state_dict["param_groups"], strict=True):
            group |= {key: value for key, value in saved.items() if key != "params"}
        parts = dict(enumerate(self._parts.values()))
        state = {
            index: {name: _plain(value, parts[index]) for name, value in values.items()}
            for index, values in state_dict["state"].items()
        }
        own: dict[str, Any] = {"state": state, "param_groups": state_dict["param_groups"]}
        if isinstance(self._own, HostAdamW):
            # In float32 the weights that learn are the parameters themselves.
            masters = [[p.detach() for p in group["params"]] for group in self._own.param_groups]
            own = {"adamw": own, "masters": masters}
        self._own.load_state_dict(own)


class _EightBitParts(EightBitAdamW):
    """AdamW in 8 bits of the parts of *wholes*: with the blocks, and what is drawn, of the wholes."""

    def __init__(self, parts: Mapping[Tensor, Tensor], groups: Any, **settings: Any) -> None:
        super().__init__(groups, **settings)
        self._wholes = {part: whole for whole, part in parts.items()}

    def extent(self, parameter: Tensor) -> tuple[int, int]:
        whole = self._wholes[parameter]
        return rows_of(whole).start * _row(whole), whole.numel()

    def zeros(self, parameter: Tensor) -> dict[str, Tensor]:
        whole = self._wholes[parameter]
        return Moment.zeros(parameter, wide=whole.numel() < SMALLEST or not _in_blocks(whole))


def parts_of(state: Mapping[str, Any], parameter: Tensor) -> dict[str, Any]:
    """Return this rank's parts of the whole *state* of a parameter, in new memory."""

    def part(name: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: part(key, inner) for key, inner in value.items()}
        if not isinstance(value, Tensor) or not value.ndim:
            return value.clone() if isinstance(value, Tensor) else value
        return part_of(value.reshape(_shape(name, parameter)), parameter)

    return {name: part(name, value) for name, value in state.items()}


def _in_blocks(whole: Tensor) -> bool:
    """Return whether the rows of each rank are whole blocks, so that no scale is of two ranks."""
    if not isinstance(whole, DTensor):
        return True
    return whole.numel() % BLOCK == 0 == most_rows(whole) * _row(whole) % BLOCK


def _row(whole: Tensor) -> int:
    return whole.numel() // max(len(whole), 1)


def _shape(name: str, whole: Tensor) -> tuple[int, ...]:
    """Return the shape of the tensor *name* of the state of *whole*, which is cut as it is."""
    if name != "scales":
        return tuple(whole.shape)
    row = _row(whole)
    return (len(whole), row // BLOCK) if row % BLOCK == 0 else (whole.numel() // BLOCK, 1)


def _named(name: str, value: Any, whole: Tensor) -> Any:
    """Return tensors of the state of a part as parts of those of *whole*."""
    if isinstance(value, Mapping):
        return {key: _named(key, inner, whole) for key, inner in value.items()}
    if not isinstance(value, Tensor) or not value.ndim:
        return value
    shape = _shape(name, whole)
    value = value.reshape(-1, *shape[1:])
    return as_part(value, whole, shape) if isinstance(whole, DTensor) else value


def _plain(value: Any, part: Tensor) -> Any:
    """Return tensors of a state in the shapes of the optimizer itself."""
    if isinstance(value, Mapping):
        shapes: dict[str, tuple[int, ...]] = {"codes": (-1, BLOCK), "scales": (-1, 1)}
        return {key: local(inner).reshape(shapes.get(key, (-1,))) for key, inner in value.items()}
    if isinstance(value, Tensor) and value.ndim:
        return local(value).reshape(part.shape)
    return value
