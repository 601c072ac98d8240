"""Attention without masks and steps as CUDA graphs, for the learner and the embedded engine on
NVIDIA GPUs.
"""

from __future__ import annotations

from .kernels import FLASH, FlashKernels

__all__ = ["FLASH", "FlashKernels"]
