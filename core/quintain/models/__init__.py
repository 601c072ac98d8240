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
    from .adapters import Adapters as Adapters
    from .adapters import base_of as base_of
    from .adapters import body_of as body_of
    from .adapters import installed_adapters as installed_adapters
    from .adapters import named_tensors as named_tensors
    from .forward import TOKEN_BUDGET as TOKEN_BUDGET
    from .forward import Forward as Forward
    from .head import CHUNK_ELEMENTS as CHUNK_ELEMENTS
    from .hf import BASE_FILE as BASE_FILE
    from .hf import base_named as base_named
    from .hf import base_record as base_record
    from .hf import check_available as check_available
    from .hf import check_folder as check_folder
    from .hf import check_whole as check_whole
    from .hf import is_folder as is_folder
    from .hf import offline as offline
    from .hf import quiet as quiet
    from .hf import unreachable as unreachable
    from .kernels import kernels_of as kernels_of
    from .kernels import on_gpu as on_gpu
    from .layers import Decoder as Decoder
    from .layers import Layer as Layer
    from .layers import attend as attend
    from .layers import cache_shape as cache_shape
    from .layers import fuse_storage as fuse_storage
    from .layers import has_windows as has_windows
    from .layers import product_type as product_type
    from .layers import rms_norm as rms_norm
    from .load import LoadedModel as LoadedModel
    from .load import as_device as as_device
    from .load import cache_bytes as cache_bytes
    from .load import context_of as context_of
    from .load import load_model as load_model
    from .load import load_pretrained as load_pretrained
    from .paper import module_on_paper as module_on_paper
    from .prefix_layout import PrefixLayout as PrefixLayout
    from .prefix_layout import TokenSequence as TokenSequence
    from .probe import agree as agree
    from .probe import log_probs as log_probs
    from .probe import logit_map_of as logit_map_of
    from .probe import plain_log_probs as plain_log_probs
    from .snapshot import Snapshot as Snapshot
    from .tokenizer import HFTokenizer as HFTokenizer
    from .tool_calls import parse as parse
    from .transfers import to_device as to_device

__getattr__, __dir__ = lazy_names(__name__)
