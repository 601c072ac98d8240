"""Experts of a mixture that are split over ranks: each rank computes some of them, for the tokens of
all ranks.

A layer gathers the states of all tokens and what their routers chose. Each rank computes the experts
that it has, and the sums of a token's experts are added up and cut again. So weights of experts stay
where they are, and their gradients are whole there, without a sum over ranks (GShard, Lepikhin et al.
2020, arXiv 2006.16668, with all tokens in place of those that an expert takes).

Shapes: N tokens of this rank, M the most of a rank, A tokens of all ranks (ranks times M), K experts
of a token, E experts of the layer, D hidden size, P pairs of a token and an expert of this rank.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.nn import functional

from quintain.errors import UsageError

# The names of torch 2.13, and those before.
_GATHER: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_SUM: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def experts_of(module: nn.Module) -> list[nn.Module]:
    """Return the parts of *module* that have the weights of all experts of a layer, and compute them
    from the states of tokens, the experts that a router chose, and their weights.
    """
    return [part for part in module.modules() if _is_experts(part)]


def check_split(module: nn.Module, ranks: int) -> None:
    """Check that the experts of *module* can be split over *ranks*.

    Raises:
        UsageError: there are none, adapters change them, or *ranks* does not divide their number.
    """
    if hasattr(module, "disable_adapter"):
        raise UsageError(
            "learner fsdp: adapters change the experts of a layer as a whole, so that they cannot be "
            "split; leave out learner.args.experts"
        )
    found = experts_of(module)
    if not found:
        raise UsageError(
            f'learner fsdp: experts = "split" needs a mixture of experts, and {type(module).__name__} '
            "has no layer whose experts can be split; leave out learner.args.experts"
        )
    numbers = {count_of(part) for part in found}
    if uneven := [number for number in sorted(numbers) if number % ranks]:
        fitting = [n for n in range(1, min(numbers) + 1) if all(k % n == 0 for k in numbers)]
        raise UsageError(
            f"learner fsdp: {ranks} ranks do not divide the {uneven[0]} experts of a layer; set "
            f"learner.args.ranks to one of {', '.join(map(str, fitting))}, or leave out "
            "learner.args.experts"
        )


def count_of(experts: nn.Module) -> int:
    """Return how many experts there are, E."""
    return cast(int, experts.num_experts)


def split(experts: nn.Module, mesh: DeviceMesh, *, half: torch.dtype | None) -> set[nn.Parameter]:
    """Leave this rank its part of *experts* and let all compute together; return the parameters,
    which are parts of wholes as those that FSDP2 cuts.

    Args:
        half: type to compute in; ``None`` is that of the weights.
    """
    ranks, rank = mesh.size(), mesh.get_local_rank()
    each = count_of(experts) // ranks
    for name, whole in list(experts.named_parameters(recurse=False)):
        part = whole.detach()[rank * each : (rank + 1) * each].clone()
        cut = DTensor.from_local(part, mesh, [Shard(0)], run_check=False)
        setattr(experts, name, nn.Parameter(cut, whole.requires_grad))
    experts.forward = partial(_forward, experts, mesh, half)
    return set(experts.parameters(recurse=False))


def _is_experts(part: Any) -> bool:
    weights = list(part.parameters())
    if not isinstance(getattr(part, "num_experts", None), int) or not weights:
        return False
    if not all(len(weight) == part.num_experts for weight in weights):
        return False
    takes = list(inspect.signature(type(part).forward).parameters)[1:]
    return any(weight.ndim == 3 for weight in weights) and len(takes) == 3


def _forward(
    experts: nn.Module,
    mesh: DeviceMesh,
    half: torch.dtype | None,
    hidden_ND: Tensor,
    index_NK: Tensor,
    weight_NK: Tensor,
) -> Tensor:
    """Return the weighted sum of its experts for each token of this rank, [N, D]."""
    group: Any = mesh.get_group()
    most = _most(len(hidden_ND), group, hidden_ND.device)
    padding = (0, 0, 0, most - len(hidden_ND))
    index_AK = _gathered(functional.pad(index_NK, padding, value=-1), group)
    hidden_AD, weight_AK = _Gather.apply(  # type: ignore[no-untyped-call]
        group, functional.pad(hidden_ND, padding), functional.pad(weight_NK, padding)
    )
    local = {
        name: cast(DTensor, parameter).to_local().to(hidden_ND.device, half or parameter.dtype)
        for name, parameter in experts.named_parameters(recurse=False)
    }
    each = count_of(experts) // mesh.size()
    first = each * mesh.get_local_rank()
    token_P, place_P = torch.where((first <= index_AK) & (index_AK < first + each))
    chosen_PD, weight_P1 = hidden_AD[token_P], weight_AK[token_P, place_P, None]
    if len(token_P):
        index_P1 = index_AK[token_P, place_P, None] - first
        own = _standing_in(experts, each, local)
        computed_PD = type(experts).forward(own, chosen_PD, index_P1, weight_P1)
    else:  # the backward pass meets the same parts as on other ranks, and gradients are 0
        nothing = torch.stack([part[:0].sum() for part in local.values()]).sum()
        computed_PD = chosen_PD * weight_P1 + nothing
    sums_AD = torch.zeros_like(hidden_AD, dtype=computed_PD.dtype)
    sums_AD = sums_AD.index_add(0, token_P, computed_PD)
    sums: Tensor = _Sum.apply(group, sums_AD)  # type: ignore[no-untyped-call]
    return sums[: len(hidden_ND)].to(hidden_ND.dtype)


def _standing_in(experts: nn.Module, count: int, weights: Mapping[str, Tensor]) -> nn.Module:
    """Return a module like *experts* with *count* of them, whose *weights* are plain tensors."""
    own = copy.copy(experts)
    own.__dict__ |= {"_parameters": {}, "num_experts": count, **weights}
    return own


def _most(tokens: int, group: Any, device: torch.device) -> int:
    """Return the most *tokens* of a rank."""
    most = torch.tensor(tokens, device=device)
    dist.all_reduce(most, dist.ReduceOp.MAX, group)
    return int(most)


def _gathered(part: Tensor, group: Any) -> Tensor:
    """Return the *part* of each rank, one after the other."""
    whole = part.new_empty(dist.get_world_size(group) * len(part), *part.shape[1:])
    _GATHER(whole, part.contiguous(), group=group)
    return whole


def _summed(whole: Tensor, group: Any) -> Tensor:
    """Return this rank's part of the sum of *whole* over ranks."""
    part = whole.new_empty(len(whole) // dist.get_world_size(group), *whole.shape[1:])
    _SUM(part, whole.contiguous(), group=group)
    return part


class _Gather(torch.autograd.Function):
    """`_gathered` of states and weights. One step of a backward pass for both, so that all ranks
    meet in one order.
    """

    @staticmethod
    def forward(ctx: Any, group: Any, hidden: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        ctx.group = group
        return _gathered(hidden, group), _gathered(weight, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight = (_summed(gradient, ctx.group) for gradient in gradients)
        return None, hidden, weight


class _Sum(torch.autograd.Function):
    """`_summed`."""

    @staticmethod
    def forward(ctx: Any, group: Any, whole: Tensor) -> Tensor:
        ctx.group = group
        return _summed(whole, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        return None, _gathered(gradient, ctx.group)
