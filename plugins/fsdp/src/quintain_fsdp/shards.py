"""Sharding of a model with torch's FSDP2, and the way of a rank's part into and out of whole
tensors.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from quintain.models import body_of

HEAD = "output_layer_"
"""Name of an untied output layer in the body, which then gathers its weight."""


def mesh_of(device: str, ranks: int, group: int) -> DeviceMesh:
    """Return the mesh of *ranks* in groups of *group* that have the whole model together."""
    if group == ranks:
        return init_device_mesh(device, (ranks,))
    shape, names = (ranks // group, group), ("replicate", "shard")
    return init_device_mesh(device, shape, mesh_dim_names=names)


def shard(module: nn.Module, mesh: DeviceMesh) -> None:
    """Shard the layers of *module* each for itself, and what is left together.

    The body is the root: it keeps its weights from its forward pass to the end of the backward
    pass, so that the weight of the output layer can be read in between.
    """
    body, head = body_of(module), module.get_output_embeddings()  # type: ignore[operator]
    lists = [part for part in body.children() if isinstance(part, nn.ModuleList)]
    layers = max(lists, key=lambda part: sum(p.numel() for p in part.parameters()))
    if all(part is not head for part in body.modules()):
        body.add_module(HEAD, head)
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(body, mesh=mesh)
    for part in sharded_parts(module):
        # On every module: with gloo, FSDP2 would divide the gradient of a module that lacks these.
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)


def sharded_parts(module: nn.Module) -> list[FSDPModule]:
    """Return the parts of *module* that gather their weights."""
    return [part for part in module.modules() if isinstance(part, FSDPModule)]


@torch.no_grad()
def write(part: Tensor, whole: Tensor, *, first: bool) -> None:
    """Copy this rank's *part* of a tensor into *whole*; *first* says whether it is the first rank,
    which alone copies a tensor that all have.
    """
    if isinstance(part, DTensor):
        if (place := _slice_of(part)) is not None:
            whole[place].copy_(part.to_local())
    elif first:
        whole.copy_(part)


@torch.no_grad()
def read(part: Tensor, whole: Tensor) -> None:
    """Copy this rank's *part* out of *whole*."""
    if isinstance(part, DTensor):
        part.to_local().copy_(whole[_slice_of(part, writes=False) or slice(0)])
    else:
        part.copy_(whole)


@torch.no_grad()
def part_of(whole: Tensor, like: Tensor) -> Tensor:
    """Return this rank's part of *whole*, laid out as *like*."""
    part: Any = torch.empty_like(like, dtype=whole.dtype)
    read(part, whole)
    return part  # type: ignore[no-any-return]


def _slice_of(part: DTensor, *, writes: bool = True) -> slice | None:
    """Return the rows of the whole that this rank has; ``None`` where it is not to write them,
    since a rank of another group has them too.
    """
    mesh, placements = part.device_mesh, part.placements
    start, rows = 0, part.shape[0]
    for dimension, placement in enumerate(placements):
        index = mesh.get_local_rank(dimension)
        if placement.is_shard(0):
            size = -(-part.shape[0] // mesh.size(dimension))
            start = min(index * size, part.shape[0])
            rows = min(size, part.shape[0] - start)
        elif writes and index:
            return None
    return slice(start, start + rows)
