"""What a rank gets when it starts, and what it says of tensors."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from quintain import Algorithm, Piece
from quintain.errors import UsageError
from quintain.registry import current

from .sources import Source

Sharding = Literal["replicated", "sharded", "hybrid"]


Gather = Literal["auto", "float32", "bfloat16"]
Moments = Literal["adamw", "adamw_8bit", "adamw_host"]
Offload = Literal["none", "inputs", "all"]
RankDevice = Literal["auto", "cpu", "cuda"]
CheckpointKind = Literal["whole", "sharded"]
Holder = Literal["run", "ranks"]
Experts = Literal["gathered", "split"]


@dataclass(frozen=True, kw_only=True)
class Modes:
    """How ranks keep weights and moments; see `quintain_learners.fsdp.Fsdp`."""

    gather: Gather = "auto"
    optimizer: Moments = "adamw"
    offload: Offload = "none"
    experts: Experts = "gathered"

    def resolved(self, sharding: Sharding, precision: str) -> Modes:
        """Return these modes without ``auto``: layers are gathered in the type that they compute in."""
        if self.gather != "auto":
            return self
        half = sharding != "replicated" and precision == "bf16"
        return replace(self, gather="bfloat16" if half else "float32")


USUAL = Modes()


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What the ranks of a learner are started with.

    Attributes:
        module: the model, its weights in memory that driver and ranks share.
        algorithm: what `packed` returned of it, or ``None``.
        settings: of `quintain.learning.Learner`.
        ranks: how many there are.
        sharding, group: see `quintain_learners.fsdp.Fsdp`.
        threads: of a rank.
        rendezvous: file by which the ranks find each other.
        device: ``cpu`` or ``cuda``.
        modes: how the ranks keep weights and moments.
        saves_parts: whether the ranks write checkpoints.
        sources: where the weights are in files, by name, if *module* has none; empty if they come
            from a copy.
    """

    module: nn.Module
    algorithm: bytes | None
    settings: Mapping[str, Any]
    ranks: int
    sharding: Sharding
    group: int
    threads: int
    rendezvous: str
    device: str
    modes: Modes = USUAL
    saves_parts: bool = False
    sources: Mapping[str, Source] | None = None


@dataclass(frozen=True, kw_only=True)
class Place:
    """Stands for the tensor number *index* of a state, which crosses in shared memory."""

    index: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    def empty(self) -> Tensor:
        """Return memory for it that processes can share."""
        return shared(torch.empty(self.shape, dtype=self.dtype))


def shared(tensor: Tensor) -> Tensor:
    """Return *tensor*, moved into memory that processes can share."""
    moved: Tensor = tensor.share_memory_()  # type: ignore[no-untyped-call]
    return moved


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return plain data with *change* applied to each value in it that is no container."""
    if isinstance(value, Mapping):
        return {key: mapped(inner, change) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [mapped(inner, change) for inner in value]
    return change(value)


class _Pickler(pickle.Pickler):
    """Pickles pieces by the place of their function, whose name is that of the piece."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Piece):
            return _piece, (value.origin, dict(value.args))
        return NotImplemented


def _piece(origin: str, args: Mapping[str, Any]) -> Piece:
    piece: Piece = current().load("algorithm", origin)
    return piece.configure(**args) if args else piece


def packed(algorithm: Algorithm) -> bytes:
    """Return *algorithm* for `pickle.loads` in another process.

    Raises:
        UsageError: a piece or an argument cannot be sent.
    """
    buffer = io.BytesIO()
    try:
        _Pickler(buffer).dump(algorithm)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise UsageError(
            f"learner fsdp: algorithm {algorithm.name!r} cannot be sent to the ranks: {error}; its "
            "pieces must be functions of modules, with plain arguments"
        ) from error
    return buffer.getvalue()
