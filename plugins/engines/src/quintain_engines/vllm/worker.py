"""What runs in vLLM's worker: receiving weights, and recording what layers compute.

vLLM imports this module by name (``worker_extension_cls``), which registers the transfer backend
``quintain``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)

from .handover import handed, shape_of
from .readback import adapters_of, checkpoint_name, weights_of

BACKEND = "quintain"


@dataclass
class InitInfo(WeightTransferInitInfo):
    """Nothing to agree on."""


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """Where the tensors are: under *key* in this process, or in the safetensors file *path*.

    Attributes:
        aliases: names that have the tensor of another name.
    """

    key: str = ""
    path: str = ""
    aliases: dict[str, str] = field(default_factory=dict)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        if self.key:
            yield from handed[self.key].items()
            return
        with safe_open(self.path, framework="pt") as file:
            names = {name: name for name in file.keys()} | self.aliases  # noqa: SIM118 -- not a mapping
            for name, stored in names.items():
                yield name, file.get_tensor(stored)


class CheckpointTransfer(WeightTransferEngine[InitInfo, UpdateInfo]):
    """Loads tensors under the names of a Hugging Face checkpoint, layer by layer."""

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """Do nothing: there is nothing to open."""

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: UpdateInfo) -> None:
        self.model.load_weights(update_info.tensors())

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        repack_heads(self.model)

    def shutdown(self) -> None:
        """Do nothing: there is nothing to close."""


def repack_heads(model: Any) -> None:
    """Pack the weights of output layers again.

    A tied output layer has no weights of its own in the checkpoint, so the reload leaves its packed
    copy, which vLLM computes with on CPU, at the old values, and says nothing.
    """
    for layer in model.modules():
        if isinstance(layer, ParallelLMHead):
            layer.quant_method.process_weights_after_loading(layer)


class WorkerExtension:
    """Methods that vLLM adds to its worker class; all ranks run them."""

    model_runner: Any
    rank: int

    def quintain_shape(self) -> dict[str, Any]:
        """Return what the model was loaded as."""
        return shape_of(self.model_runner.model_config.hf_config)

    def quintain_weights(self) -> dict[str, tuple[str, int]]:
        """Return type and checksum of the weights that the model computes with."""
        return weights_of(self.model_runner.get_model())

    def quintain_adapters(self) -> dict[str, tuple[str, int]]:
        """Return type and checksum of the factors of the adapters that the model computes with."""
        return adapters_of(self.model_runner.get_model())

    def quintain_features(self, identifier: str) -> list[int]:
        """Return how many features of a picture are in the cache, in a list, since a server sends a
        number as text; nothing if it is not there.
        """
        cache = self.model_runner.encoder_cache
        features = getattr(cache, "encoder_outputs", cache).get(identifier)
        return [] if features is None else [len(features)]

    def quintain_trace(self) -> None:
        """Record from now on the first output of every layer with parameters that is called."""
        self._traced: dict[str, Tensor] = {}
        self._hooks = [
            layer.register_forward_hook(self._recorder(name))
            for name, layer in self.model_runner.get_model().named_modules()
            if name and any(True for _ in layer.parameters())
        ]

    def _recorder(self, name: str) -> Any:
        def record(layer: Any, _inputs: Any, output: Any) -> None:
            if (
                isinstance(output, tuple)
                and isinstance(output[-1], Tensor)
                and any(True for _ in layer.children())
            ):
                return  # a whole block: its output is yet to be added to the residual stream
            value = output[0] if isinstance(output, tuple) else output
            if isinstance(value, Tensor) and name not in self._traced:
                self._traced[name] = value.detach().to("cpu", torch.float32, copy=True).contiguous()

        return record

    def quintain_traced(self, path: str) -> dict[str, str]:
        """Stop recording; write the outputs to *path* and return the class of each layer."""
        for hook in self._hooks:
            hook.remove()
        model = self.model_runner.get_model()
        if self.rank == 0:
            with suppress(FileNotFoundError):
                Path(path).unlink()
            save_file({checkpoint_name(model, n): value for n, value in self._traced.items()}, path)
        classes = {
            checkpoint_name(model, name): type(model.get_submodule(name)).__name__
            for name in self._traced
        }
        self._traced = {}
        return classes


def register() -> None:
    """Make the backend known to vLLM; once per process."""
    with suppress(ValueError):
        WeightTransferEngineFactory.register_engine(BACKEND, CheckpointTransfer)


register()
