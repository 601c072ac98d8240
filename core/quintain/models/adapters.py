"""Adapters, which train in place of the weights: the contract of plugins that have them (entry-point
group ``quintain.adapters``), and the module and the weights under a wrapper of peft.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from ..errors import UsageError
from ..registry.lookup import current


class Adapters(Protocol):
    """What a run asks of adapters; a component is a module or an object with these functions."""

    def with_adapters(self, module: Any, settings: Mapping[str, Any]) -> nn.Module:
        """Return *module* with adapters, which alone train; *settings* are those of
        ``[model.lora]``.

        Raises:
            UsageError: a setting is unknown, or keeps the adapters from being merged.
        """

    def adapter_tensors(self, module: nn.Module) -> Mapping[str, Tensor]:
        """Return the tensors of the adapters of *module*, which share memory with it."""

    def digest_of(self, module: nn.Module) -> str:
        """Return the SHA-256 of the weights of *module* without its adapters, or what `note_digest`
        noted.
        """

    def note_digest(self, module: nn.Module) -> None:
        """Let `digest_of` return of *module* what it is now, whatever becomes of the weights under
        its adapters.
        """

    def write_adapters(
        self,
        folder: Path,
        module: Any,
        base: str,
        digest: str,
        learner: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the adapters of *module* to *folder*, with the path or id of the model under them
        and its `digest_of`; *learner* is what gave that model other numbers, if one did
        (`LearnerKind.round_base`).
        """

    def check_base(self, module: nn.Module, folder: Path) -> None:
        """Check that *module* has the base model of the adapters in *folder*.

        Raises:
            UsageError: it has other weights.
        """

    def merge_adapters(self, module: Any, folder: str | Path) -> Any:
        """Add the adapters of *folder* to the weights of *module*.

        Raises:
            UsageError: they belong to another model.
        """


def installed_adapters() -> Adapters:
    """Return the installed adapters.

    Raises:
        UsageError: there are none.
    """
    installed: Adapters | None = current().first("adapters")
    if installed is None:
        raise UsageError("LoRA adapters need a plugin: pip install 'quintain[lora]'")
    return installed


def has_adapters(module: nn.Module) -> bool:
    """Return whether peft wraps *module*."""
    return hasattr(module, "get_base_model")


def base_of(module: Any) -> Any:
    """Return the transformers module of *module*, which peft may wrap."""
    return module.get_base_model() if has_adapters(module) else module


def body_of(module: Any) -> Any:
    """Return the module without its output layer: ids to hidden states."""
    base = base_of(module)
    # `Llama4ForCausalLM` has its body under another name than its `base_model_prefix`, and returns
    # itself.
    return base.model if base.base_model is base else base.base_model


def named_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield name and tensor of each parameter and each persistent buffer, such as the routing bias
    of experts.
    """
    yield from module.named_parameters()
    saved = module.state_dict().keys()
    yield from ((name, buffer) for name, buffer in module.named_buffers() if name in saved)


def merged_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield name, as in a Hugging Face checkpoint, and tensor of each parameter and persistent
    buffer, the adapters' change added.
    """
    base = base_of(module)
    adapted = {
        name: part for name, part in base.named_modules() if hasattr(part, "get_delta_weight")
    }
    for name, parameter in named_tensors(base):
        owner, _, leaf = name.rpartition(".")
        if owner in adapted or any(owner.startswith(f"{a}.lora_") for a in adapted):
            continue
        layer, merged = owner, parameter
        # two for experts, whose maps are two parameters of one module
        while layer.endswith(".base_layer"):
            layer = layer.removesuffix(".base_layer")
            if layer in adapted and leaf == getattr(adapted[layer], "parameter_name", "weight"):
                merged = merged + sum(
                    adapted[layer].get_delta_weight(a) for a in adapted[layer].active_adapters
                )
        yield f"{layer}.{leaf}" if layer else leaf, merged
