"""The learner's weights in the form that an engine loads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from .adapters import has_adapters, merged_tensors


class ModuleWeights:
    """Live weights under the names of a Hugging Face checkpoint.

    Attributes:
        module: the trained model; an engine that shares its tensors reads it.
        version: of these weights.
    """

    def __init__(self, module: nn.Module, version: int) -> None:
        self.module = module
        self.version = version

    def tensors(self) -> Mapping[str, Tensor]:
        """Name to tensor, detached, not copied; with adapters the merged weight, in a copy."""
        if not has_adapters(self.module):
            return {name: tensor.detach() for name, tensor in self.module.state_dict().items()}
        with torch.no_grad():
            tensors = {name: tensor.detach() for name, tensor in merged_tensors(self.module)}
        module = cast(Any, self.module)
        # tied
        if (head := module.get_output_embeddings().weight) is module.get_input_embeddings().weight:
            tensors.setdefault("lm_head.weight", head.detach())
        return tensors


def live_weights(learner: Any) -> Any:
    """Return the weights of the module of *learner* as they are, whatever it publishes; its own if it
    has processes that alone have them.
    """
    if next(learner.module.parameters()).is_meta:
        return learner.weights()
    return ModuleWeights(learner.module, learner.version)
