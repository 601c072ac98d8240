"""The model: loading, the layers as plain functions, and the tokenizer with its chat template. Needs torch and
transformers.

The names below are what plugins may import from here; each module is imported when one of its names is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..interfaces.tokenizer import ChatTokenizer as ChatTokenizer
    from .forward import Forward as Forward
    from .forward import TokenSequence as TokenSequence
    from .hf import offline as offline
    from .hf import quiet as quiet
    from .hf import unreachable as unreachable
    from .layers import fuse_storage as fuse_storage
    from .load import LoadedModel as LoadedModel
    from .load import as_device as as_device
    from .load import load_model as load_model
    from .tokenizer import HFTokenizer as HFTokenizer

_HOMES = {
    "..interfaces.tokenizer": ("ChatTokenizer",),
    ".forward": ("Forward", "TokenSequence"),
    ".hf": ("offline", "quiet", "unreachable"),
    ".layers": ("fuse_storage",),
    ".load": ("LoadedModel", "as_device", "load_model"),
    ".tokenizer": ("HFTokenizer",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME, key=str.casefold)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
