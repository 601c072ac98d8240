"""The learner `lean` and its settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from quintain import Algorithm
from quintain.errors import UsageError
from quintain.interfaces import BytesPerParameter, LearnerKind
from quintain.learning import Learner
from quintain.models import note_digest

from .eight_bit import EightBitAdamW
from .host import HostAdamW
from .quantised import BYTES, Format, bitsandbytes, quantise, round_to

Kind = Literal["adamw", "adamw_8bit", "adamw_host"]


@dataclass(frozen=True, kw_only=True)
class Lean(LearnerKind):
    """Settings of a `LeanLearner`, the ``args`` of ``[learner]``.

    Attributes:
        weights: precision of the model on the device. Adapters of LoRA are float32 always.
        optimizer: ``adamw`` has float32 moments on the device, ``adamw_8bit`` moments in 8 bits,
            ``adamw_host`` float32 weights and moments in host memory.
        base: format of the weights under adapters instead of *weights*: ``int8``, or ``nf4`` in
            4 bits, which needs bitsandbytes.
    """

    weights: Literal["float32", "bfloat16"] = "bfloat16"
    optimizer: Kind = "adamw_8bit"
    base: Format | None = None

    def __post_init__(self) -> None:
        if self.base == "nf4":
            bitsandbytes()

    def __call__(
        self,
        module: Any,
        algorithm: Algorithm | None,
        *,
        max_sample_mismatch: float | None = None,
        exact_sampler: bool = False,
        **settings: Any,
    ) -> LeanLearner:
        settings["max_sample_mismatch"] = max_sample_mismatch
        settings["exact_sampler"] = exact_sampler
        if self.base:
            note_digest(module)
            quantise(module, self.base)
        return LeanLearner(module, algorithm, optimizer=self.optimizer, **settings)

    @property
    def rounds_base(self) -> bool:
        return self.base is not None

    def round_base(self, module: Any) -> Any:
        if self.base:
            round_to(module, self.base, getattr(torch, self.weights))
        return module

    def bytes_per_parameter(self, *, adapters: bool) -> BytesPerParameter:
        weights = 2 if self.weights == "bfloat16" else 4
        moments = {"adamw": 8, "adamw_8bit": 2, "adamw_host": 0}[self.optimizer]
        return BytesPerParameter(
            weights=weights,
            gradients=4 if adapters else weights,
            moments=moments,
            host=12 if self.optimizer == "adamw_host" else 0,
            base=BYTES[self.base] if self.base else None,
        )


class LeanLearner(Learner):
    """A `Learner` that takes 4 to 10 bytes a parameter on its device, where `Learner` takes 16.

    The weights of *module* keep their precision. In bfloat16, so do the gradients of those that
    train: their sum over micro-batches is rounded.

    Args:
        optimizer: see `Lean`.
        settings: of `Learner`.

    Raises:
        UsageError: weights in bfloat16 would train with plain AdamW, which rounds small steps away,
            or without autocast.
    """

    def __init__(
        self,
        module: nn.Module,
        algorithm: Algorithm | None = None,
        *,
        optimizer: Kind = "adamw_8bit",
        **settings: Any,
    ) -> None:
        self._kind = optimizer
        half = any(p.dtype == torch.bfloat16 for p in module.parameters())
        if half and settings.get("precision") != "bf16":
            raise UsageError('learner lean: weights in bfloat16 need learner.precision = "bf16"')
        super().__init__(module, algorithm, widen=False, **settings)

    def adamw(self, groups: list[dict[str, Any]], **settings: Any) -> torch.optim.Optimizer:
        if self._kind == "adamw_8bit":
            return EightBitAdamW(groups, **settings)
        if self._kind == "adamw_host":
            return HostAdamW(groups, **settings)
        for group in groups:
            if any(p.dtype == torch.bfloat16 for p in group["params"]):
                raise UsageError(
                    "learner lean: plain AdamW does not move weights in bfloat16 at usual learning "
                    'rates; set learner.args.optimizer = "adamw_8bit" or "adamw_host", or '
                    'learner.args.weights = "float32"'
                )
        return super().adamw(groups, **settings)
