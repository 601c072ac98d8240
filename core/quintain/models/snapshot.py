"""A copy of a learner's weights to decode from: cast, adapters merged, refreshed once per version."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InfrastructureError
from ..interfaces.engine import Weights
from .layers import fuse_storage
from .load import as_dtype
from .lora import has_adapters, merged_tensors


class Snapshot:
    """A module of its own that follows a source.

    Attributes:
        module: what is decoded.
        source: the learner's module it copies at each `refresh`; ``None`` where weights come as tensors.
    """

    def __init__(self, module: nn.Module, source: nn.Module | None = None) -> None:
        self.module = module
        self.source = source

    @classmethod
    def needed(cls, module: nn.Module, dtype: str | None) -> Snapshot | None:
        """A snapshot of *module* where it cannot be decoded as it is: another *dtype* is wanted, or adapters sit on it.

        ``None`` where its own tensors serve; its projections are then laid side by side.
        """
        own = next(module.parameters()).dtype
        wanted = own if dtype in (None, "auto") else as_dtype(str(dtype))
        if wanted == own and not has_adapters(module):
            fuse_storage(module)
            return None
        snapshot = cls(_blank_copy(module, wanted), source=module)
        snapshot.refresh(None)
        return snapshot

    @classmethod
    def apart(cls, module: nn.Module) -> Snapshot:
        """A copy of *module* that changes by `refresh` alone."""
        snapshot = cls(_blank_copy(module, next(module.parameters()).dtype), source=module)
        snapshot.refresh(None)
        snapshot.source = None
        return snapshot

    def refresh(self, weights: Weights | None) -> None:
        """Copy the source's tensors of now, else those of *weights*.

        Raises:
            InfrastructureError: a tensor is missing or has another shape; nothing was copied.
        """
        given = (
            dict(merged_tensors(self.source)) if self.source is not None else dict(weights.tensors() if weights else {})
        )
        targets = dict(self.module.named_parameters())
        _check(targets, given)
        with torch.no_grad():
            for name, parameter in targets.items():
                parameter.copy_(given[name])


def _blank_copy(module: Any, dtype: torch.dtype) -> nn.Module:
    base = module.get_base_model() if has_adapters(module) else module
    device = next(base.parameters()).device
    fresh = type(base)(copy.deepcopy(base.config)).to(device=device, dtype=dtype).eval()
    fuse_storage(fresh)
    return fresh


def _check(targets: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
    missing = [name for name in targets if name not in given]
    if missing:
        raise InfrastructureError(
            f"weight update: {len(missing)} tensors are missing, first {missing[0]!r}; nothing was changed"
        )
    for name, parameter in targets.items():
        if given[name].shape != parameter.shape:
            raise InfrastructureError(
                f"weight update: {name!r} has shape {tuple(given[name].shape)}, expected {tuple(parameter.shape)}; "
                "nothing was changed"
            )
