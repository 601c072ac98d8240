"""The engine that samples from a Hugging Face model in the process of a run: exact tokens, a cache
of keys and values, shared prefixes. Needs torch and transformers.

The names below are what plugins may import from here; each module is imported when one of its names
is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import lazy_names

if TYPE_CHECKING:
    from .cache import KVStore as KVStore
    from .decoding import CacheAttention as CacheAttention
    from .decoding import LayerForward as LayerForward
    from .decoding import LayerSteps as LayerSteps
    from .decoding import MaskedAttention as MaskedAttention
    from .decoding import Steps as Steps
    from .embedded import EmbeddedEngine as EmbeddedEngine
    from .sampler import Sampler as Sampler
    from .sampler import decode_burst as decode_burst
    from .slots import Request as Request

__getattr__, __dir__ = lazy_names(__name__)
