"""The model: loading, the layers as plain functions, and the tokenizer with its chat template.
Needs torch and transformers.

The names below are what plugins may import from here; each module is imported when one of its names
is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import lazy_names

if TYPE_CHECKING:
    from ..interfaces.shared_module import shares_module as shares_module
    from ..interfaces.tokenizer import ChatTokenizer as ChatTokenizer
    from .adapters import base_of as base_of
    from .adapters import body_of as body_of
    from .forward import Forward as Forward
    from .head import statistics as statistics
    from .hf import check_available as check_available
    from .hf import check_folder as check_folder
    from .hf import check_whole as check_whole
    from .hf import has_adapters_alone as has_adapters_alone
    from .hf import offline as offline
    from .hf import quiet as quiet
    from .hf import unreachable as unreachable
    from .kernels import kernels_of as kernels_of
    from .layers import Decoder as Decoder
    from .layers import cache_shape as cache_shape
    from .layers import fuse_storage as fuse_storage
    from .load import LoadedModel as LoadedModel
    from .load import ModelFamily as ModelFamily
    from .load import as_device as as_device
    from .load import load_model as load_model
    from .load import load_pretrained as load_pretrained
    from .load import name_stops as name_stops
    from .lora import digest_of as digest_of
    from .lora import merge_adapters as merge_adapters
    from .lora import note_digest as note_digest
    from .lora import with_adapters as with_adapters
    from .paper import module_on_paper as module_on_paper
    from .prefix_layout import TokenSequence as TokenSequence
    from .tokenizer import PICTURE as PICTURE
    from .tokenizer import PICTURE_PLACES as PICTURE_PLACES
    from .tokenizer import PICTURE_TOKENS as PICTURE_TOKENS
    from .tokenizer import HFTokenizer as HFTokenizer
    from .tool_calls import parse as parse

__getattr__, __dir__ = lazy_names(__name__)
