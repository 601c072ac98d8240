"""Adapters of low rank (Hu et al. 2021, 2106.09685) on one base: each has its own tensors and
optimizer, and the linear maps of the base read those of the one in use, or of several, each for the
rows of its own.

A map without factors is the base's own, so that an adapter computes the same numbers whichever other
adapters exist.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from quintain.models import base_of, body_of

from ..errors import invalid

__all__ = ["Adapter", "AdapterSpec", "Bank", "settings_of"]

ALPHA = 32.0
"""Numerator of the factor on each product: alpha / rank, as the API's adapters have it."""
MOMENTS = ("exp_avg", "exp_avg_sq")
ADAM = {
    "learning_rate": 1e-4,
    "beta1": 0.9,
    "beta2": 0.95,
    "eps": 1e-12,
    "weight_decay": 0.0,
    "grad_clip_norm": 0.0,
}
"""Defaults of the SDK's ``AdamParams``."""


@dataclass(frozen=True, kw_only=True)
class AdapterSpec:
    """What an adapter is made of.

    Attributes:
        rank: columns of each factor.
        seed: of the initial values.
        attention, feedforward, unembedding: whether these maps are adapted.
    """

    rank: int
    seed: int
    attention: bool = True
    feedforward: bool = True
    unembedding: bool = True

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class AdaptedLinear(nn.Linear):
    """A linear map that shares the weight of another, plus the product of the factors in use."""

    def __init__(self, base: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = base.in_features, base.out_features
        self.weight, self.bias = base.weight, base.bias
        self.factors: tuple[Tensor, Tensor] | None = None
        self.scale = 1.0
        self.blocks: list[tuple[slice, tuple[Tensor, Tensor], float]] | None = None

    def forward(self, x: Tensor) -> Tensor:
        y = functional.linear(x, self.weight, self.bias)
        if self.blocks is not None:
            # The product above is one for all rows, these are of each adapter's own shape.
            for rows, (first, second), scale in self.blocks:
                y[rows] += functional.linear(functional.linear(x[rows], first), second) * scale
            return y
        if self.factors is None:
            return y
        first, second = self.factors
        return y + functional.linear(functional.linear(x, first), second) * self.scale


class Adapter:
    """The factors of one adapter, and the state of its AdamW.

    Attributes:
        factors: by name of the map the two factors, [rank, in] and [out, rank].
    """

    def __init__(self, spec: AdapterSpec, factors: Mapping[str, tuple[nn.Parameter, nn.Parameter]]):
        self.spec = spec
        self.factors = dict(factors)
        self.scale = ALPHA / spec.rank
        self._optimizer: torch.optim.AdamW | None = None

    def parameters(self) -> Iterator[nn.Parameter]:
        for pair in self.factors.values():
            yield from pair

    def step(self, settings: Mapping[str, float]) -> float:
        """Take one step of AdamW (Loshchilov & Hutter 2019, 1711.05101) on the gradients gathered
        so far, and drop them; returns their norm before clipping.

        Args:
            settings: the fields of ``AdamParams``.
        """
        parameters = [*self.parameters()]
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        limit = settings["grad_clip_norm"]
        norm = nn.utils.clip_grad_norm_(parameters, limit if limit > 0 else math.inf)
        optimizer = self._adam()
        optimizer.param_groups[0].update(
            lr=settings["learning_rate"],
            betas=(settings["beta1"], settings["beta2"]),
            eps=settings["eps"],
            weight_decay=settings["weight_decay"],
        )
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(norm)

    def tensors(self, *, optimizer: bool) -> dict[str, Tensor]:
        """Return the factors under the names of peft's files, and with *optimizer* the moments and
        the number of steps beside them. They share memory.
        """
        tensors: dict[str, Tensor] = {}
        state = self._adam().state if optimizer and self._optimizer else {}
        for name, pair in self.factors.items():
            for letter, parameter in zip("AB", pair, strict=True):
                key = f"base_model.model.{name}.lora_{letter}.weight"
                tensors[key] = parameter.detach()
                for field, value in state.get(parameter, {}).items():
                    tensors[f"optimizer.{field}.{key}"] = value
        return tensors

    def load(self, tensors: Mapping[str, Tensor], *, optimizer: bool) -> None:
        """Take over what `tensors` returned, and drop the gradients gathered so far; without
        *optimizer* its state begins anew.
        """
        self._optimizer = None
        for name, pair in self.factors.items():
            for letter, parameter in zip("AB", pair, strict=True):
                key = f"base_model.model.{name}.lora_{letter}.weight"
                parameter.grad = None
                with torch.no_grad():
                    parameter.copy_(tensors[key])
                if optimizer and f"optimizer.step.{key}" in tensors:
                    moments = {
                        field: tensors[f"optimizer.{field}.{key}"].to(parameter, copy=True)
                        for field in MOMENTS
                    }
                    step = tensors[f"optimizer.step.{key}"].clone()
                    self._adam().state[parameter] = {"step": step, **moments}

    def _adam(self) -> torch.optim.AdamW:
        if self._optimizer is None:
            self._optimizer = torch.optim.AdamW([*self.parameters()], foreach=False)
        return self._optimizer


class Bank:
    """The base model whose linear maps read the adapter in use.

    Args:
        module: a causal language model of transformers. Its linear maps are replaced in place, and
            its parameters are frozen.
    """

    def __init__(self, module: Any) -> None:
        module.requires_grad_(False)
        head = module.get_output_embeddings()
        inner = {id(part) for part in body_of(module).modules()}
        self._maps: dict[str, AdaptedLinear] = {}
        base = base_of(module)
        for name, part in [*base.named_modules()]:
            if type(part) is nn.Linear and (part is head or id(part) in inner):
                owner, _, leaf = name.rpartition(".")
                self._maps[name] = adapted = AdaptedLinear(part)
                setattr(base.get_submodule(owner), leaf, adapted)
        self.head = module.get_output_embeddings()
        self._head_name = next((n for n, m in self._maps.items() if m is self.head), "")

    def create(self, spec: AdapterSpec) -> Adapter:
        """Return a new adapter: the first factors uniform within 1 / sqrt(in), as peft's, the
        second ones 0, so that it changes nothing yet.
        """
        draw = torch.Generator().manual_seed(spec.seed)
        factors = {}
        for name, part in self._maps.items():
            if not self._wanted(name, spec):
                continue
            bound = part.in_features**-0.5
            first = torch.empty(spec.rank, part.in_features).uniform_(-bound, bound, generator=draw)
            second = torch.zeros(part.out_features, spec.rank)
            factors[name] = (
                nn.Parameter(first.to(part.weight)),
                nn.Parameter(second.to(part.weight)),
            )
        return Adapter(spec, factors)

    def use(self, adapter: Adapter | None) -> None:
        """Let the base compute as *adapter* changes it; ``None`` is the base alone."""
        factors = adapter.factors if adapter else {}
        for name, part in self._maps.items():
            part.blocks = None
            part.factors = factors.get(name)
            part.scale = adapter.scale if adapter else 1.0

    def use_by_rows(self, adapters: Sequence[tuple[slice, Adapter | None]]) -> None:
        """Let the base compute some rows of [n, D] as one adapter changes it, others as another, and
        all others as it is alone; for passes without a gradient.
        """
        for name, part in self._maps.items():
            part.blocks = [
                (rows, adapter.factors[name], adapter.scale)
                for rows, adapter in adapters
                if adapter is not None and name in adapter.factors
            ]

    def weights(self) -> list[Tensor]:
        """Return of the base's weights [out, in] one of each shape."""
        return [*{part.weight.shape: part.weight for part in self._maps.values()}.values()]

    def bytes_of(self, spec: AdapterSpec) -> int:
        """Return the size of the factors of an adapter of *spec*."""
        wanted = [part for name, part in self._maps.items() if self._wanted(name, spec)]
        cells = sum(spec.rank * (part.in_features + part.out_features) for part in wanted)
        size: int = self.head.weight.element_size()
        return cells * size

    @property
    def head_factors(self) -> tuple[Tensor, Tensor] | None:
        """The output layer's factors of the adapter in use, [R, D] and [V, R], if it has some."""
        return self.head.factors if isinstance(self.head, AdaptedLinear) else None

    def head_weight(self) -> Tensor:
        """Return the output layer's weight [V, D] as the adapter in use changes it."""
        if self.head_factors is None:
            weight: Tensor = self.head.weight
            return weight
        first, second = self.head_factors
        return torch.addmm(self.head.weight, second, first, alpha=self.head.scale)

    def _wanted(self, name: str, spec: AdapterSpec) -> bool:
        if name == self._head_name:
            return spec.unembedding
        attends = any("attn" in word or "attention" in word for word in name.split("."))
        return spec.attention if attends else spec.feedforward


def settings_of(given: Any) -> dict[str, float]:
    """Return the settings of a step: those *given* by a client, and the defaults of the others.

    Raises:
        ApiError: 400, one is unknown, or would make weights that are not finite.
    """
    if not isinstance(given or {}, Mapping):
        raise invalid("adam_params is no object", "adam_params")
    settings = {**ADAM, **(given or {})}
    for name, value in settings.items():
        if name not in ADAM:
            raise invalid(f"adam_params has no setting {name!r}", "adam_params")
        low = -1e30 if name == "grad_clip_norm" else 0.0  # which clips nothing below 0
        below = 1.0 if name.startswith("beta") else 1e30
        number = type(value) in (int, float) and low <= value < below
        if not number or (name == "eps" and value == 0):
            raise invalid(f"{name} is {value!r}; expected a number in its range", "adam_params")
    return settings


def write_tensors(path: Path, tensors: Mapping[str, Tensor], *, record: Any = None) -> int:
    """Write a file that is whole or not there, with *record* as JSON in its head; returns its
    bytes.
    """
    from safetensors.torch import save

    head = {"format": "pt", "quintain": json.dumps(record)}
    content = save({name: tensor.contiguous().cpu() for name, tensor in tensors.items()}, head)
    write_whole(path, content)
    return len(content)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], Any]:
    """Return what `write_tensors` wrote: the tensors and the record."""
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        record = json.loads(file.metadata()["quintain"])
        return {name: file.get_tensor(name) for name in file.keys()}, record  # noqa: SIM118


def write_whole(path: Path, content: bytes) -> None:
    """Write *content* so that after a loss of power *path* has all of it, or what it had."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def peft_config(adapter: Adapter, base: str) -> dict[str, Any]:
    """Return the file ``adapter_config.json`` with which peft loads `Adapter.tensors`."""
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": adapter.spec.rank,
        "lora_alpha": ALPHA,
        "lora_dropout": 0.0,
        "bias": "none",
        "inference_mode": True,
        "target_modules": sorted(adapter.factors),
    }
