"""A copy of a learner's weights to decode from: cast, adapters merged, refreshed once per
version.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InfrastructureError
from ..interfaces.engine import Weights
from .adapters import base_of, has_adapters, merged_tensors, named_tensors
from .layers import fuse_storage
from .load import as_dtype


class Snapshot:
    """A module of its own that follows another one.

    Attributes:
        module: the copy, to decode.
        source: the learner's module that `refresh` copies; ``None`` where `refresh` gets the
            weights as tensors.
    """

    def __init__(self, module: nn.Module, source: nn.Module | None = None) -> None:
        self.module = module
        self.source = source

    @classmethod
    def needed(cls, module: nn.Module, dtype: str | None, *, merge: bool = True) -> Snapshot | None:
        """Return a snapshot of *module*, if its own tensors cannot be decoded: it has adapters to
        *merge*, or another *dtype*.

        Otherwise ``None``, and the projections of *module* are joined in memory.
        """
        target = _target_type(module, dtype)
        same_type = target == next(module.parameters()).dtype
        if same_type and not (merge and has_adapters(module)):
            fuse_storage(module)
            return None
        return cls._copy(module, target)

    @classmethod
    def apart(
        cls, module: nn.Module, dtype: str | None = None, device: torch.device | None = None
    ) -> Snapshot:
        """Return a copy of *module* that only `refresh` changes, in its own type or in *dtype*, on
        its own device or on *device*.
        """
        snapshot = cls._copy(module, _target_type(module, dtype), device)
        snapshot.source = None
        return snapshot

    @classmethod
    def _copy(cls, module: Any, dtype: torch.dtype, device: torch.device | None = None) -> Snapshot:
        """Return a snapshot of *module* in *dtype*, its adapters merged.

        It is a new module of the same class and not a deep copy, which would hold the weights twice
        until they are cast, and the adapters, too.
        """
        base = base_of(module)
        blank = _on_paper(base, dtype)
        # Frequencies of rotary embeddings and other tables have a precision of their own, which
        # `to` below would change. No checkpoint holds them, so `refresh` does not copy them.
        types = {name: buffer.dtype for name, buffer in blank.named_buffers()}
        blank.to(dtype)
        device = device or next(base.parameters()).device
        blank.to_empty(device=device)
        blank.tie_weights()  # separate after `to_empty`
        for name, buffer in base.named_buffers():
            # peft puts a layer with adapters under this name; the copy has the plain layer.
            plain_name = name.replace(".base_layer", "")
            owner, _, leaf = plain_name.rpartition(".")
            value = buffer.detach().to(device, types[plain_name], copy=True)
            setattr(blank.get_submodule(owner), leaf, value)
        blank.eval()
        wide_parts = getattr(base, "_keep_in_fp32_modules_strict", None) or ()
        for name, tensor in named_tensors(blank):
            if any(part in name for part in wide_parts):
                # as `from_pretrained` keeps it: 8 bits would change the routing
                tensor.data = tensor.data.float()
        fuse_storage(blank)
        snapshot = cls(blank, source=module)
        snapshot.refresh(None)
        return snapshot

    def refresh(self, weights: Weights | None) -> None:
        """Copy the tensors of the source, or those of *weights* where there is none.

        Raises:
            InfrastructureError: a tensor is missing or has another shape; nothing was copied.
        """
        copied = dict(named_tensors(self.module))
        if self.source is None:
            _check(copied, dict(self._published(weights)))
        with torch.no_grad():
            for name, tensor in self._published(weights):
                if name in copied:
                    copied[name].copy_(tensor)

    @torch.no_grad()
    def outdated(self, weights: Weights | None) -> str:
        """Return the first tensor that `refresh` would change, with the class of its layer; empty
        if there is none.
        """
        copied = dict(merged_tensors(self.module))
        name = ""
        for published_name, tensor in self._published(weights):
            mine = copied.pop(published_name, None)
            if mine is not None and not torch.equal(mine, tensor.to(mine)):
                name = published_name
                break
        else:
            # What was not published was not compared, and may be anything.
            name = next(iter(copied), "")
        if not name:
            return ""
        layer = base_of(self.module).get_submodule(name.rpartition(".")[0])
        return f"{name} of {type(layer).__name__}"

    def _published(self, weights: Weights | None) -> Iterator[tuple[str, Tensor]]:
        # One at a time: together, merged weights would take the memory of the whole model.
        if self.source is not None:
            yield from merged_tensors(self.source)
        elif weights:
            yield from weights.tensors().items()


def _target_type(module: nn.Module, dtype: str | None) -> torch.dtype:
    if dtype in (None, "auto"):
        return next(module.parameters()).dtype
    return as_dtype(str(dtype))


def _on_paper(module: Any, dtype: torch.dtype) -> Any:
    """Return a module of the class of *module* in *dtype* without storage: nothing is made in
    float32 to be cast.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device("meta"):
            return type(module)(copy.deepcopy(module.config))
    finally:
        torch.set_default_dtype(before)


def _check(copied: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    missing = [name for name in copied if name not in tensors]
    if missing:
        raise InfrastructureError(
            f"weight update: {len(missing)} tensors are missing, first {missing[0]!r}; nothing was "
            f"changed"
        )
    for name, tensor in copied.items():
        if tensors[name].shape != tensor.shape:
            raise InfrastructureError(
                f"weight update: {name!r} has shape {tuple(tensors[name].shape)}, expected "
                f"{tuple(tensor.shape)}; nothing was changed"
            )
