"""Sharding of a model with torch's FSDP2, and the way of a rank's part into and out of whole
tensors.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.nn import functional

from quintain.models import body_of

from .experts import experts_of, split

LANGUAGE = ("language_model", "text_model")
"""Names of the language model in the body of a model that has a vision tower, too."""
HEAD = "output_layer_"
"""Name of an untied output layer in the body, which then gathers its weight."""


def mesh_of(device: str, ranks: int, group: int) -> DeviceMesh:
    """Return the mesh of *ranks* in groups of *group* that have the whole model together."""
    if group == ranks:
        return init_device_mesh(device, (ranks,))
    shape, names = (ranks // group, group), ("replicate", "shard")
    return init_device_mesh(device, shape, mesh_dim_names=names)


def shard(
    module: nn.Module,
    mesh: DeviceMesh,
    *,
    half: torch.dtype | None = None,
    offload: bool = False,
    split_experts: bool = False,
) -> None:
    """Split the layers of *module* over *mesh*, each for itself, and what is left together.

    The body is the root: it keeps its weights from its forward pass to the end of the backward
    pass, so that the weight of the output layer can be read in between.

    Args:
        half: type to gather the weights of layers in. Their gradients are turned to float32 before
            they are added up, and the root stays in float32.
        offload: keep parts and gradients in host memory.
        split_experts: let each rank compute some experts, in place of gathering all.
    """
    body, head = body_of(module), module.get_output_embeddings()  # type: ignore[operator]
    if all(part is not head for part in body.modules()):
        body.add_module(HEAD, head)
    place = OffloadPolicy()
    if offload:
        place = CPUOffloadPolicy(pin_memory=mesh.device_type == "cuda")
    # What enters a layer stays as it is: the layers add up in float32.
    types = MixedPrecisionPolicy(cast_forward_inputs=False)
    in_half = MixedPrecisionPolicy(
        param_dtype=half, reduce_dtype=torch.float32, cast_forward_inputs=False
    )
    apart: set[nn.Parameter] = set()
    for experts in experts_of(module) if split_experts else ():
        apart |= split(experts, mesh, half=half)
    for layer in layers_of(module):
        for norm in layer.modules() if half is not None else ():
            if isinstance(norm, nn.LayerNorm):
                norm.forward = partial(_normalized, norm)  # type: ignore[method-assign]
        fully_shard(
            layer,
            mesh=mesh,
            mp_policy=types if half is None else in_half,
            offload_policy=place,
            ignored_params=apart,
        )
    fully_shard(body, mesh=mesh, mp_policy=types, offload_policy=place, ignored_params=apart)
    for part in sharded_parts(module):
        # On every module: with gloo, FSDP2 would divide the gradient of a module that lacks these.
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)


def _normalized(norm: nn.LayerNorm, hidden: Tensor) -> Tensor:
    """Return what *norm* gives for *hidden*, which may be wider than its weights: as autocast does
    on a GPU, and not on a CPU.
    """
    weight, bias = (None if p is None else p.to(hidden.dtype) for p in (norm.weight, norm.bias))
    return functional.layer_norm(hidden, norm.normalized_shape, weight, bias, norm.eps)


def layers_of(module: nn.Module) -> nn.ModuleList:
    """Return the layers of *module*, each of which is gathered for itself."""
    body = body_of(module)
    for name in LANGUAGE:  # of a model that sees pictures
        body = getattr(body, name, body)
    lists = [part for part in body.children() if isinstance(part, nn.ModuleList)]
    return max(lists, key=lambda part: sum(p.numel() for p in part.parameters()))


def sharded_parts(module: nn.Module) -> list[FSDPModule]:
    """Return the parts of *module* that gather their weights."""
    return [part for part in module.modules() if isinstance(part, FSDPModule)]


def root_of(module: nn.Module) -> FSDPModule | None:
    """Return the part of *module* that is outside of the layers; ``None`` if it is not sharded."""
    body = body_of(module)
    return body if isinstance(body, FSDPModule) else None


def materialize(module: nn.Module) -> None:
    """Give the parameters of *module*, which have no memory, some on the host; their numbers are yet
    to come. Tied ones stay one.
    """
    made: dict[nn.Parameter, nn.Parameter] = {}
    for owner in module.modules():
        for name, parameter in list(owner.named_parameters(recurse=False, remove_duplicate=False)):
            if parameter not in made:
                empty = torch.empty_like(parameter, device="cpu")
                made[parameter] = nn.Parameter(empty, parameter.requires_grad)
            setattr(owner, name, made[parameter])
    module.cpu()  # FSDP2 looks for new parameters then


def target_of(part: Tensor, whole: Tensor, *, first: bool) -> Tensor | None:
    """Return the rows of *whole* into which this rank copies its *part*, or ``None`` where another
    one does; *first* says whether it is the first rank, which alone copies a tensor that all have.
    """
    if isinstance(part, DTensor):
        return whole[rows_of(part)] if is_writer(part) else None
    return whole if first else None


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of *tensor*, in the same memory; all of one that is no part."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def as_part(part: Tensor, like: DTensor, shape: tuple[int, ...]) -> DTensor:
    """Return *part* as this rank's part of a tensor of *shape*, which is cut as *like* is. It stays
    on its device, which may be the host of a GPU.
    """
    stride = torch.empty(shape, device="meta").stride()
    meta = TensorMeta(torch.Size(shape), stride, part.dtype)
    spec = DTensorSpec(like.device_mesh, like.placements, tensor_meta=meta)
    made: DTensor = DTensor(part, spec, requires_grad=False)  # type: ignore[no-untyped-call]
    return made


def rows_of(like: Tensor, rows: int | None = None) -> slice:
    """Return which of *rows* this rank has of a tensor that is cut as *like* is; by default those of
    *like*.
    """
    rows = len(like) if rows is None else rows
    start = 0
    if isinstance(like, DTensor):
        for dimension, placement in enumerate(like.placements):
            if placement.is_shard(0):
                size = -(-rows // like.device_mesh.size(dimension))
                start = min(like.device_mesh.get_local_rank(dimension) * size, rows)
                rows = min(size, rows - start)
    return slice(start, start + rows)


def most_rows(tensor: DTensor) -> int:
    """Return the rows of the first rank, which has the most."""
    rows = len(tensor)
    for dimension, placement in enumerate(tensor.placements):
        if placement.is_shard(0):
            rows = -(-rows // tensor.device_mesh.size(dimension))
    return rows


def is_writer(part: DTensor) -> bool:
    """Return whether this rank writes its *part*, and no rank of another group that has it too."""
    return not any(
        part.device_mesh.get_local_rank(dimension)
        for dimension, placement in enumerate(part.placements)
        if not placement.is_shard(0)
    )


@torch.no_grad()
def read(part: Tensor, whole: Tensor) -> None:
    """Copy this rank's *part* out of *whole*."""
    local(part).copy_(whole[rows_of(part)] if isinstance(part, DTensor) else whole)


@torch.no_grad()
def part_of(whole: Tensor, like: Tensor) -> Tensor:
    """Return this rank's part of *whole* in new memory, cut as *like* is and on its device."""
    if not isinstance(like, DTensor):
        return whole.to(like.device, copy=True)
    part = whole[rows_of(like, len(whole))].to(like.to_local().device, copy=True)
    return as_part(part, like, tuple(whole.shape))
