"""When an engine on the learner's GPU sleeps: it frees its memory as soon as the learner
computes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class LearnerHook:
    """Calls *rest* before each forward pass of the learner's *module*.

    The learner computes log-probs by the body of its model and an output layer of its own, so that
    what every pass calls is the layer of the input embeddings.
    """

    def __init__(self, module: Any, rest: Callable[[], None]) -> None:
        self._module, self._rest = module, rest
        self._handle: Any = None

    def start(self) -> None:
        def before(*_: Any) -> None:  # no method: a copy of the module would copy its object
            if self._handle is not None:
                self._rest()

        self._handle = self._module.get_input_embeddings().register_forward_pre_hook(before)

    def stop(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.remove()


def forget_cached_memory(module: Any) -> None:
    """Give memory of a GPU that the learner has freed, but torch keeps, to whoever asks for it."""
    if module is not None and (device := next(module.parameters()).device).type == "cuda":
        import torch

        with torch.cuda.device(device):
            torch.cuda.empty_cache()
