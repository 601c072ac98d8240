"""A base of adapters in 8 bits a number, or in 4 by bitsandbytes.

Shapes: a weight [out, in] maps [..., in] to [..., out].
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from typing import Any, Literal, Protocol, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from quintain.errors import UsageError

Format = Literal["int8", "nf4"]
MAPS = 'learner lean: base = "{}" needs linear maps with adapters: set model.lora = {{}}'


class FewBits(Protocol):
    """The numbers of a weight [out, in] in few bits. Nothing changes them."""

    def product(self, x: Tensor) -> Tensor:
        """Map *x* [..., in] to [..., out] in its type."""
        ...

    def values(self, dtype: torch.dtype) -> Tensor:
        """Return the numbers in *dtype*, [out, in]."""
        ...

    def tensors(self) -> list[Tensor]:
        """Return what takes memory."""
        ...


class Int8:
    """Integers of 8 bits with a float32 scale for each row, its largest magnitude / 127."""

    def __init__(self, weight: Tensor) -> None:
        wide = weight.float()
        self._scales = wide.abs().amax(1, keepdim=True).clamp_(min=1e-30) / 127
        self._codes = (wide / self._scales).round_().to(torch.int8)

    def product(self, x: Tensor) -> Tensor:
        # A number of 8 bits is exact in each type, so rounding comes after the sum.
        return functional.linear(x, self._codes.to(x.dtype)) * self._scales.flatten().to(x.dtype)

    def values(self, dtype: torch.dtype) -> Tensor:
        return (self._codes * self._scales).to(dtype)

    def tensors(self) -> list[Tensor]:
        return [self._codes, self._scales]


class Nf4:
    """The 16 levels of QLoRA (Dettmers et al. 2023, arXiv 2305.14314) with a scale of 8 bits for each
    64 numbers, of bitsandbytes.
    """

    def __init__(self, weight: Tensor) -> None:
        library = bitsandbytes()
        self._matmul, self._read = library.matmul_4bit, library.functional.dequantize_4bit
        self._codes, self._state = library.functional.quantize_4bit(
            weight.contiguous(), blocksize=64, quant_type="nf4", compress_statistics=True
        )

    def product(self, x: Tensor) -> Tensor:
        return cast(Tensor, self._matmul(x, self._codes.t(), quant_state=self._state))

    def values(self, dtype: torch.dtype) -> Tensor:
        return cast(Tensor, self._read(self._codes, self._state).to(dtype))

    def tensors(self) -> list[Tensor]:
        scales = self._state.state2
        return [self._codes, self._state.absmax, self._state.offset, scales.absmax, scales.code]


BYTES: dict[Format, float] = {"int8": 1, "nf4": 0.5 + 1 / 64}
"""Of a number with its scale; those of `Int8` are a few for each row."""
FORMATS: dict[Format, Callable[[Tensor], FewBits]] = {"int8": Int8, "nf4": Nf4}


class QuantisedWeight(Tensor):
    """The weight of a linear map, in few bits. A product with it reads them; to every other
    operation it is the tensor of its dequantised numbers.

    Attributes:
        stored: its numbers.
    """

    stored: FewBits

    @property
    def nbytes(self) -> int:  # type: ignore[override]
        """Return the bytes that it takes."""
        return sum(tensor.nbytes for tensor in self.stored.tensors())

    @staticmethod
    def __new__(cls, stored: FewBits, like: Tensor) -> QuantisedWeight:
        made = Tensor._make_wrapper_subclass(cls, like.shape, dtype=like.dtype, device=like.device)
        made.stored = stored
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is functional.linear:
            return _linear(*args, **(kwargs or {}))
        with torch._C.DisableTorchFunctionSubclass():  # results are plain tensors
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func in (torch.ops.aten.detach.default, torch.ops.aten.clone.default):
            with torch.inference_mode(False):  # `detach` of a plain weight is plain there, too
                return cls(args[0].stored, args[0])

        def plain(value: Any) -> Any:
            if isinstance(value, (list, tuple)):
                return type(value)(map(plain, value))
            return value.stored.values(value.dtype) if isinstance(value, cls) else value

        return func(*plain(args), **{k: plain(v) for k, v in (kwargs or {}).items()})


def _linear(x: Tensor, weight: QuantisedWeight, bias: Tensor | None = None) -> Tensor:
    if torch.is_autocast_enabled(x.device.type):
        x = x.to(torch.get_autocast_dtype(x.device.type))
    product: Any = _Product
    mapped: Tensor = product.apply(x, weight)
    return mapped if bias is None else mapped + bias.to(mapped.dtype)


class _Product(torch.autograd.Function):
    """The product, which keeps the few bits for its backward pass and no numbers of half
    precision.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: QuantisedWeight) -> Tensor:
        ctx.stored = weight.stored
        with torch.autocast(x.device.type, enabled=False):
            return weight.stored.product(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad @ ctx.stored.values(grad.dtype), None


def quantise(module: nn.Module, form: Format) -> None:
    """Keep the weights of *module* under adapters in *form*, one after the other.

    Raises:
        UsageError: no linear map has an adapter, or the library is not installed.
    """
    for base in _maps(module, form):
        with torch.no_grad():
            weight = QuantisedWeight(FORMATS[form](base.weight.detach()), base.weight)
            base.weight = nn.Parameter(weight, requires_grad=False)
    for parameter in module.parameters():
        if parameter.device.type == "cpu" and not isinstance(parameter, QuantisedWeight):
            # The rest may be pages of a file. It is mapped as a whole until none of it is in use.
            parameter.data = parameter.data.clone()


def round_to(module: nn.Module, form: Format, dtype: torch.dtype) -> None:
    """Give the weights of *module* under adapters the numbers that `quantise` gives them in *dtype*,
    and leave them in their own type.

    Raises:
        UsageError: as `quantise`.
    """
    for base in _maps(module, form):
        stored = FORMATS[form](base.weight.detach().to(dtype))
        base.weight.data = stored.values(dtype).to(base.weight.dtype)


def _maps(module: nn.Module, form: Format) -> list[nn.Linear]:
    layers = [getattr(part, "base_layer", None) for part in module.modules()]
    found = [layer for layer in layers if isinstance(layer, nn.Linear)]
    if not found:
        raise UsageError(MAPS.format(form))
    return found


def bitsandbytes() -> Any:
    """Import the library, without its remark on a kernel for CPUs that it does not find.

    Raises:
        UsageError: it is not installed.
    """
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        return importlib.import_module("bitsandbytes")
    except ImportError as missing:
        raise UsageError(
            "learner lean: base = \"nf4\" needs bitsandbytes: pip install 'quintain-learners[nf4]'"
        ) from missing
    finally:
        logging.disable(before)
