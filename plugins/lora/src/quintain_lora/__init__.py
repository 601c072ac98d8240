"""Low-rank adapters by peft: what a recipe with ``[model.lora]`` trains."""

from __future__ import annotations

from .adapters import adapter_tensors, check_base, digest_of, merge_adapters, with_adapters

__all__ = ["adapter_tensors", "check_base", "digest_of", "merge_adapters", "with_adapters"]
